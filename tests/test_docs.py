"""The documents: links lead somewhere, the picture is one, commands in code blocks are commands we have."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mocker_replay.cli.app import VERBS
from mocker_replay.cli.run import run

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("traces/*.md"), *ROOT.glob("examples/*.md")]
)
FLAGS = {"--" + name.replace("_", "-") for name in run.__annotations__} | {"--help", "--seed"}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", path.read_text(encoding="utf-8"))
    assert [target for target in targets if not (path.parent / target).exists()] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_are_ours(path: Path) -> None:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    blocks = [text for language, text in fenced if language in ("", "sh", "bash")]
    for line in "\n".join(blocks).replace("\\\n", " ").splitlines():
        if "mocker-replay " not in line or line.startswith(("{", "#")):
            continue
        for part in re.split(r" [|] | > |;|&&", line):
            words = shlex.split(part, comments=True)
            if not words or not words[0].endswith("mocker-replay"):
                continue
            assert words[1] in VERBS or words[1].startswith("--"), line
            if words[1] == "run":
                flags = {
                    word.split("=")[0].replace("--no-enable", "--enable") for word in words if word.startswith("--")
                }
                assert flags <= FLAGS, line


def test_the_picture_is_a_picture() -> None:
    picture = ElementTree.parse(ROOT / "docs" / "summary.svg").getroot()
    assert picture.tag.endswith("svg")
    text = "".join(picture.itertext()).replace("\xa0", " ")
    assert "mocker-replay run traces/chat-shared-prefix.jsonl" in text
    assert "TTFT" in text
    assert not re.search(r"url\(.?http", (ROOT / "docs" / "summary.svg").read_text(encoding="utf-8"))
