"""The rules of the house that a machine can check: purity, layers, sizes, wide excepts, docstrings, names."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "torchloom"
SOURCES = sorted(PACKAGE.rglob("*.py"))
PURE = [path for room in ("core", "model", "wire") for path in sorted((PACKAGE / room).rglob("*.py"))]
EVERYTHING = sorted(p for room in ("src", "tests", "bench") for p in (ROOT / room).rglob("*.py"))

IMPURE = {
    *("asyncio", "datetime", "glob", "io", "logging", "multiprocessing", "nats", "os", "pathlib", "random"),
    *("secrets", "select", "shutil", "signal", "socket", "subprocess", "sys", "tempfile", "threading"),
    *("time", "torch", "uuid"),
}
IMPURE_CALLS = frozenset({"open", "print", "input", "exec", "eval", "hash", "id"})
"""`hash` differs between processes and `id` between objects: a decision that used them would not replay."""

SERVICE_TOPS = {
    "agent/observe/guarded.py": "a box is written inside the user's process: anything may be in it",
    "agent/commands.py": "an agent reports any failure of a command",
    "agent/tasks.py": "the top of each of the agent's tasks",
    "agent/health/health_watch.py": "a source of health may be anybody's plugin",
    "agent/health/source_process.py": "the top of a process that runs a source of health",
    "weaver/feed.py": "one bad event must not stop all jobs",
    "weaver/history.py": "a picture of the past must not end the service",
    "weaver/detection/loop.py": "a mistake in a detector must cost a verdict, not the control of all jobs",
    "data/shards/fetch.py": "a reader without an answer would wait for ever",
}
"""Files outside of the probe and the spawner that may swallow anything. Both of those run users' code."""

SUBJECT_SHELVES = ("api/routes", "api/schemas", "api/views", "cli", "client", "model", "weaver/requests")
"""A subject (jobs, incidents, …) has its records, route, body, view, request and verb under its name."""

ONE_MEANING = {
    "boxes": "black boxes, made by the spawner and read by the agent",
    "catalogue": "checkpoints of a job: the store's, and the agent's answers from it",
    "changes": "what a change changed: in the fleet (core), on this rank (probe)",
    "devices": "devices of a host (agent), and hangs on them (core)",
    "evidence": "requested by the weaver, collected by the agent",
    "joining": "process groups being made, as the probe shows it and as detectors see it",
    "launch": "each starts the processes of its room",
    "live": "what of this process is in use, for the probe to find",
    "loader": "data loaders: of any dataset, of shards",
    "overrides": "values that hold instead of the script's: their rules (core), their use (probe)",
    "reporting": "what each room reports to the others, and when",
    "restore": "going back to a state: requested in the core, done in the training process",
    "rollback": "going back while the processes keep running: by policy (core), in the process (checkpoint)",
    "stop": "ending a job: as an operation (core), by signals (agent)",
    "windows": "windows for detectors: of black boxes (agent), of Flight Recorder dumps (core)",
    "words": "pieces of sentences about a rank, from its box (agent) and from windows (core)",
}
"""Names that several modules outside of those shelves share because they are about one thing, and which."""

TOO_LONG = 400


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def imported(tree: ast.Module) -> Iterator[str]:
    """Every module imported anywhere in the file, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_core_imports_no_clock_no_chance_and_no_io() -> None:
    """Time passes as an argument, and outcomes of I/O come back as events."""
    found = {
        f"{name(path)}: {module}"
        for path in PURE
        for module in imported(tree_of(path))
        if module.split(".")[0] in IMPURE
    }
    assert not found


def test_the_core_calls_nothing_that_differs_from_run_to_run() -> None:
    found = {
        f"{name(path)}:{node.lineno}: {node.func.id}"
        for path in PURE
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS
    }
    assert not found


@pytest.mark.parametrize(
    ("room", "allowed"),
    [
        ("core", ("torchloom.core", "torchloom.model", "torchloom.errors")),
        ("wire", ("torchloom.wire", "torchloom.model", "torchloom.errors")),
        ("model", ("torchloom.model", "torchloom.errors")),
    ],
)
def test_pure_rooms_import_only_downward(room: str, allowed: tuple[str, ...]) -> None:
    for path in (PACKAGE / room).rglob("*.py"):
        ours = {m for m in imported(tree_of(path)) if m.split(".")[0] == "torchloom"}
        assert all(m.startswith(allowed) for m in ours), f"{name(path)}: {sorted(ours)}"


def test_the_black_box_needs_only_the_standard_library() -> None:
    """The probe imports it inside the user's process."""
    modules = {m.split(".")[0] for m in imported(tree_of(PACKAGE / "wire" / "blackbox.py"))}
    assert modules <= sys.stdlib_module_names


def test_the_contracts_of_import_linter_hold() -> None:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_tests_import_no_other_test() -> None:
    """What several tests need is in a module of its own, so that each of them can be read and moved alone."""
    tests = sorted((ROOT / "tests").rglob("*.py"))
    found = {name(path): [m for m in imported(tree_of(path)) if m.startswith("test_")] for path in tests}
    assert not {path: modules for path, modules in found.items() if modules}


