"""The probe in real processes: the script runs as under python, and the black box tells what it did."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from torchloom.wire.blackbox import (
    ANSWER_AT,
    DEVICE,
    END,
    HYPERPARAMETERS,
    IDENTITY,
    LAYOUT_VERSION,
    MAGIC,
    MAILBOX_AT,
    METRICS,
    PHASE_NAME,
    SIZE,
    Command,
    Header,
    Life,
    Mailbox,
    Phase,
    Progress,
    View,
)

SCRIPTS = Path(__file__).parent / "probe"
SOURCES = str(Path(__file__).parents[2] / "src")
ENVIRONMENT = {**os.environ, "PYTHONPATH": SOURCES, "LOOM_RECORDER": "none"}


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


def new_box(path: Path) -> View:
    """A box as the spawner makes it."""
    path.write_bytes(bytes(SIZE))
    with path.open("r+b") as file:
        view = View(memoryview(mmap.mmap(file.fileno(), SIZE)))
    view.set_header(Header.MAGIC, MAGIC)
    view.set_header(Header.LAYOUT, LAYOUT_VERSION)
    view.set_header(Header.SIZE, SIZE)
    view.set_header(Header.RANK, 1)
    view.set_header(Header.LIFE, Life.CREATED)
    view.write_blob(IDENTITY, json.dumps({"job": "j1", "replica": "j1/0"}).encode())
    return view


def blob(view: View, which: Any) -> Any:
    return json.loads(view.read_blob(which) or b"null")


def plain_python(*arguments: str, cwd: Path = SCRIPTS) -> Outcome:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def cold(spec: dict[str, Any], cwd: Path = SCRIPTS, **variables: str) -> Outcome:
    reader, writer = os.pipe()
    os.write(writer, json.dumps(spec).encode())
    os.close(writer)
    done = subprocess.run(
        [sys.executable, "-m", "torchloom.probe.launch"],
        cwd=cwd,
        env={**ENVIRONMENT, **variables, "LOOM_SPEC_FD": str(reader)},
        pass_fds=[reader],
        capture_output=True,
        text=True,
        check=False,
    )
    os.close(reader)
    return Outcome(done.returncode, done.stdout, done.stderr)


class Warm:
    """The process that has torch imported and forks a worker for every order."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._count = 0
        self.process = subprocess.Popen(
            [sys.executable, "-m", "warm"],
            cwd=SCRIPTS,
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def order(self, spec: dict[str, Any], cwd: Path = SCRIPTS, **variables: str) -> tuple[Path, Path]:
        """Start a worker; `outcome` waits for it."""
        self._count += 1
        out, err = (self._directory / f"{self._count}.{name}" for name in ("out", "err"))
        order = {"spec": spec, "cwd": str(cwd), "out": str(out), "err": str(err), "env": variables}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return out, err

    def outcome(self, logs: tuple[Path, Path]) -> Outcome:
        assert self.process.stdout is not None
        code = int(self.process.stdout.readline())
        return Outcome(code, *(log.read_text() for log in logs))

    def __call__(self, spec: dict[str, Any], cwd: Path = SCRIPTS, **variables: str) -> Outcome:
        return self.outcome(self.order(spec, cwd, **variables))


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    forker = Warm(tmp_path_factory.mktemp("warm"))
    yield forker
    assert forker.process.stdin is not None and forker.process.stdout is not None
    forker.process.stdin.close()
    forker.process.wait(timeout=30)
    forker.process.stdout.close()


@pytest.fixture
def box(tmp_path: Path) -> Path:
    return tmp_path / "box"


# -- the script runs as under python ---------------------------------------------------------------
ENDS = [
    "last line",
    "code 0",
    "code 3",
    "code 259",
    "message",
    "exception",
    "chained",
    "os._exit",
    "SIGTERM",
    "interrupted",
    "late thread",
    "own excepthook",
    "forked child",
    "looks",
]


@pytest.mark.parametrize("end", ENDS)
def test_an_end_is_the_same_as_under_python(end: str, box: Path, warm: Warm) -> None:
    expected = plain_python("ends.py", end)
    new_box(box)
    spec = {"script": "ends.py", "argv": [end], "box": str(box)}
    assert cold(spec) == expected
    if end != "looks":  # sys.path and file descriptors of the miniature spawner are its own
        new_box(box)
        assert warm(spec) == expected


@pytest.mark.parametrize(
    ("files", "arguments"),
    [
        ({"bad.py": "x = (\n"}, ["bad.py"]),
        ({"latin.py": "# -*- coding: latin-1 -*-\nprint('caf\\xe9')\n"}, ["latin.py"]),
        ({}, ["missing.py"]),
        ({}, ["./sub/../missing.py"]),
        ({"app/__main__.py": "import sys; print(sys.argv, sys.path[0], __spec__.name)"}, ["app", "x"]),
        ({"app/other.py": ""}, ["app"]),
        ({"sub/real.py": "import sys; print(__file__, sys.path[0], sys.argv)"}, ["./sub/../sub/real.py"]),
        ({"m.py": "import sys; print(__spec__.name, sys.argv, sys.path[0])"}, ["-m", "m", "-x"]),
        ({}, ["-m", "nothing.here"]),
        ({"m.py": "1/0"}, ["-m", "m"]),
        ({"f.py": "from __future__ import annotations\nx: nonsense = 1\nprint(__annotations__)"}, ["f.py"]),
    ],
)
def test_odd_programs_behave_as_under_python(
    files: dict[str, str], arguments: list[str], tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="latin-1")
    if arguments[0] == "-m":
        spec: dict[str, Any] = {"module": arguments[1], "argv": arguments[2:]}
    else:
        spec = {"script": arguments[0], "argv": arguments[1:]}
    assert cold(spec, tmp_path) == plain_python(*arguments, cwd=tmp_path)


def test_a_script_behind_a_link_finds_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "neighbour.py").write_text("print('here')")
    (tmp_path / "real" / "script.py").write_text("import neighbour, sys; print(__file__, sys.path[0])")
    (tmp_path / "link.py").symlink_to("real/script.py")
    expected = plain_python("link.py", cwd=tmp_path)
    assert expected.out.startswith("here")
    assert cold({"script": "link.py", "argv": []}, tmp_path) == expected


