"""A golden as pytest collects it where it is named on the command line, or its folder: no test is needed.

Decides what the item is called and where it is; how it is checked is told by the plug-in.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

Check = Callable[[], None]  # fails where the golden is not the same


class GoldenItem(pytest.Item):
    """The one item of a golden; it has its name."""

    def __init__(self, *, check: Check, **node: Any) -> None:
        super().__init__(**node)
        self._check = check

    def runtest(self) -> None:
        __tracebackhide__ = True
        self._check()

    def reportinfo(self) -> tuple[os.PathLike[str], int | None, str]:
        return self.path, None, f"golden {self.name}"


class GoldenFile(pytest.File):
    """The manifest of a golden."""

    def __init__(self, *, check: Check, **node: Any) -> None:
        super().__init__(**node)
        self._check = check

    def collect(self) -> Iterator[GoldenItem]:
        yield GoldenItem.from_parent(self, name=self.path.parent.name, check=self._check)
