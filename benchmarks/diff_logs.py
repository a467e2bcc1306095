"""`mocker-replay diff` beside `cmp` plus parsing both logs once, on two big logs.

    python benchmarks/diff_logs.py [--events 5000000] [--folder DIR] [--repeats 3]

Writes a log of so many events (level tokens, plain) and variants of it: one that differs in its last line, one where
every time is a little later from the middle on, and one that is another run altogether. Prints Markdown: the processor
time of the whole process, its peak memory, and beside them `cmp` and a loop of `orjson.loads` over the lines of both
logs, each the best of the repeats. Exit code 1 where a comparison takes longer than the two together, or 100 MB or
more.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import orjson

from mocker_replay.events import EVENT_SCHEMA
from mocker_replay.log.digest import EventDigest

MEGABYTE = 1 << 20
MEMORY_MAX = 100 * MEGABYTE


def lines(seed: int, num_events: int, late_from: int | None = None) -> Iterator[bytes]:
    """Event lines of requests that arrive, emit a token a pass and end; 64 at a time."""
    rng = random.Random(seed)
    seq, number, pass_id, t_ms = 0, 0, 0, 0.0
    live: list[list[int]] = []  # request, tokens left, tokens so far
    while seq < num_events:
        shift_ms = 0.0 if late_from is None or seq < late_from else 0.25
        parts = []
        while len(live) < 64:
            live.append([number, rng.randint(20, 400), 0])
            who = f'"request":"r{number}","worker":0,"rank":0'
            parts.append(f'"event":"arrival",{who},"input_tokens":700,"output_tokens":{live[-1][1]}')
            parts.append(f'"event":"admission",{who},"reused_tokens":0,"readmission":false')
            number += 1
        end_ms = t_ms + rng.choice([8.25, 10.5, 12.125])
        ranks = f'"ranks":[{{"rank":0,"scheduled_requests":{len(live)},"scheduled_tokens":{len(live)}}}]'
        parts.append(f'"event":"pass_start","worker":0,"pass":{pass_id},"end_ms":{end_ms + shift_ms!r},{ranks}')
        start = f'"t_ms":{t_ms + shift_ms!r}'
        yield from (f'{{"seq":{seq + i},{start},{part}}}\n'.encode() for i, part in enumerate(parts))
        seq += len(parts)
        t_ms = end_ms
        parts = [f'"event":"pass_end","worker":0,"pass":{pass_id},"ranks":[{{"rank":0,"tokens":{len(live)}}}]']
        pass_id += 1
        for request in live:
            request[1] -= 1
            request[2] += 1
            who = f'"request":"r{request[0]}"'
            if request[2] == 1:
                parts.append(f'"event":"first_token",{who},"worker":0,"rank":0')
            parts.append(f'"event":"tokens",{who},"tokens":1,"total":{request[2]}')
            if request[1] == 0:
                tail = f'"output_tokens":{request[2]},"last_token_ms":{t_ms + shift_ms!r},"reason":"output_length"'
                parts.append(f'"event":"finish",{who},"worker":0,"rank":0,{tail}')
        live = [request for request in live if request[1]]
        start = f'"t_ms":{t_ms + shift_ms!r}'
        yield from (f'{{"seq":{seq + i},{start},{part}}}\n'.encode() for i, part in enumerate(parts))
        seq += len(parts)


def write(path: Path, events: Iterable[bytes]) -> None:
    """A log of these lines with a footer that is true."""
    header = {
        "event": "header", "schema": EVENT_SCHEMA, "level": "tokens", "clock": "virtual",
        "trace": {"rows": 1, "digest": "00"}, "config": {}, "options": {},
    }  # fmt: skip
    digest = EventDigest()
    count = 0
    with path.open("wb") as file:
        file.write(orjson.dumps(header) + b"\n")
        for batch in _batched(events, 4096):
            text = b"".join(batch)
            digest.update(text)
            count += text.count(b"\n")
            file.write(text)
        footer = {"event": "footer", "events": count, "arrived": 0, "end": "complete", "digest": digest.hexdigest()}
        file.write(orjson.dumps(footer) + b"\n")


def _batched(items: Iterable[bytes], size: int) -> Iterator[list[bytes]]:
    iterator = iter(items)
    while batch := list(itertools.islice(iterator, size)):
        yield batch


def last_changed(events: Iterable[bytes]) -> Iterator[bytes]:
    """The same lines, but the last one."""
    iterator = iter(events)
    held = next(iterator)
    for line in iterator:
        yield held
        held = line
    yield held[:-2] + b',"tokens":9}\n'


def run(command: list[str]) -> tuple[float, int, int]:
    """Processor time [s], peak memory [bytes] and exit code of a process."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, process.returncode


def parse(path: Path) -> float:
    """Processor time [s] for a parse of every line."""
    loads = orjson.loads
    started = time.process_time()
    with path.open("rb") as file:
        for line in file:
            loads(line)
    return time.process_time() - started


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--events", type=int, default=5_000_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        return measure(Path(folder), args.events, args.repeats)


def measure(folder: Path, num_events: int, repeats: int) -> int:
    a = folder / "a.jsonl"
    write(a, lines(1, num_events))
    variants: dict[str, Iterable[bytes]] = {
        "the same, by their footers": lines(1, num_events),
        "the last line": last_changed(lines(1, num_events)),
        "times from the middle on": lines(1, num_events, num_events // 2),
        "another run": lines(2, num_events),
    }
    print(f"{num_events:,} events, {a.stat().st_size / MEGABYTE:,.0f} MB\n")
    print(
        "| what differs | diff [s] | peak memory [MB] | cmp [s] | parse both [s] | ratio |\n|---|---|---|---|---|---|"
    )
    failed = False
    for name, events in variants.items():
        b = folder / "b.jsonl"
        write(b, events)
        same = name.startswith("the same")
        command = [sys.executable, "-m", "mocker_replay", "diff", str(a), str(b), "--json"]
        runs = [run(command) for _ in range(repeats)]
        assert {code for _, _, code in runs} == {0 if same else 1}
        seconds, peak = min(took for took, _, _ in runs), max(memory for _, memory, _ in runs)
        compared = min(run(["cmp", str(a), str(b)])[0] for _ in range(repeats))
        parsed = min(parse(a) + parse(b) for _ in range(repeats))
        ratio = seconds / (compared + parsed)
        failed |= ratio > 1.0 or peak >= MEMORY_MAX
        print(f"| {name} | {seconds:.2f} | {peak / MEGABYTE:.0f} | {compared:.2f} | {parsed:.2f} | {ratio:.2f} |")
    print(f"\nthis process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