def test_one_name_means_one_class() -> None:
    """Except in what is made from the API's description, and in the example, which is a user's script."""
    found: dict[str, list[str]] = {}
    for path in SOURCES:
        if path.relative_to(PACKAGE).parts[0] != "examples" and path != PACKAGE / "client" / "schema.py":
            for node in tree_of(path).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found.setdefault(node.name, []).append(name(path))
    assert not {word: paths for word, paths in found.items() if len(paths) > 1}


def test_one_name_means_one_module() -> None:
    found: dict[str, list[str]] = {}
    for path in SOURCES:
        shelf = path.relative_to(PACKAGE).parent.as_posix()
        of_a_subject = any(shelf == one or shelf.startswith(f"{one}/") for one in SUBJECT_SHELVES)
        if not path.stem.startswith("__") and not of_a_subject:
            found.setdefault(path.stem, []).append(name(path))
    several = {word: paths for word, paths in found.items() if len(paths) > 1}
    assert not {word: paths for word, paths in several.items() if word not in ONE_MEANING}
    assert ONE_MEANING.keys() <= several.keys(), "names that are unique now need no reason"


def test_every_package_has_a_map_that_names_its_modules() -> None:
    missing = {}
    for path in (path for path in SOURCES if path.name == "__init__.py" and path.parent != PACKAGE):
        said = ast.get_docstring(tree_of(path)) or ""
        books = [p.stem for p in path.parent.glob("*.py") if not p.stem.startswith("__")]
        books += [p.name for p in path.parent.iterdir() if (p / "__init__.py").exists()]
        lost = [book for book in books if not re.search(rf"\b{book.rstrip('s')}", said)]
        if len(books) > 2 and lost:
            missing[name(path)] = lost
    assert not missing


def test_long_files_say_why() -> None:
    found = []
    for path in [*SOURCES, *sorted((ROOT / "bench").rglob("*.py"))]:
        lines = len(path.read_text().splitlines())
        said = ast.get_docstring(tree_of(path)) or ""
        if lines > TOO_LONG and f"{TOO_LONG} lines" not in said:
            found.append(f"{name(path)} has {lines} lines and its docstring gives no reason")
    assert not found


def test_modules_say_what_they_own() -> None:
    silent = [name(p) for p in SOURCES if tree_of(p).body and not ast.get_docstring(tree_of(p))]
    assert silent == []


def test_no_file_is_named_after_nothing() -> None:
    empty_words = ("utils", "util", "common", "helpers", "helper", "constants", "misc", "manager")
    assert [name(p) for p in EVERYTHING if p.stem in empty_words] == []


def wide_handlers(path: Path) -> Iterator[ast.ExceptHandler]:
    """Handlers that catch anything and keep it: one that raises again at its end only cleans up."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ExceptHandler) and _is_wide(node.type) and not _raises_again(node):
            yield node


def _is_wide(kind: ast.expr | None) -> bool:
    if isinstance(kind, ast.Tuple):
        return any(_is_wide(element) for element in kind.elts)
    return kind is None or (isinstance(kind, ast.Name) and kind.id in ("Exception", "BaseException"))


def _raises_again(handler: ast.ExceptHandler) -> bool:
    return isinstance(handler.body[-1], ast.Raise)


def test_wide_excepts_stand_only_where_users_code_runs_and_at_the_top_of_services() -> None:
    misplaced, mute = [], []
    for path in SOURCES:
        relative = path.relative_to(PACKAGE)
        lines = path.read_text().splitlines()
        for handler in wide_handlers(path):
            where = f"{name(path)}:{handler.lineno}"
            if relative.parts[0] not in ("probe", "spawner") and str(relative) not in SERVICE_TOPS:
                misplaced.append(where)
            nearby = lines[max(0, handler.lineno - 2) : handler.lineno + 2]
            if not any("#" in line for line in nearby):
                mute.append(where)
    assert not misplaced, f"{misplaced} swallow anything: catch what you expect, or name a service's top here"
    assert not mute, f"{mute} do not say why they swallow anything"


def test_nobody_uses_asyncio_wait_for() -> None:
    """Before Python 3.12 it may swallow a cancellation; `asyncio.timeout` never does."""
    found = [
        f"{name(path)}:{node.lineno}"
        for path in SOURCES
        for node in ast.walk(tree_of(path))
        if (
            isinstance(node, ast.Attribute)
            and node.attr == "wait_for"
            and isinstance(node.value, ast.Name)
            and node.value.id == "asyncio"
        )
        or (
            isinstance(node, ast.ImportFrom)
            and node.module == "asyncio"
            and any(alias.name == "wait_for" for alias in node.names)
        )
    ]
    assert not found


def test_every_named_service_top_exists() -> None:
    assert [top for top in SERVICE_TOPS if not (PACKAGE / top).exists()] == []


def test_no_path_of_a_developers_machine_is_committed() -> None:
    pattern = re.compile(r"/(?:work/(?:main|shared)|tmp/brief)\b")
    here = Path(__file__).resolve()
    found = [name(p) for p in EVERYTHING if p != here and pattern.search(p.read_text())]
    assert found == []


def test_no_two_test_files_have_the_same_name() -> None:
    """pytest imports them by their base name, and one of two is then not run."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) > 100
    assert [name for name in set(names) if names.count(name) > 1] == []
