"""`mocker-replay synth`: a synthetic workload as a trace on standard output.

It decides names of flags and what people are told; the workload is `mocker_replay.trace.synth`.
"""

from __future__ import annotations

import sys
from itertools import islice
from typing import Annotated, Any, Final

import typer
from msgspec import structs

from mocker_replay.errors import UsageError

_SIZE = "Size"
_ARRIVAL = "Arrival (exactly one of the first three)"
_SESSIONS = "Sessions and shared prefixes"
_FORM = "Form of the file"
_ROWS_A_WRITE: Final = 1000


def synth(
    ctx: typer.Context,
    input_tokens: Annotated[int, typer.Option(rich_help_panel=_SIZE, help="Prompt tokens of every request.")],
    output_tokens: Annotated[int, typer.Option(rich_help_panel=_SIZE, help="Output tokens of every request.")],
    request_count: Annotated[int, typer.Option(rich_help_panel=_SIZE, help="Sessions; each has all its turns.")],
    request_rate: Annotated[
        float | None, typer.Option(rich_help_panel=_ARRIVAL, help="Sessions a second, at random (Poisson).")
    ] = None,
    arrival_interval_ms: Annotated[
        float | None, typer.Option(rich_help_panel=_ARRIVAL, help="Constant gap; 0 is one burst.")
    ] = None,
    replay_concurrency: Annotated[
        int | None,
        typer.Option(rich_help_panel=_ARRIVAL, help="Closed loop: all timestamps are 0; give `run` the same flag."),
    ] = None,
    arrival_speedup_ratio: Annotated[
        float, typer.Option(rich_help_panel=_ARRIVAL, help="Divides arrivals and delays, not in a closed loop.")
    ] = 1.0,
    arrival_seed: Annotated[int, typer.Option(rich_help_panel=_ARRIVAL, help="Seed of the random arrivals.")] = 42,
    turns_per_session: Annotated[int, typer.Option(rich_help_panel=_SESSIONS, help="Requests of a session.")] = 1,
    inter_turn_delay_ms: Annotated[
        float, typer.Option(rich_help_panel=_SESSIONS, help="Think time between answer and next turn.")
    ] = 0.0,
    shared_prefix_ratio: Annotated[
        float, typer.Option(rich_help_panel=_SESSIONS, help="Part of a prompt's blocks that its group shares.")
    ] = 0.0,
    num_prefix_groups: Annotated[
        int, typer.Option(rich_help_panel=_SESSIONS, help="Groups; each session draws one. 0 shares nothing.")
    ] = 0,
    cancel_after_ms: Annotated[
        float | None, typer.Option(rich_help_panel=_SESSIONS, help="Clients leave so long after their request arrived.")
    ] = None,
    cancel_fraction: Annotated[
        float, typer.Option(rich_help_panel=_SESSIONS, help="Part of the requests whose client leaves.")
    ] = 1.0,
    block_size: Annotated[
        int, typer.Option(rich_help_panel=_SESSIONS, help="Tokens of a KV block, the unit of shared prefixes.")
    ] = 64,
    trace_block_size: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=_FORM,
            help="Tokens a hash id stands for. [default: 512, or --block-size where 512 cannot express the prefix]",
        ),
    ] = None,
) -> None:
    """Write a synthetic workload as a Mooncake trace to standard output.

    The same settings give the same bytes. If `run` needs flags to replay the file as meant, they are named on standard
    error. Exit codes: 0 done, 2 bad usage.
    """
    from mocker_replay.trace.synth import SyntheticWorkload

    try:
        workload = SyntheticWorkload(**ctx.params)
    except UsageError as exc:
        raise _by_flags(exc, ctx.params) from None
    rows = workload.rows()
    while chunk := b"".join(islice(rows, _ROWS_A_WRITE)):
        sys.stdout.buffer.write(chunk)
    sys.stdout.buffer.flush()
    flags = workload.run_flags()
    if flags:
        print(f"replay it with: mocker-replay run TRACE {' '.join(flags)}", file=sys.stderr)


def _by_flags(error: UsageError, params: dict[str, Any]) -> UsageError:
    """The same faults in the words of the command line."""
    flags = {field: "--" + field.replace("_", "-") for field in params}
    faults = []
    for fault in error.faults:
        words = [
            flags.get(word.rstrip(","), word.rstrip(",")) + word[len(word.rstrip(",")) :]
            for word in fault.rule.split(" ")
        ]
        value = "" if fault.value == "None" else fault.value
        faults.append(structs.replace(fault, file=flags[fault.file], value=value, rule=" ".join(words)))
    return UsageError.of(faults)