def test_relative_imports_work_in_a_module(warm: Warm) -> None:
    for arguments in (["x"], ["fail"]):
        expected = plain_python("-m", "package", *arguments)
        spec = {"module": "package", "argv": arguments}
        assert cold(spec) == expected
        assert warm(spec) == expected


@pytest.mark.parametrize("method", ["spawned", "forked"])
def test_data_workers_find_the_main_module(method: str, box: Path, warm: Warm) -> None:
    view = new_box(box)
    outcome = warm({"script": "loaders.py", "argv": [method], "box": str(box)})
    assert outcome == (0, "", "")
    assert view.progress(Progress.STEPS) == (2 if method == "spawned" else 4)


def test_an_error_inside_a_data_loader_shows_no_frame_of_ours(box: Path, warm: Warm) -> None:
    new_box(box)
    outcome = warm({"script": "loaders.py", "argv": ["broken"], "box": str(box)})
    assert outcome == plain_python("loaders.py", "broken")


# -- the end record --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("end", "how", "code", "exception"),
    [
        ("last line", "exit", 0, None),
        ("code 3", "exit", 3, None),
        ("message", "exit", 1, None),
        ("exception", "exception", 1, "KeyError"),
        ("interrupted", "signal", 130, "KeyboardInterrupt"),
        ("forked child", "exit", 0, None),
    ],
)
def test_the_end_is_recorded(end: str, how: str, code: int, exception: str | None, box: Path) -> None:
    view = new_box(box)
    cold({"script": "ends.py", "argv": [end], "box": str(box)})
    record = blob(view, END)
    assert (record["how"], record["code"], record["exception"]) == (how, code, exception)
    assert view.header(Header.LIFE) == Life.ENDED
    assert view.progress(Progress.PHASE) == Phase.ENDING
    if exception == "KeyError":
        assert "in boom" in record["traceback"] and "torchloom" not in record["traceback"]


def test_a_process_that_ends_without_us_leaves_no_end_record(box: Path) -> None:
    view = new_box(box)
    assert cold({"script": "ends.py", "argv": ["os._exit"], "box": str(box)}).code == 7
    assert view.read_blob(END) == b""
    assert view.header(Header.LIFE) == Life.RUNNING
    assert view.header(Header.PID) > 0 and view.header(Header.START_TICKS) > 0


@pytest.mark.parametrize("damage", ["missing", "empty", "short", "magic", "layout", "directory", "link"])
def test_without_a_good_box_the_script_runs_all_the_same(damage: str, box: Path) -> None:
    match damage:
        case "empty":
            box.touch()
        case "short":
            box.write_bytes(bytes(4096))
        case "magic":
            new_box(box).set_header(Header.MAGIC, 1)
        case "layout":
            new_box(box).set_header(Header.LAYOUT, 99)
        case "directory":
            box.mkdir()
        case "link":
            new_box(box.with_name("elsewhere"))
            box.symlink_to("elsewhere")
    assert cold({"script": "ends.py", "argv": ["last line"], "box": str(box)}) == (0, "done\n", "")


