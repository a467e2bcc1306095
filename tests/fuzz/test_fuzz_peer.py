"""A short run of the differential fuzzer against the reference wheel; `make fuzz-peer` runs the long one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fuzz.deltas import make_delta_case
from tests.fuzz.graphs import make_graph_case
from tests.fuzz.peer import MakeCase, run_seed
from tests.fuzz.routed import make_routed_case, make_routed_pools_case
from tests.fuzz.wheel import WHY_MISSING, Wheel, peer_python
from tests.parity.runners import run_product_case

FIRST_SEED = 77_000_000
CASES = 200
BATCH = 20
OTHERS = 40  # of each other kind of traces
# The wheel never ends on these, and is waited for in vain; the long run has its share of such cases.
ENDLESS = {("mooncake", 77_000_180), ("deltas", 77_000_000)}


@pytest.fixture(scope="module")
def wheel() -> Iterator[Wheel]:
    python = peer_python()
    if python is None:
        pytest.skip(WHY_MISSING)
    with Wheel(python) as running:
        yield running


@pytest.mark.parametrize("start", range(0, CASES, BATCH))
def test_product_equals_the_wheel(start: int, wheel: Wheel) -> None:
    differing = {}
    for seed in range(FIRST_SEED + start, FIRST_SEED + start + BATCH):
        if ("mooncake", seed) in ENDLESS:
            continue
        case, verdict = run_seed(seed, run_product_case, wheel)
        if verdict.differences:
            differing[case.name] = verdict.differences[:3]
    assert differing == {}


@pytest.mark.parametrize("make", [make_routed_case, make_routed_pools_case], ids=["router", "disaggregated-router"])
def test_requests_go_where_they_go_in_the_wheel(make: MakeCase, wheel: Wheel) -> None:
    differing = {}
    for seed in range(FIRST_SEED, FIRST_SEED + BATCH):
        case, verdict = run_seed(seed, run_product_case, wheel, make)
        if verdict.differences:
            differing[case.name] = verdict.differences[:3]
    assert differing == {}


@pytest.mark.parametrize("make", [make_graph_case, make_delta_case], ids=["graphs", "deltas"])
@pytest.mark.parametrize("start", range(0, OTHERS, BATCH))
def test_other_traces_are_replayed_as_by_the_wheel(make: MakeCase, start: int, wheel: Wheel) -> None:
    differing = {}
    for seed in range(FIRST_SEED + start, FIRST_SEED + start + BATCH):
        if make is make_delta_case and ("deltas", seed) in ENDLESS:
            continue
        case, verdict = run_seed(seed, run_product_case, wheel, make)
        if verdict.differences:
            differing[case.name] = verdict.differences[:3]
    assert differing == {}
