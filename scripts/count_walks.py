"""Count the modules that somebody has to read to follow two things through the code, by running them.

    .venv/bin/python scripts/count_walks.py [TREE]

crash → first step: the recording of a killed worker is replayed, and the modules whose functions run
in the core from the exit to the first step of the next generation are counted.
set lr → optimizer: two tests, one of the core (request, mail, answers, outcome) and one of the probe (mail,
transaction, optimizer), with the same count.

TREE is a checkout of another commit, to compare with; its own tests and recording are used.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType

import pytest

CHANGE = (
    "test_a_change_goes_through_its_phases_and_is_told_with_its_step",
    "test_a_world_of_one_decides_alone",
)
RECORDING = "tests/replay/recordings/killed-worker.jsonl"


class Walk:
    """Modules of torchloom whose functions were called while it was on."""

    def __init__(self, source: Path) -> None:
        self._source = f"{source}{os.sep}"
        self.modules: set[str] = set()

    def _called(self, frame: FrameType, event: str, _arg: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(self._source):
            self.modules.add(code.co_filename.removeprefix(self._source))

    def on(self) -> None:
        sys.setprofile(self._called)

    def off(self) -> None:
        sys.setprofile(None)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> object:
        self.on()
        try:
            return (yield)
        finally:
            self.off()


def crash(tree: Path, walk: Walk) -> None:
    import msgspec

    from torchloom.model.events import Envelope, FirstStep, WorkerExited
    from torchloom.model.fleet import Fleet

    try:
        from torchloom.core.changes import apply_and_compare
        from torchloom.core.notices import notice_of

        def follow(fleet: Fleet, envelope: Envelope, seq: int, at_ns: int) -> None:
            change = apply_and_compare(fleet, envelope, seq, at_ns)
            if change is not None:
                notice_of(change)

    except ImportError:  # a tree from before changes and notices were divided
        from torchloom.core.notices import apply_and_tell as follow  # type: ignore[no-redef]

    fleet, ended = Fleet(), False
    for line in (tree / RECORDING).read_text().splitlines():
        record = json.loads(line)
        envelope = msgspec.convert(record["envelope"], Envelope)
        ended = ended or isinstance(envelope.body, WorkerExited)
        if ended:
            walk.on()
        follow(fleet, envelope, record["seq"], record["at_ns"])
        walk.off()
        if ended and isinstance(envelope.body, FirstStep):
            return
    raise SystemExit(f"{RECORDING} has no first step after an exit")


def change(tree: Path, walk: Walk) -> None:
    files = [
        str(path)
        for path in sorted((tree / "tests/unit").rglob("test_*.py"))
        if any(f"def {name}(" in path.read_text() for name in CHANGE)
    ]
    with tempfile.TemporaryDirectory() as scratch:
        options = ["-q", "-p", "no:cacheprovider", "--rootdir", str(tree), "--basetemp", f"{scratch}/tests"]
        code = pytest.main([*options, "-k", " or ".join(CHANGE), *files], plugins=[walk])
    if code != 0:
        raise SystemExit(f"the tests of a change failed ({code})")


def main() -> None:
    if len(sys.argv) == 3:
        name, tree = sys.argv[1], Path(sys.argv[2])
        walk = Walk(tree / "src/torchloom")
        {"crash": crash, "change": change}[name](tree, walk)
        print("\nmodules:", *sorted(walk.modules))
        return
    tree = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1]).resolve()
    for name, title in (("crash", "crash → first step"), ("change", "set lr → optimizer")):
        run = subprocess.run(
            [sys.executable, __file__, name, str(tree)],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(tree / "src")},
            capture_output=True,
            text=True,
        )
        if run.returncode:
            raise SystemExit(run.stdout + run.stderr)
        modules = run.stdout.rpartition("modules: ")[2].split()
        print(f"{title}: {len(modules)} modules", *modules, sep="\n  ")


main()
