"""Draw docs/summary.svg: the summary page of a real run, as a terminal of 100 columns shows it.

Usage: python docs/make_svg.py [TRACE]
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from mocker_replay.replay import replay
from mocker_replay.report.render import render_summary

DOCS = Path(__file__).resolve().parent
DEFAULT_TRACE = DOCS.parent / "traces" / "chat-shared-prefix.jsonl"


def main(trace: Path = DEFAULT_TRACE) -> None:
    """Replay `trace` with the default engine and save the page."""
    result = replay(trace)
    console = Console(record=True, width=100, file=io.StringIO(), force_terminal=True, highlight=False)
    render_summary(result.summary, result.facts, console)
    # Fonts of the reader's machine: a picture in a repository should load nothing from elsewhere.
    template = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    svg = console.export_svg(title=f"mocker-replay run traces/{trace.name}", code_format=template, unique_id="summary")
    (DOCS / "summary.svg").write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:2]))
