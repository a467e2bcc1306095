"""Records what the reference wheel makes of the public traces into public_traces.json.

    python -m tests.parity.record_public_traces TRACES_FOLDER

Needs the wheel, as the fuzzer does. The figures only change when the settings in public_traces.py do.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.fuzz.wheel import WHY_MISSING, Wheel, peer_python
from tests.parity.public_traces import RECORDED, fingerprint, settings


def main(argv: list[str]) -> int:
    python = peer_python()
    if python is None or len(argv) != 1:
        print(WHY_MISSING if python is None else __doc__, file=sys.stderr)
        return 2
    folder = Path(argv[0])
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    with Wheel(python, timeout_s=600.0) as wheel:
        for setting in settings():
            if setting.name in recorded:
                continue
            answer = wheel.run(folder / f"{setting.trace}.jsonl", setting.config, setting.args, None)
            recorded[setting.name] = fingerprint(answer["per_request"], answer["summary"])
            RECORDED.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")
            print(setting.name, recorded[setting.name], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
