"""The compiled reading of plain rows against the one that goes through a JSON parser."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mocker_replay._core.mooncake_lines import MooncakeLines, line_end
from mocker_replay.trace import mooncake_columns
from mocker_replay.trace.line_file import LineBlock
from mocker_replay.trace.mooncake_row import MooncakeRules

SIZE = 4
RULES = MooncakeRules(trace_block_size=SIZE, missing_hash_ids="private")
spaces = st.sampled_from(["", "", "", " ", "\t ", "\r"])
whole = st.integers(0, 10**15 - 1).map(str)
fractions = st.tuples(st.integers(0, 10**7), st.text("0123456789", min_size=1, max_size=7)).map(
    lambda p: f"{p[0]}.{p[1]}"
)
texts = st.text([chr(code) for code in range(0x20, 0x7F) if chr(code) not in '"\\'], max_size=8).map(lambda t: f'"{t}"')
id_lists = st.lists(st.integers(0, 10**19 - 1).map(str), max_size=6)
values = {
    "timestamp": whole | fractions, "created_time": whole | fractions,
    "delay": whole | fractions, "delay_ms": whole | fractions,
    "cancel_after_ms": whole | fractions, "deadline_ms": whole | fractions,
    "session_id": texts, "request_id": texts,
}  # fmt: skip


@st.composite
def plain_rows(draw: st.DrawFn) -> str:
    """One row that the compiled reading takes, with spaces wherever JSON allows them."""
    fields = {
        draw(st.sampled_from(["input_length", "input_tokens"])): str(draw(st.integers(1, 40))),
        draw(st.sampled_from(["output_length", "output_tokens"])): str(draw(st.integers(0, 2**31 - 1))),
        "hash_ids": "[" + ",".join(draw(spaces) + i + draw(spaces) for i in draw(id_lists)) + draw(spaces) + "]",
    }
    for name in draw(
        st.lists(st.sampled_from(sorted(values)), unique_by=lambda name: name.split("_ms")[0], max_size=5)
    ):
        if not (
            (name == "created_time" and "timestamp" in fields) or (name == "timestamp" and "created_time" in fields)
        ):
            fields[name] = draw(values[name])
    pad = lambda: draw(spaces)  # noqa: E731 (drawn anew at each use)
    order = draw(st.permutations(sorted(fields)))
    return pad() + "{" + ",".join(f'{pad()}"{n}"{pad()}:{pad()}{fields[n]}{pad()}' for n in order) + "}" + pad()


lines = st.lists(st.one_of(plain_rows(), spaces), min_size=1, max_size=6)
damage = st.sampled_from([*'{}[],:"\\0-+.eE ntx\x00\x7f\n', "é", "\ufeff"])


def columns_of(columns: mooncake_columns.Columns | None) -> object:
    if columns is None:
        return None
    found = {name: getattr(columns, name) for name in columns.__slots__}
    return {name: c.tolist() if isinstance(c, np.ndarray) else c for name, c in found.items()}


def by_parser(block: LineBlock) -> object:
    """As the other readings have it: the exact one where the parser's is not sure."""
    faults = mooncake_columns.FaultList("trace")
    columns = mooncake_columns._accept(block, RULES, False)
    if columns is None:
        columns = mooncake_columns._read_exactly(block, RULES, faults)
    return columns_of(columns), len(faults)


@settings(max_examples=150, deadline=None)
@given(lines)
@example(['{"timestamp":0,"input_length":1,"output_length":0,"hash_ids":[]}', "", " \t"])
def test_plain_rows_are_taken_and_read_alike(rows: list[str]) -> None:
    block = LineBlock(7, "\n".join(rows).encode())
    columns = mooncake_columns._scan(block, RULES, MooncakeLines())
    assert columns is not None
    expected, num_faults = by_parser(block)
    assert num_faults == 0
    found = columns_of(columns)
    # The other readings have a column wherever a name stands, this one too; NaN is unlike itself.
    assert repr(found) == repr(expected)


@settings(max_examples=300, deadline=None)
@given(lines, st.data())
def test_whatever_is_taken_has_no_fault(rows: list[str], data: st.DataObject) -> None:
    text = "\n".join(rows)
    at = data.draw(st.integers(0, len(text)))
    cut = data.draw(st.integers(0, 2))
    text = text[:at] + data.draw(damage) + text[at + cut :]
    block = LineBlock(1, text.encode())
    columns = mooncake_columns._scan(block, RULES, MooncakeLines())
    if columns is not None:
        expected, num_faults = by_parser(block)
        assert num_faults == 0
        assert repr(columns_of(columns)) == repr(expected)


def test_a_scan_knows_nothing_of_the_one_before() -> None:
    scanner = MooncakeLines()
    row = b'{"input_length":5,"output_length":1,"hash_ids":[1,2],"session_id":"a","delay":1}'
    assert scanner.scan(row + b"\n" + row)
    assert (scanner.num_rows, scanner.num_hash_ids, scanner.session_ids) == (2, 4, ["a", "a"])
    assert not scanner.scan(b'{"input_length":5,')
    assert scanner.scan(b'{"input_length":5,"output_length":1,"hash_ids":[1,2]}')
    assert (scanner.num_rows, scanner.session_ids, scanner.has("delay")) == (1, [], False)


@given(st.lists(st.sampled_from([b"", b"a", b"bc"]), min_size=1), st.integers(1, 4))
def test_a_text_is_cut_into_lines(parts: list[bytes], n: int) -> None:
    text = b"\n".join(parts)
    at, found = 0, []
    while at <= len(text):
        end, num_lines = line_end(text, at, n)
        found.append(text[at:end].split(b"\n"))
        assert len(found[-1]) == num_lines
        at = end + 1
    assert [line for piece in found for line in piece] == parts
    assert all(len(piece) == n for piece in found[:-1])
