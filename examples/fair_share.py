"""A policy of twenty lines: the tenant that was served least goes first.

    PYTHONPATH=examples mocker-replay run TRACE.jsonl --policy fair_share:FairShare --policy-option unit_tokens=512

The tenant of a request is the `priority` of its row. Run as a program it shows what the policy does for two tenants.
"""

from collections import Counter

from mocker_replay.policies import Policy, RankFacts, RequestFacts


class FairShare(Policy):
    reason = "fair_share"
    reorders = True  # who is served changes the order of those who wait

    def __init__(self, unit_tokens: int = 512) -> None:
        self.unit_tokens = unit_tokens
        self.served: Counter[int] = Counter()  # units by tenant

    def order_key(self, request: RequestFacts, rank: RankFacts) -> float:
        return self.served[request.priority]

    def may_admit(self, request: RequestFacts, rank: RankFacts) -> bool:
        self.served[request.priority] += 1 + (request.input_tokens + request.output_tokens) // self.unit_tokens
        return True


def main() -> None:
    import json
    import tempfile
    from pathlib import Path

    from mocker_replay.replay import replay

    # Tenant 1 sends forty requests at once, tenant 2 one every 200 ms.
    rows = [(0, 1)] * 40 + [(200 * i, 2) for i in range(10)]
    lines = [
        {"timestamp": at, "input_length": 512, "output_length": 64, "hash_ids": [i], "priority": tenant}
        for i, (at, tenant) in enumerate(rows)
    ]
    engine = {"engine": {"max_num_seqs": 8}}
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.jsonl"
        trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
        for policy in (None, FairShare()):
            columns = replay(trace, engine, policy=policy).columns
            waits_ms = columns["first_admit_ms"] - columns["arrival_ms"]
            name = "fcfs" if policy is None else policy.reason
            print(f"{name}: tenant 1 waits {waits_ms[:40].mean():.0f} ms, tenant 2 {waits_ms[40:].mean():.0f} ms")


if __name__ == "__main__":
    main()