# -- what is counted -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("scenario", "steps", "others", "optimizers"),
    [
        ("plain", 5, 0, 1),
        ("accumulation", 3, 0, 1),
        ("zero", 4, 0, 1),
        ("nested_in_a_subclass", 3, 0, 1),
        ("two", 10, 2, 2),
        ("grad_scaler", 4, 0, 1),
        ("lbfgs", 2, 0, 1),
        ("a_step_that_raises", 1, 4, 2),
        ("anchor_collected", 4, 0, 1),
        ("replaced_arguments", 3, 0, 1),
        ("threads", 301, 300, 2),
        ("fork", 2, 0, 1),
    ],
)
def test_steps_are_the_anchors_outermost(
    scenario: str, steps: int, others: int, optimizers: int, box: Path, warm: Warm
) -> None:
    view = new_box(box)
    outcome = warm({"script": "optimizers.py", "argv": [scenario], "box": str(box)})
    assert (outcome.code, outcome.err) == (0, "")
    assert view.progress(Progress.STEPS) == steps
    assert view.progress(Progress.OTHER_STEPS) == others
    assert view.progress(Progress.OPTIMIZERS) == optimizers
    assert view.progress(Progress.GUARD_TRIPS) == 0
    records = list(view.steps())
    assert [record.seq for record in records] == list(range(max(1, steps - 255), steps + 1))
    assert all(a.ended_ns < b.ended_ns and b.step_ns > 0 for a, b in pairwise(records))
    assert view.progress(Progress.STEP_ENDED_NS) == records[-1].ended_ns


def test_a_cold_worker_gets_its_hooks_when_torch_arrives(box: Path) -> None:
    view = new_box(box)
    outcome = cold({"script": "optimizers.py", "argv": ["plain"], "box": str(box)})
    assert outcome == (0, "", "")
    assert view.progress(Progress.STEPS) == 5
    assert view.progress(Progress.GUARD_TRIPS) == 0
    assert view.progress(Progress.FIRST_STEP_NS) > view.header(Header.MONOTONIC_NS)
    assert blob(view, DEVICE) == {"kind": "cpu", "cores": sorted(os.sched_getaffinity(0))}


@pytest.mark.parametrize(
    ("scenario", "naps"), [("single", 8), ("forked", 1), ("nested", 16), ("prefetching_thread", 0)]
)
def test_data_wait_is_the_outermost_on_the_training_thread(
    scenario: str, naps: int, box: Path, warm: Warm
) -> None:
    view = new_box(box)
    outcome = warm({"script": "loaders.py", "argv": [scenario], "box": str(box)})
    assert outcome == (0, "", "")
    waited_s = view.progress(Progress.DATA_WAIT_NS) / 1e9
    assert waited_s >= naps * 0.02
    life_s = (blob(view, END)["at_ns"] - view.header(Header.MONOTONIC_NS)) / 1e9
    assert waited_s <= life_s - (0.16 if scenario == "prefetching_thread" else 0)
    in_steps_s = sum(step.data_wait_ns for step in view.steps()) / 1e9
    assert 0 < in_steps_s <= waited_s


def test_hyperparameters_follow_the_schedule(box: Path, warm: Warm) -> None:
    view = new_box(box)
    outcome = warm({"script": "optimizers.py", "argv": ["scheduler"], "box": str(box)})
    assert outcome == (0, "[0.5, 0.25]\n[0.25, 0.125]\n[0.125, 0.0625]\n", "")
    told = blob(view, HYPERPARAMETERS)
    (optimizer,) = told["optimizers"]
    assert optimizer["name"] == "SGD" and optimizer["anchor"]
    assert [group["lr"] for group in optimizer["groups"]] == [0.125, 0.0625]
    assert [group["parameters"] for group in optimizer["groups"]] == [1, 1]


def test_hyperparameters_stay_within_their_place(box: Path, warm: Warm) -> None:
    view = new_box(box)
    assert warm({"script": "optimizers.py", "argv": ["many_groups"], "box": str(box)}).code == 0
    told = blob(view, HYPERPARAMETERS)
    kept = len(told["optimizers"][0]["groups"])
    assert kept > 10 and kept + told["left_out"] == 500
    assert view.progress(Progress.GUARD_TRIPS) == 0


