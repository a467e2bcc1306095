"""The source itself: sizes, imports, who may read a clock, what must not be in a file."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import mocker_replay

ROOT = Path(__file__).resolve().parent.parent
SKIPPED = {".git", ".venv", ".venv-peer", "build", "dist", "__pycache__", ".hypothesis", ".mypy_cache", ".ruff_cache"}

LINE_LENGTH_MAX = 120
CYTHON_LINE_LENGTH_MAX = 160  # a .pxd has its field comments on one line
MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
# The signature of `run` is the list of its flags; its body is one line.
LONG_FUNCTIONS = {"mocker_replay/cli/run.py:run"}

CLOCK_READERS = {"mocker_replay/shells/clock.py", "mocker_replay/cli/progress.py"}
# A request whose caller gave no name gets one of its own; it reaches no log.
NAME_DRAWERS = {"mocker_replay/live/rank.py"}
# Packages from the foot upward; a module may import from those named here, from its own and from the foot.
MAY_IMPORT = {
    "trace": set(),
    "log": set(),
    "report": set(),
    "shells": set(),
    "live": {"shells"},
    "replay": {"trace", "log", "report", "shells", "live"},
    "golden": {"log", "report", "replay"},
    "compare": {"trace", "report", "replay"},
    "cli": {"trace", "log", "report", "shells", "live", "replay", "golden", "compare"},
    "pytest_items": set(),
    "pytest_plugin": {"pytest_items", "cli", "golden"},
}
FOOT = {"_core", "config", "engines", "errors", "outputs", "events", "identity", "policies", "__version__"}
USES_CORE = {"identity", "events", "engines", "policies"}  # of the foot
HEAVY = {"numpy", "rich", "typer", "click", "orjson", "zstandard"}

FORBIDDEN_TEXTS = re.compile(
    r"/roo[t]/|/home/\w|/wor[k]/|/tmp/\w|/opt/|\bFIXME\b|\bXXX\b|\bTODO\b|https?://(?:localhost|127\.|10\.|192\.168\.)"
)


def files(*patterns: str) -> list[Path]:
    found = {path for pattern in patterns for path in ROOT.glob(pattern)}
    return sorted(path for path in found if path.is_file() and not SKIPPED & set(path.relative_to(ROOT).parts))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


# The link mocker_replay/_core is not followed: _core is looked at under its own name.
PACKAGE = [path for path in files("mocker_replay/**/*.py") if "_core" not in path.parts]
PYTHON = [
    *PACKAGE,
    *files("tests/**/*.py", "*.py", "docs/*.py", "traces/*.py", "benchmarks/*.py", "examples/*.py", ".ci/*.py"),
]
CYTHON = files("_core/*.pyx", "_core/*.pxd")
TEXTS = [
    *PYTHON,
    *CYTHON,
    *files("_core/*.pyi", "_core/*.h", "*.md", "docs/*.md", "traces/*.md", "Makefile", ".ci/run", "*.toml"),
]


@pytest.mark.parametrize("path", [*PYTHON, *CYTHON], ids=name_of)
def test_lines_and_modules_are_short(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    limit = LINE_LENGTH_MAX if path.suffix == ".py" else CYTHON_LINE_LENGTH_MAX
    long = [f"{name_of(path)}:{number}" for number, line in enumerate(lines, 1) if len(line) > limit]
    assert not long
    assert len(lines) <= MODULE_LINES_MAX


@pytest.mark.parametrize("path", PYTHON, ids=name_of)
def test_functions_can_be_read_at_once(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = [
        f"{name_of(path)}:{node.name}"
        for node in functions
        if (node.end_lineno or node.lineno) - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert set(long) <= LONG_FUNCTIONS


@pytest.mark.parametrize("path", files("_core/*.pyx"), ids=name_of)
def test_functions_of_the_core_can_be_read_at_once(path: Path) -> None:
    long = [f"{name}: {length}" for name, length in cython_functions(path) if length > FUNCTION_LINES_MAX]
    assert not long


def cython_functions(path: Path) -> Iterator[tuple[str, int]]:
    """Name and lines of each function, from its first line to the last one that is indented deeper."""
    lines = path.read_text(encoding="utf-8").splitlines()
    for start, line in enumerate(lines):
        match = re.match(r"( *)(?:cdef|cpdef|def)\b(?!.*\bclass\b)[^=]*?(\w+)\(.*", line)
        if not match or not re.search(r"\)[^()]*:\s*(#.*)?$|\($|,$", line):
            continue
        indent, end = len(match.group(1)), start
        for number in range(start + 1, len(lines)):
            text = lines[number]
            if text.strip() and len(text) - len(text.lstrip()) <= indent and not text.lstrip().startswith(")"):
                break
            end = number if text.strip() else end
        yield match.group(2), end - start + 1


def test_the_check_of_the_core_s_functions_can_fail(tmp_path: Path) -> None:
    path = tmp_path / "long.pyx"
    body = "    x = 1\n" * 80
    path.write_text(
        f"cdef int f(int x) noexcept nogil:\n{body}    return x\n\ncdef class A:\n    def g(self):\n        pass\n"
    )
    assert list(cython_functions(path)) == [("f", 82), ("g", 2)]


@pytest.mark.parametrize("path", PACKAGE, ids=name_of)
def test_imports_run_downward(path: Path) -> None:
    parts = path.relative_to(ROOT / "mocker_replay").with_suffix("").parts
    own = parts[0]
    for module, at_top in imports(path):
        if not module.startswith("mocker_replay."):
            continue
        wanted = module.split(".")[1]
        if own in MAY_IMPORT:
            assert wanted == own or wanted in FOOT | MAY_IMPORT[own], f"{name_of(path)} imports {module}"
        elif own not in ("__init__", "__main__"):
            assert wanted in FOOT, f"{name_of(path)} stands at the foot and imports {module}"
            assert wanted != "_core" or own in USES_CORE, f"{name_of(path)} imports {module}"
        assert own != "__init__" or not at_top, "importing the package must stay light"


@pytest.mark.parametrize("path", files("_core/*.pyx", "_core/*.pxd", "_core/*.py"), ids=name_of)
def test_the_core_imports_nothing_from_the_package(path: Path) -> None:
    found = re.findall(
        r"^\s*(?:from|c?import)\s+mocker_replay\.(?!_core\b)\S+", path.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert not found


@pytest.mark.parametrize(
    "path", files("mocker_replay/__init__.py", "mocker_replay/cli/*.py", "mocker_replay/config/*.py"), ids=name_of
)
def test_light_modules_import_nothing_heavy(path: Path) -> None:
    """`--help` reads app and console; the flags of a verb need Typer and no more."""
    allowed = set() if path.stem in ("__init__", "app", "console") or path.parent.name == "config" else {"typer"}
    top = {module.split(".")[0] for module, at_top in imports(path) if at_top}
    assert not top & HEAVY - allowed


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Each imported module, and whether it comes with the module itself: not in a function, not for types only."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    top = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}: relative import"
            yield node.module or "", id(node) in top
            yield from (
                (f"{node.module}.{alias.name}", id(node) in top)
                for alias in node.names
                if node.module == "mocker_replay"
            )
        elif isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in top) for alias in node.names)


@pytest.mark.parametrize("path", PACKAGE, ids=name_of)
def test_nothing_reads_a_clock_or_draws_at_random(path: Path) -> None:
    found = {module.split(".")[0] for module, _ in imports(path)} & {"time", "datetime", "random", "secrets", "uuid"}
    allowed = {"time"} if name_of(path) in CLOCK_READERS else set()
    if path.stem == "identity" or name_of(path).startswith("mocker_replay/live/"):
        allowed |= {"uuid"}  # names made from names, or given by callers
    assert found <= allowed
    text = path.read_text(encoding="utf-8")
    if name_of(path) in NAME_DRAWERS:
        text = text.replace("uuid.uuid4()", "", 1)
    assert not re.search(r"\buuid[14]\(|default_rng\(\)|os\.urandom|np\.random\.(?!Generator)", text)


@pytest.mark.parametrize("path", PYTHON, ids=name_of)
def test_no_commented_out_code(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    code = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and looks_like_code(token.string.lstrip("# ")):
            code.append(f"{name_of(path)}:{token.start[0]}: {token.string}")
    assert not code


def looks_like_code(text: str) -> bool:
    """A statement, not words that happen to parse: words have no call, assignment or block."""
    if re.match(r"(type|noqa|fmt|ruff|mypy|pragma)\b:?", text):
        return False
    try:
        statements = ast.parse(text).body
    except SyntaxError:
        return bool(re.match(r"(if|for|while|def|class|with|try|elif|else)\b.*:$", text))
    kinds = ast.AugAssign | ast.Import | ast.ImportFrom | ast.Return | ast.Raise | ast.Assert | ast.Delete
    if any(isinstance(s, ast.Assign) and not isinstance(s.value, ast.Name | ast.Constant) for s in statements):
        return True
    return any(
        isinstance(s, kinds) or (isinstance(s, ast.Expr) and isinstance(s.value, ast.Call | ast.Await))
        for s in statements
    )


def test_the_check_for_code_can_fail() -> None:
    assert looks_like_code("x = f(y)")
    assert looks_like_code("print(x)")
    assert looks_like_code("if x > 3:")
    assert not looks_like_code("a block is freed before it is asked for")
    assert not looks_like_code("type: ignore[arg-type]")


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_no_machine_paths_and_no_leftovers(path: Path) -> None:
    if path == Path(__file__).resolve():
        return
    text = path.read_text(encoding="utf-8")
    found = [
        f"{name_of(path)}:{text[: m.start()].count(chr(10)) + 1}: {m.group()}" for m in FORBIDDEN_TEXTS.finditer(text)
    ]
    assert not found
    assert "\t" not in text or path.name == "Makefile"
    assert "\r" not in text
    assert not text or text.endswith("\n")
    assert not re.search(r"[ \t]+$", text, re.MULTILINE) or path.suffix == ".md"


@pytest.mark.parametrize("path", files("_core/*.pyx"), ids=name_of)
def test_every_module_of_the_core_has_a_stub(path: Path) -> None:
    assert path.with_suffix(".pyi").is_file()


@pytest.mark.parametrize("path", PACKAGE, ids=name_of)
def test_every_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


def test_no_module_is_a_drawer() -> None:
    assert not [name_of(path) for path in PYTHON if path.stem in ("utils", "util", "helpers", "common", "misc")]


def test_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == mocker_replay.__version__
    assert f"## [{project['version']}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_generated_files_are_not_committed() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    assert not [name for name in listed.stdout.splitlines() if name.endswith((".c", ".so", ".pyc", ".egg-info"))]
