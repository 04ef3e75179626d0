"""`loom run` as a user types it: follows, tells what happens, ends with the job's status, leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stack import BIN, SCRIPTS, Stack, lines_of, wait_until

from torchloom.agent.processes.process import is_alive, start_ticks
from torchloom.model.job import MAX_WORKERS

COUNT = """
import os, sys, time
rank = os.environ["RANK"]
for i in range(int(sys.argv[1])):
    print("tick", i, flush=True)
    time.sleep(0.02)
sys.exit(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
"""

OPEN_END = """
import os, sys, time
i = 0
while not os.path.exists(sys.argv[1]):
    print("tick", i, flush=True)
    i += 1
    time.sleep(0.02)
print("over", flush=True)
"""
"""Ends when the test makes a file: commands beside it take their time on a slow machine."""

DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
while True:
    time.sleep(1)
"""
TRAIN = str(SCRIPTS / "train.py")


class Running:
    """A `loom run` under way, with its output in files so that it never blocks."""

    def __init__(self, stack: Stack, *args: str) -> None:
        self._out = stack.home.root.parent / "out"
        self._err = stack.home.root.parent / "err"
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                [str(BIN / "loom"), "run", *args],
                env=stack.env,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    @property
    def out(self) -> str:
        return self._out.read_text(errors="replace")

    @property
    def err(self) -> str:
        return self._err.read_text(errors="replace")

    def wait_out(self, text: str) -> None:
        wait_until(
            lambda: text in self.out or self.process.poll() is not None, f"output {text!r}: {self.err}"
        )
        assert text in self.out, f"{self.out}\n{self.err}"

    def wait(self, timeout_s: float = 240) -> int:
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running\n{self.out}\n{self.err}") from None


@contextmanager
def running(stack: Stack, *args: str) -> Iterator[Running]:
    started = Running(stack, *args)
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.process.kill()
            started.process.wait()


def script(tmp_path: Path, text: str = COUNT) -> str:
    path = tmp_path / "count.py"
    path.write_text(text)
    return str(path)


DETACHED = """
import os, subprocess, sys, time
if os.environ["RANK"] == "0":
    print("detached", subprocess.Popen(["sleep", "1000"], start_new_session=True).pid, flush=True)
    pid = os.fork()
    if pid == 0:
        os.setsid()
        time.sleep(1000)
    print("detached", pid, flush=True)
"""


def test_a_stack_of_its_own_ends_with_the_job(bare: Stack, tmp_path: Path) -> None:
    """So does what the script started in sessions of their own."""
    with running(bare, "--nproc-per-node", "2", script(tmp_path, DETACHED + COUNT), "5") as run:
        assert run.wait() == 0, run.err
    detached = [int(line.split()[-1]) for line in run.out.splitlines() if "detached" in line]
    assert len(detached) == 2
    wait_until(lambda: not any(is_alive(pid, start_ticks(pid)) for pid in detached), "they are ended")
    assert "[rank 0] tick 0\n" in run.out and "[rank 1] tick 4\n" in run.out
    assert "[loom]" not in run.out and "completed" in run.err
    bare.wait_nothing_left()


def test_a_crashing_script_fails_with_reason_and_traceback(bare: Stack, tmp_path: Path) -> None:
    path = script(tmp_path, "raise ValueError('no such luck')")
    with running(bare, "--max-restarts", "1", path) as run:
        assert run.wait() == 1, run.err
    assert "ValueError: no such luck" in run.out and "Traceback" in run.out
    assert "failed" in run.err and "restart" in run.err
    bare.wait_nothing_left()


def test_bad_input_is_one_sentence(bare: Stack, tmp_path: Path) -> None:
    path = script(tmp_path)
    for words, code in (
        (("run", "no-such-script.py"), 3),
        (("run", "--nproc-per-node", "0", path), 2),
        (("run", "--nproc-per-node", str(MAX_WORKERS + 1), path), 2),
        (("run", "--nproc-per-node", "many", path), 2),
        (("run", "--no-such-flag", path), 2),
        (("run", "--name", "Not A Name", path), 2),
        (("run",), 2),
        (("run", "--python", "/no/such/python", path), 3),
    ):
        done = bare.loom(*words, check=code)
        assert done.stderr.startswith("loom: ") and done.stderr.count("\n") == 1, done.stderr
        assert done.stdout == ""
    bare.wait_nothing_left()


def trains(run: Running, notes: Path) -> None:
    """Wait until it has made steps, and is being followed."""
    run.wait_out("hello from rank 1\n")
    wait_until(lambda: len(lines_of(notes)) > 40, f"steps {run.err}")


def stopped(stack: Stack, notes: Path, name: str) -> dict[str, Any]:
    """A job after one Ctrl-C."""
    with running(stack, "--nproc-per-node", "2", "--name", name, TRAIN, str(notes)) as run:
        trains(run, notes)
        run.process.send_signal(signal.SIGINT)
        assert run.wait() == 130, run.err
    view = stack.status(name)
    assert view["state"] == "stopped"
    return view


def test_ctrl_c_once_stops_at_a_boundary(stack: Stack, tmp_path: Path) -> None:
    view: dict[str, Any] = {}
    for number in range(3):
        view = stopped(stack, tmp_path / f"notes{number}", f"once{number}")
        if {worker["exit"] for worker in view["workers"]} == {"exited with code 0"}:
            break
        # Ranks for which the machine has no time for seconds are ended by signals, and that is right.
    assert {worker["exit"] for worker in view["workers"]} == {"exited with code 0"}, view["workers"]
    assert len({worker["steps"] for worker in view["workers"]}) == 1


def test_ctrl_c_twice_kills(stack: Stack, tmp_path: Path) -> None:
    path = script(tmp_path, DEAF)
    with running(stack, "--shutdown-timeout", "300", "--name", "deaf", path) as run:
        run.wait_out("deaf")
        run.process.send_signal(signal.SIGINT)
        wait_until(lambda: "stopping" in run.err, "it says so")
        run.process.send_signal(signal.SIGINT)
        assert run.wait(240) == 130, run.err  # sooner than the time it was given to end
    assert "SIGKILL" in stack.status("deaf")["workers"][0]["exit"]


def test_it_lives_through_the_death_of_its_stack(bare: Stack, tmp_path: Path) -> None:
    """Supervisor and weaver are killed under it: it starts a new supervisor, loses no line, and ends well."""
    end = tmp_path / "end"
    flags = ("--nproc-per-node", "2", "--spawn", "cold", script(tmp_path, OPEN_END), str(end))
    with running(bare, *flags) as run:
        run.wait_out("tick 20\n")
        old = bare.kill_part("supervisor")
        bare.kill_part("weaver")
        wait_until(lambda: bare.try_part_pid("supervisor") not in (0, old), f"a new supervisor {run.err}")
        wait_until(lambda: "answers again" in run.err, f"it is told: {run.err}")
        end.touch()
        assert run.wait() == 0, run.err
    for rank in (0, 1):
        got = [line for line in run.out.splitlines() if line.startswith(f"[rank {rank}] ")]
        assert got == [*(f"[rank {rank}] tick {i}" for i in range(len(got) - 1)), f"[rank {rank}] over"]
    bare.wait_nothing_left()


def test_all_parts_die_at_once_and_training_goes_on(bare: Stack, tmp_path: Path) -> None:
    notes, end = tmp_path / "notes", tmp_path / "end"
    flags = ("--nproc-per-node", "2", "--name", "all", TRAIN, str(notes), "--end", str(end))
    with running(bare, *flags) as run:
        trains(run, notes)
        for part in ("supervisor", "weaver", "agent", "nats"):
            bare.kill_part(part)
        wait_until(lambda: "answers again" in run.err, f"it is told: {run.err}")
        made = len(lines_of(notes))
        wait_until(lambda: len(lines_of(notes)) > made + 40, f"it trains on: {run.err}")
        end.touch()
        assert run.wait() == 0, run.err
    lines = [line.split() for line in lines_of(notes)]
    assert len({pid for pid, _, _ in lines}) == 2, "no worker was started twice"
    for rank in "01":
        steps = [int(step) for _, of, step in lines if of == rank]
        assert steps == list(range(1, len(lines) // 2 + 1)), "every step once"
    bare.wait_nothing_left()


def test_killed_itself_the_job_goes_on_and_the_stack_ends_with_it(bare: Stack, tmp_path: Path) -> None:
    end = tmp_path / "end"
    with running(bare, "--spawn", "cold", script(tmp_path, OPEN_END), str(end)) as run:
        run.wait_out("tick 5\n")
        run.process.kill()
    assert bare.json("ps")[0]["state"] in ("starting", "running")
    end.touch()
    wait_until(lambda: not bare.leftovers(), "the stack ends after the job")
    log = next(bare.home.jobs_dir.glob("*/rank-0.log")).read_text()
    assert "over" in log


def test_a_failure_is_told_as_it_happens(stack: Stack, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    with running(stack, "--nproc-per-node", "2", "--name", "told", TRAIN, str(notes)) as run:
        trains(run, notes)
        os.kill(stack.worker_pid("told", 1), signal.SIGKILL)
        wait_until(lambda: "recovered" in run.err, f"it is told: {run.err}")
        run.process.send_signal(signal.SIGINT)
        assert run.wait() == 130, run.err
    assert "SIGKILL" in run.err and "rank 1" in run.err and "1 restart" in run.err


def test_json_is_pure_and_torchruns_spelling_works(stack: Stack, tmp_path: Path) -> None:
    done = stack.loom(
        "run", "--standalone", "--nnodes=1", "--nproc_per_node=2", "--json", script(tmp_path), "3"
    )
    view = json.loads(done.stdout)
    assert view["state"] == "completed" and view["world_size"] == 2 and view["args"] == ["3"]


def test_detached_it_returns_with_the_id(stack: Stack, tmp_path: Path) -> None:
    job = stack.loom("run", "--detach", "--name", "apart", script(tmp_path), "3").stdout.strip()
    assert job == "apart"
    stack.wait_state(job, "completed")
    followed = stack.loom("logs", job, "-f").stdout
    assert "[rank 0] tick 2\n" in followed


def test_loom_up_makes_the_stack_of_a_run_stay(bare: Stack, tmp_path: Path) -> None:
    end = tmp_path / "end"
    with running(bare, "--spawn", "cold", "--name", "first", script(tmp_path, OPEN_END), str(end)) as run:
        run.wait_out("tick 5\n")
        pid = bare.part_pid("weaver")
        assert "already up" in bare.loom("up").stdout
        end.touch()
        assert run.wait() == 0, run.err
    assert bare.status("first")["state"] == "completed" and bare.part_pid("weaver") == pid


def test_two_runs_share_a_stack_and_the_last_one_ends_it(bare: Stack, tmp_path: Path) -> None:
    end = tmp_path / "end"
    (tmp_path / "short").mkdir()
    with running(bare, "--spawn", "cold", "--name", "long", script(tmp_path, OPEN_END), str(end)) as run:
        run.wait_out("tick 5\n")
        pid = bare.part_pid("weaver")
        bare.loom("run", "--spawn", "cold", "--name", "short", script(tmp_path / "short"), "3")
        assert bare.part_pid("weaver") == pid
        end.touch()
        assert run.wait() == 0, run.err
    bare.wait_nothing_left()