def test_a_compiled_step_works_and_counts_where_the_graph_breaks_anyway(box: Path, warm: Warm) -> None:
    view = new_box(box)
    outcome = warm({"script": "optimizers.py", "argv": ["compiled"], "box": str(box)})
    assert (outcome.code, outcome.out) == (0, ""), outcome.err
    assert view.progress(Progress.STEPS) == 4
    assert view.progress(Progress.OTHER_STEPS) == 0
    assert view.progress(Progress.GUARD_TRIPS) == 0


def test_compiling_is_a_phase_of_its_own(box: Path, warm: Warm) -> None:
    new_box(box)
    spec = {"script": "optimizers.py", "argv": ["compiling"], "box": str(box)}
    phases = [
        Phase.STARTING,
        Phase.COMPILING,
        Phase.STARTING,
        Phase.TRAINING,
        Phase.COMPILING,
        Phase.TRAINING,
    ]
    expected = (0, "".join(f"{phase:d}\n" for phase in phases), "")
    assert warm(spec) == expected
    new_box(box)
    assert cold(spec) == expected


# -- the boundary ----------------------------------------------------------------------------------
@pytest.mark.parametrize(("at_step", "completed"), [(4, 3), (1, 0), (0, 0)])
def test_stop_ends_the_script_before_the_named_step(
    at_step: int, completed: int, box: Path, warm: Warm
) -> None:
    view = new_box(box)
    view.words[MAILBOX_AT // 8 + Mailbox.COMMAND] = Command.STOP
    view.words[MAILBOX_AT // 8 + Mailbox.AT_STEP] = at_step
    view.words[MAILBOX_AT // 8 + Mailbox.VERSION] = 7
    outcome = warm({"script": "optimizers.py", "argv": ["stop"], "box": str(box)})
    assert outcome == (0, "".join(f"{n}\n" for n in range(1, completed + 1)) + "cleaned up\n", "")
    assert list(view.words[ANSWER_AT // 8 : ANSWER_AT // 8 + 2]) == [7, completed]
    assert view.progress(Progress.STEPS) == completed
    assert blob(view, END)["stopped"] is True


def test_stop_reaches_a_running_script(box: Path, warm: Warm) -> None:
    view = new_box(box)
    logs = warm.order({"script": "optimizers.py", "argv": ["stop"], "box": str(box)})
    wait_for(lambda: view.progress(Progress.STEPS) > 20)
    view.words[MAILBOX_AT // 8 + Mailbox.COMMAND] = Command.STOP
    view.words[MAILBOX_AT // 8 + Mailbox.VERSION] = 1
    outcome = warm.outcome(logs)
    assert outcome.code == 0 and outcome.out.endswith("cleaned up\n")
    assert view.words[ANSWER_AT // 8] == 1
    assert view.words[ANSWER_AT // 8 + 1] == view.progress(Progress.STEPS) >= 20


# -- what the script tells -------------------------------------------------------------------------
def test_the_public_api_tells_the_box(box: Path, warm: Warm) -> None:
    view = new_box(box)
    outcome = warm({"script": "tells.py", "argv": ["in phase"], "box": str(box)})
    assert outcome == (0, "True True\n", "")
    values = blob(view, METRICS)["values"]
    assert values["loss"] == 0.5 and values["nan"] == "NaN" and values["flag"] is True
    assert values["text"] == "a" * 200 and values["none"] is None
    assert [values[name] for name in ("big", "far", "odd", "broken")] == [None] * 4
    assert view.progress(Progress.TRAINING_STEP) == 42
    assert view.progress(Progress.TOTAL_STEPS) == 100
    assert view.progress(Progress.GUARD_TRIPS) == 1  # loom.step("not a number")
    assert set((view.read_blob(PHASE_NAME) or b"").decode()) == {"é"}


def test_without_torchloom_around_it_the_script_is_the_same() -> None:
    assert plain_python("tells.py") == (0, "False False\n", "")


def test_attach_records_into_the_box_it_is_given(box: Path) -> None:
    view = new_box(box)
    code = "import torchloom as loom; print(loom.attach(), loom.info()); loom.step(1)"
    environment = {**ENVIRONMENT, "LOOM_BOX": str(box)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.startswith("True Info(job='j1', replica='j1/0', rank=1,") and not done.stderr
    assert view.progress(Progress.TRAINING_STEP) == 2
    # The box now belongs to that process: another one is refused.
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout == "False None\n"


def wait_for(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    import time

    limit = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.005)
