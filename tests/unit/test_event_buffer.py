"""Views of an event buffer say the same, whichever is taken."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mocker_replay._core.event_buffer import EventBuffer
from mocker_replay.events import EventKind

INT64 = st.integers(-(2**63), 2**63 - 1)
RECORDS = st.lists(
    st.tuples(
        st.sampled_from(list(EventKind)),
        st.floats(0.0, 1e9),
        st.integers(-1, 2**31 - 1),
        st.tuples(INT64, INT64, INT64),
        st.none() | st.lists(INT64, max_size=4),
    ),
    max_size=20,
)


@given(RECORDS)
def test_rows_and_requests_are_those_of_the_arrays(records: list) -> None:
    buffer = EventBuffer()
    for kind, t_ms, request, (a, e, f), words in records:
        buffer.append_record(kind, t_ms, request=request, a=a, e=e, f=f, x=0.5, words=words)
    rows, words = buffer.rows()
    array = buffer.records_array()
    assert len(buffer) == len(rows) == len(records)
    assert rows == array.tolist()
    assert words == buffer.words_array().tolist()
    for kind in EventKind:
        assert buffer.requests_of(kind) == array["request"][array["kind"] == kind].tolist()
    buffer.clear()
    assert buffer.rows() == ([], [])
    assert buffer.requests_of(EventKind.TERMINAL) == []
