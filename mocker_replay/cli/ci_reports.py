"""What CI reads: JUnit XML, and annotations of GitHub Actions.

Decides their form only. Nothing in them depends on a clock or on the machine, so the same findings give the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal
from xml.sax.saxutils import escape, quoteattr

from msgspec import Struct

# Characters that no XML document may hold, not even escaped.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Case(Struct, frozen=True):
    """One thing that was checked."""

    name: str
    status: Literal["passed", "failed", "error"]  # error: it could not be checked
    message: str = ""  # one line
    text: str = ""  # all that is known
    file: str | None = None  # where an annotation is shown


def junit(suite: str, cases: Sequence[Case]) -> bytes:
    """A JUnit report with one suite."""
    failures = sum(case.status == "failed" for case in cases)
    errors = sum(case.status == "error" for case in cases)
    counts = f'tests="{len(cases)}" failures="{failures}" errors="{errors}"'
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', f"<testsuites {counts}>"]
    lines.append(f"  <testsuite name={_attribute(suite)} {counts}>")
    for case in cases:
        opening = f"    <testcase classname={_attribute(suite)} name={_attribute(case.name)}"
        if case.status == "passed":
            lines.append(f"{opening}/>")
            continue
        element = "failure" if case.status == "failed" else "error"
        body = f"<{element} message={_attribute(case.message)}>{escape(_xml(case.text))}</{element}>"
        lines += [f"{opening}>", f"      {body}", "    </testcase>"]
    lines += ["  </testsuite>", "</testsuites>", ""]
    return "\n".join(lines).encode()


def write_junit(path: str, suite: str, cases: Sequence[Case]) -> None:
    """Write the report.

    Raises:
        OutputError: the file cannot be written.
    """
    from mocker_replay.outputs import open_output

    with open_output(path) as output:
        output.write(junit(suite, cases))


def github_lines(title: str, cases: Sequence[Case]) -> str:
    """One `::error` line for each case that did not pass; nothing where all did."""
    lines = []
    for case in cases:
        if case.status != "passed":
            place = f"file={_property(case.file)}," if case.file else ""
            lines.append(f"::error {place}title={_property(f'{title}: {case.name}')}::{_data(case.message)}\n")
    return "".join(lines)


def _attribute(text: str) -> str:
    return quoteattr(_xml(text), {"\n": "&#10;", "\t": "&#9;"})


def _xml(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)


def _data(text: str) -> str:
    """As the runner decodes it: a line ends at its line break. A path need not be Unicode."""
    text = text.encode(errors="backslashreplace").decode()
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
