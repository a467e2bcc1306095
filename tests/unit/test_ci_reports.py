"""JUnit XML and annotations of GitHub: whatever stands in a message, the reader gets it back."""

from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from mocker_replay.cli.ci_reports import Case, github_lines, junit

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def test_a_report_counts_its_cases() -> None:
    cases = [Case("one", "passed"), Case("two", "failed", "m", "t"), Case("three", "error", "m", "t")]
    root = ElementTree.fromstring(junit("suite", cases))
    suite = root.find("testsuite")
    assert suite is not None
    for element in (root, suite):
        assert (element.get("tests"), element.get("failures"), element.get("errors")) == ("3", "1", "1")
    assert [case.get("name") for case in suite] == ["one", "two", "three"]
    assert [[child.tag for child in case] for case in suite] == [[], ["failure"], ["error"]]


@given(texts, texts)
def test_a_report_is_xml_whatever_is_told(message: str, text: str) -> None:
    root = ElementTree.fromstring(junit(message, [Case(text, "failed", message, text)]))
    failure = root.find("testsuite/testcase/failure")
    assert failure is not None
    if message.isprintable():
        assert failure.get("message") == message
    if text.isprintable():
        assert failure.text == (text or None)


@given(texts, texts)
def test_an_annotation_is_one_line(message: str, name: str) -> None:
    line = github_lines("title", [Case("fine", "passed"), Case(name, "failed", message, file="a:b,c")])
    command, _, data = line.partition("::")[2].partition("::")
    assert line.count("\n") == 1
    assert "\r" not in line
    assert command.startswith("error file=a%3Ab%2Cc,title=title%3A ")
    decoded = data[:-1].replace("%0A", "\n").replace("%0D", "\r").replace("%25", "%")
    assert decoded == message
