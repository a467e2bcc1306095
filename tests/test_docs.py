"""The documents: links lead somewhere, the picture is one, commands in code blocks are commands we have."""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mocker_replay.cli.app import VERBS
from mocker_replay.cli.command import command_of, subverb
from mocker_replay.cli.run import run

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("traces/*.md"), *ROOT.glob("examples/*.md")]
)
KNOWN = {*VERBS}
FLAGS = {"--" + name.replace("_", "-") for name in run.__annotations__} | {"--help", "--seed"}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", path.read_text(encoding="utf-8"))
    assert [target for target in targets if not (path.parent / target).exists()] == []


def shell_commands(line: str) -> Iterator[list[str]]:
    """Words of each command of a line, comments left out."""
    words = shlex.shlex(line, posix=True, punctuation_chars="|;&>")
    words.whitespace_split = True
    command: list[str] = []
    for word in words:
        if set(word) <= set("|;&>"):
            yield command
            command = []
        else:
            command.append(word)
    yield command


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_are_ours(path: Path) -> None:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    blocks = [text for language, text in fenced if language in ("", "sh", "bash")]
    for line in "\n".join(blocks).replace("\\\n", " ").splitlines():
        if "mocker-replay " not in line or line.startswith(("{", "#")):
            continue
        for words in shell_commands(line):
            if not words or not words[0].endswith("mocker-replay"):
                continue
            assert words[1] in KNOWN or words[1].startswith("--"), line
            if words[1] == "run":
                flags = {
                    word.split("=")[0].replace("--no-enable", "--enable") for word in words if word.startswith("--")
                }
                assert flags <= FLAGS, line


# -- what CI is told to run --------------------------------------------------------------------------

WORKFLOW = ROOT / "examples" / "github-actions.yml"


def ci_commands(text: str) -> Iterator[list[str]]:
    """Commands of ours in shell blocks and in steps of a workflow; a folded step goes on in lines with a flag."""
    text = re.sub(r"(?<=>-)\n +|\n +(?=--)", " ", text)
    for line in text.splitlines():
        found = re.match(r" *(?:- )?(?:run: )?(?:>- )?(mocker-replay .*)", line)
        if found:
            yield shlex.split(found.group(1), comments=True)[1:]


def parse(words: list[str]) -> None:
    """Have the verb's own parser read the words, and run nothing."""
    verb, *rest = words
    module = importlib.import_module(f"mocker_replay.cli.{verb}")
    if hasattr(module, "SUBVERBS"):
        assert rest[0] in module.SUBVERBS
        function, rest = subverb(module, rest[0]), rest[1:]
    else:
        function = getattr(module, verb)
    command_of(function, verb).make_context(verb, rest)


@pytest.mark.parametrize(("path", "number"), [("docs/ci.md", 8), ("examples/github-actions.yml", 2)])
def test_commands_for_ci_are_accepted(path: str, number: int) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    commands = list(ci_commands(text))
    assert len(commands) == number
    for words in commands:
        assert words[0] in KNOWN
        if words[0] in VERBS:
            parse(words)


def test_commands_that_are_wrong_are_refused() -> None:
    for wrong in (
        "golden check --junitt x.xml",
        "golden check --junit",
        "golden update",
        "golden record NAME a.jsonl b.jsonl",
    ):
        with pytest.raises(Exception, match=r"No such option|requires an argument|Missing parameter|unexpected extra"):
            parse(shlex.split(wrong))


def test_the_workflow_in_the_docs_is_the_example() -> None:
    text = WORKFLOW.read_text(encoding="utf-8")
    assert f"```yaml\n{text}```\n" in (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    assert re.findall(r"^  (\w+):\n    (?:if|runs-on)", text, re.MULTILINE) == ["goldens", "schedulers"]
    assert "\t" not in text
    assert all((len(line) - len(line.lstrip())) % 2 == 0 for line in text.splitlines())


def test_the_picture_is_a_picture() -> None:
    picture = ElementTree.parse(ROOT / "docs" / "summary.svg").getroot()
    assert picture.tag.endswith("svg")
    text = "".join(picture.itertext()).replace("\xa0", " ")
    assert "mocker-replay run traces/chat-shared-prefix.jsonl" in text
    assert "TTFT" in text
    assert not re.search(r"url\(.?http", (ROOT / "docs" / "summary.svg").read_text(encoding="utf-8"))
