"""Which packages a spawner may import for a job: every trace that would not survive a fork is found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from torchloom.agent.processes.learned_spawners import FEWEST_MODULES, recipe_of
from torchloom.agent.processes.recipe import Recipe
from torchloom.probe.observe.import_report import changed, installed
from torchloom.spawner import learned_imports

RUN = """
import json, sys
from pathlib import Path
from torchloom.spawner.learned_imports import Descriptors, import_learned, read_list
done = import_learned(read_list(Path(sys.argv[1])), Descriptors())
print(json.dumps([done.unsafe, done.why, done.imported, done.failed]))
"""


def learn(tmp_path: Path, packages: dict[str, str], **told: object) -> list[object]:
    """What a fresh process says after it was told to import these packages."""
    for name, source in packages.items():
        (tmp_path / f"{name}.py").write_text(source)
    record = tmp_path / "list.json"
    record.write_text(json.dumps({"modules": list(packages)} | told))
    env = {k: v for k, v in os.environ.items() if k not in learned_imports.PER_WORKER}
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *filter(None, [env.get("PYTHONPATH")])])
    command = [sys.executable, "-c", RUN, str(record)]
    out = subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=120).stdout
    found: list[object] = json.loads(out)
    return found


THREAD = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
CHILD = "import atexit, subprocess\nkept = subprocess.Popen(['sleep', '60'])\natexit.register(kept.kill)"
DEVICES = "import os; seen = os.getenv('CUDA_VISIBLE_DEVICES')"
UNSAFE = {
    "it starts a thread": THREAD,
    "it leaves a descriptor open": "kept = open('/dev/null')",
    "it installs a signal handler": "import signal; signal.signal(signal.SIGTERM, lambda *_: None)",
    "it starts a process": CHILD,
    "it maps shared memory": "import multiprocessing; kept = multiprocessing.RLock()",
    "bad reads RANK when it is imported": "import os; rank = int(os.environ.get('RANK', 0))",
    "bad reads LOCAL_RANK when it is imported": "import os; first = 'LOCAL_RANK' in os.environ",
    "bad reads CUDA_VISIBLE_DEVICES when it is imported": DEVICES,
}


@pytest.mark.parametrize("why", UNSAFE)
def test_what_would_not_survive_a_fork_is_found_and_named(tmp_path: Path, why: str) -> None:
    unsafe, said, _, _ = learn(tmp_path, {"good": "", "bad": UNSAFE[why], "later": ""})
    assert (unsafe, said) == ("bad", why)


def test_a_package_that_was_refused_is_left_out(tmp_path: Path) -> None:
    packages = {"good": "", "bad": UNSAFE["it starts a thread"], "later": "", "broken": "raise SystemExit(3)"}
    assert learn(tmp_path, packages, refused=["bad"]) == ["", "", 2, 1]


def test_who_imports_a_refused_reader_all_the_same_is_refused_too(tmp_path: Path) -> None:
    packages = {"outer": "import bad", "bad": UNSAFE["bad reads RANK when it is imported"]}
    assert learn(tmp_path, packages)[0] == "bad"
    assert learn(tmp_path, packages, refused=["bad"])[0] == "outer"


def test_a_variable_that_the_script_sets_must_not_have_been_read(tmp_path: Path) -> None:
    reads = {"offline": "import os; offline = os.environ.get('HUB_OFFLINE')"}
    assert learn(tmp_path, reads) == ["", "", 1, 0]
    assert learn(tmp_path, reads, changed=["HUB_OFFLINE"])[0] == "offline"
    # One that the package sets itself is the same in a worker, and looking through all of them reads none.
    sets = {"own": "import os\nos.environ['MARK'] = '1'\nos.environ['MARK']\nlist(os.environ.items())"}
    assert learn(tmp_path, sets, changed=["MARK", "PATH"]) == ["", "", 1, 0]


def test_ranks_that_lightning_kept_are_set_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for holder in ("lightning_utilities.core.rank_zero", "torchmetrics.utilities.prints"):
        module = ModuleType(holder)
        module.rank_zero_only = lambda: None  # type: ignore[attr-defined]
        module.rank_zero_only.rank = 0  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, holder, module)
    learned_imports.repair({"RANK": "5", "LOCAL_RANK": "1"})
    ranks = [sys.modules[holder].rank_zero_only.rank for holder, _ in learned_imports.REPAIRS.values()]
    assert ranks == [5, 1]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"modules": 3}'])
def test_a_damaged_record_has_learned_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "list.json"
    path.write_text(text)
    assert learned_imports.read_list(path).modules == ()
    assert recipe_of(path, Recipe("python", {}, (), False)) is None


def test_another_list_needs_another_spawner_and_a_short_one_none(tmp_path: Path) -> None:
    plain = Recipe("python", {"A": "1"}, (), False)
    path = tmp_path / "list.json"
    keys = {plain.key}
    for count in (FEWEST_MODULES - 1, FEWEST_MODULES, FEWEST_MODULES + 1):
        path.write_text(json.dumps({"modules": [f"m{n}" for n in range(count)]}))
        made = recipe_of(path, plain)
        assert (made is None) == (count < FEWEST_MODULES)
        keys |= {made.key} if made else set()
    assert len(keys) == 3


def test_only_installed_modules_are_reported_and_in_their_order(tmp_path: Path) -> None:
    from importlib.machinery import ModuleSpec

    def module(name: str, origin: str | None) -> ModuleType:
        made = ModuleType(name)
        made.__spec__ = ModuleSpec(name, None, origin=origin)
        return made

    modules: dict[str, ModuleType | None] = {
        "known": module("known", "/venv/site-packages/known.py"),
        "b": module("b", "/venv/lib/python3.11/site-packages/b/__init__.py"),
        "mine": module("mine", "/home/me/mine.py"),
        "json": module("json", "/usr/lib/python3.11/json/__init__.py"),
        "a": module("a", "/usr/lib/python3/dist-packages/a.py"),
        "alias": module("b", "/venv/lib/python3.11/site-packages/b/__init__.py"),
        "torchloom.x": module("torchloom.x", "/venv/site-packages/torchloom/x.py"),
        "torchloom.integrations.x": module("torchloom.integrations.x", "/checkout/x.py"),
        "nothing": None,
        "built": module("built", None),
    }
    assert installed({"known"}, modules) == ["b", "a", "torchloom.integrations.x"]
    assert changed({"A": "1", "B": "2", "C": "3"}, {"A": "1", "B": "x", "D": "4"}) == {"B", "C", "D"}
