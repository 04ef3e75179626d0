"""Faults in real jobs: who is named, what is done, and that what only looks like a fault is let be."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stack import HANG_S, Stack, lines_of, wait_until

CALM = 'dry_run = true\n[rules.compute-slow]\nlikely = "report"\n'


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """One for all: every test has a job of its own, and only one runs at a time."""
    with tempfile.TemporaryDirectory(prefix="loom-e2e-") as root:
        made = Stack(Path(root) / "home")
        made.up()
        try:
            yield made
        finally:
            made.end()


class Faulty:
    """A job of scripts/faulty.py on two ranks, or of another script; stopped at the end."""

    def __init__(
        self,
        stack: Stack,
        fault: str,
        *args: str,
        flags: tuple[str, ...] = (),
        script: str = "faulty.py",
        workers: int = 2,
    ) -> None:
        self.stack = stack
        self.notes = stack.home.root.parent / f"notes-{fault}-{len(list(stack.home.root.parent.iterdir()))}"
        self.job = stack.submit(script, str(self.notes), fault, *args, workers=workers, flags=flags)

    def __enter__(self) -> Faulty:
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.end_jobs()

    def steps(self, rank: int = 1) -> int:
        return sum(line.split()[1:2] == [str(rank)] for line in lines_of(self.notes))

    def wait_steps(self, count: int) -> None:
        wait_until(lambda: self.steps() >= count, f"{count} steps: {self.stack.logs()}")

    def pid(self, rank: int) -> int:
        return self.stack.worker_pid(self.job, rank)

    def incidents(self) -> list[dict[str, Any]]:
        return list(self.stack.json("incidents", self.job))

    def told(self, kind: str, saying: str = "", **wanted: Any) -> list[dict[str, Any]]:
        """Incidents with these words and values, the newest first: a busy machine is told of as well."""
        return [
            one
            for one in self.incidents()
            if one["kind"] == kind and saying in one["verdict"] and wanted.items() <= one.items()
        ]

    def wait_incident(self, kind: str, saying: str = "", **wanted: Any) -> dict[str, Any]:
        """One that was told, with everything that is kept of it."""
        try:
            found = wait_until(lambda: self.told(kind, saying, **wanted), f"{kind} {saying} {wanted}", HANG_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.incidents()}\n{self.stack.logs()}") from error
        shown: dict[str, Any] = self.stack.json("incident", found[0]["id"])
        return shown

    def goes_on(self) -> None:
        before = self.steps()
        wait_until(lambda: self.steps() > before + 5, "it goes on")


def rank_of(incident: dict[str, Any], rank: int) -> dict[str, Any]:
    return next(one for one in incident["evidence"] if one["rank"] == rank)


STOPPED = "it is stopped (SIGSTOP)"


def test_a_stopped_rank_is_named_and_the_job_goes_on_without_waiting_for_the_backend(stack: Stack) -> None:
    with Faulty(stack, "none") as run:
        run.wait_steps(30)
        stops = 0
        found: dict[str, Any] = {"evidence": []}
        # What is certain is not put off until everybody has answered, so a busy machine may cost evidence.
        while len(found["evidence"]) < 2 and stops < 3:
            os.kill(run.pid(1), signal.SIGSTOP)
            stops += 1
            wait_until(lambda n=stops: len(run.told("hang", STOPPED, open=False)) == n, "it is over")
            found = run.wait_incident("hang", STOPPED, open=False)
            run.goes_on()
        assert found["culprit"] == 1 and found["finding"]["certain"] and found["finding"]["waiting"] == [0]
        assert found["decision"].startswith("certain")
        assert rank_of(found, 1)["state"] == "T" and rank_of(found, 1)["stack"]
        assert rank_of(found, 0)["collectives"], "the last collectives of who waits"
        line = found["timeline"]
        assert line["first_sign_ns"] < line["detected_ns"] <= line["decided_ns"] <= line["stopped_ns"]
        assert line["spawned_ns"] <= line["first_step_ns"]
        assert stack.status(run.job)["restarts"] == len(run.told("hang", STOPPED)) == stops


def test_a_rank_that_never_comes_is_told_with_its_place_and_restarted_only_at_the_limit(stack: Stack) -> None:
    place = "tokenize() at faulty.py"
    with Faulty(stack, "hang", flags=("--hang-act", "12")) as run:
        told = run.wait_incident("hang", place)
        assert told["culprit"] == 1 and not told["finding"]["certain"]
        assert "has not entered all_reduce" in told["verdict"] and "rank 0 waits" in told["verdict"]
        assert rank_of(told, 1)["stack"][0].startswith(place)
        if told["open"] and not told["timeline"]["decided_ns"]:  # it may be acted on by now
            assert told["decision"].startswith("reported only")
        over = run.wait_incident("hang", place, open=False)
        assert over["id"] == told["id"] and over["finding"]["lasting_s"] >= 12
        assert over["decision"].startswith("it lasts longer than the limit for acting")
        assert over["timeline"]["detected_ns"] < over["timeline"]["decided_ns"], "told long before"
        run.goes_on()


@pytest.mark.parametrize(("fault", "flags"), [("busy", ("--hang-act", "4")), ("semaphore", ())])
def test_what_may_end_by_itself_is_told_and_never_restarted(
    stack: Stack, fault: str, flags: tuple[str, ...]
) -> None:
    """A rank at work, far beyond the limit for acting; and one that another process will wake, for longer
    than a lock of its own would be waited for."""
    with Faulty(stack, fault, flags=flags) as run:
        run.wait_incident("hang", "faulty.py", open=True)

        def lasting() -> bool:
            (told,) = run.told("hang", "faulty.py")
            return bool(stack.json("incident", told["id"])["finding"]["lasting_s"] > 16)

        wait_until(lasting, "it has lasted", HANG_S)
        Path(f"{run.notes}.go").touch()
        found = run.wait_incident("hang", "faulty.py", open=False)
        assert found["culprit"] == 1 and found["decision"].startswith("reported only")
        assert ("uses" if fault == "busy" else "semaphore") in found["verdict"], found["verdict"]
        run.goes_on()
        assert stack.status(run.job)["restarts"] == 0


def test_a_rank_that_leaves_with_code_0_while_others_train_is_named(stack: Stack) -> None:
    with Faulty(stack, "leaves") as run:
        found = run.wait_incident("crash", "exited with code 0", open=False)
        assert found["culprit"] == 1 and "rank 0 followed because its peer was gone" in found["verdict"]
        run.goes_on()


def test_another_reduction_is_told_though_the_operation_ends_well(stack: Stack) -> None:
    with Faulty(stack, "max") as run:
        found = run.wait_incident("divergence", "rank 1: all_reduce MAX")
        assert found["finding"]["ranks"] == [0, 1] and stack.status(run.job)["restarts"] == 0


def test_a_rank_that_does_not_come_to_init_process_group_is_named(stack: Stack) -> None:
    with Faulty(stack, "late", flags=("--hang-report", "4")) as run:
        found = run.wait_incident("no-progress", "has not called init_process_group", open=True)
        assert found["culprit"] == 1 and "tokenize() at faulty.py" in found["verdict"]
        assert found["decision"].startswith("reported only") and found["finding"]["waiting"] == [0]
        Path(f"{run.notes}.go").touch()
        run.goes_on()
        assert stack.status(run.job)["restarts"] == 0


def test_a_pipeline_rank_that_is_stopped_is_certain_and_restarted(stack: Stack) -> None:
    """Nobody but its peers waits for it, in recv."""
    with Faulty(stack, "none", workers=3, script="pipeline.py") as run:
        run.wait_steps(30)
        os.kill(run.pid(1), signal.SIGSTOP)
        found = run.wait_incident("hang", STOPPED, open=False)
        assert found["finding"]["ranks"] == [1] and found["finding"]["waiting"] == [0, 2]
        assert found["finding"]["certain"], found["finding"]["certainty"]
        run.goes_on()
        assert stack.status(run.job)["restarts"] == 1


def test_who_left_out_a_send_is_named(stack: Stack) -> None:
    with Faulty(stack, "left-out", workers=3, script="pipeline.py") as run:
        found = run.wait_incident("desync", "rank 0 left out a send to rank 1", open=False)
        assert found["culprit"] == 0 and found["finding"]["certain"]
        run.goes_on()


def test_ranks_that_disagree_are_restarted(stack: Stack) -> None:
    with Faulty(stack, "desync") as run:
        found = run.wait_incident("desync", open=False)
        assert "broadcast of 12 bytes float32" in found["verdict"] and found["finding"]["certain"]
        run.goes_on()
        assert stack.status(run.job)["restarts"] == 1


def test_a_pause_nobody_announced_is_told_at_most(stack: Stack) -> None:
    with Faulty(stack, "pause") as run:
        told = run.wait_incident("hang", "tokenize() at faulty.py", open=True)
        assert told["decision"].startswith("reported only")
        Path(f"{run.notes}.go").touch()
        found = run.wait_incident("hang", "tokenize() at faulty.py", open=False)
        assert found["id"] == told["id"] and found["resolution"].startswith("rank 1 continued after")
        assert found["decision"].startswith("reported only")
        run.goes_on()
        status = stack.status(run.job)
        assert status["restarts"] == 0 and status["generation"] == 1 and status["state"] == "running"


def test_a_slow_rank_is_named_with_its_cost_and_only_reported(stack: Stack) -> None:
    with Faulty(stack, "slow") as run:
        found = run.wait_incident("compute-slow", culprit=1)
        assert "the time of its peers" in found["verdict"] and "steps/s" in found["verdict"]
        assert found["decision"].startswith("reported only") and stack.status(run.job)["restarts"] == 0


def test_a_loss_that_is_not_a_number_is_told(stack: Stack) -> None:
    with Faulty(stack, "nan") as run:
        found = run.wait_incident("not-a-number")
        assert found["verdict"].startswith("loss of rank 1") and found["decision"] == "reported only"
        assert stack.status(run.job)["restarts"] == 0


def test_a_script_that_tells_nothing_cannot_train_on_nans_unseen(stack: Stack) -> None:
    with Faulty(stack, "silent-nan") as run:
        found = run.wait_incident("not-a-number")
        assert found["verdict"].startswith("the parameters of rank") and found["decision"] == "reported only"
        assert stack.status(run.job)["restarts"] == 0


def test_a_flipped_bit_in_the_parameters_of_one_rank_is_found(stack: Stack) -> None:
    with Faulty(stack, "none") as run:
        run.wait_steps(200)
        assert not [one for one in run.incidents() if one["kind"] == "divergence"]
        stack.loom("inject", run.job, "bit-flip", "--rank", "1")
        found = run.wait_incident("divergence")
        assert "ranks 0 and 1 had equal parameters and differ" in found["verdict"]
        assert found["finding"]["certain"] and found["decision"] == "reported only"
        run.goes_on()


def test_a_reduction_that_one_of_two_ranks_left_out_is_told_with_the_rank(stack: Stack) -> None:
    with Faulty(stack, "none") as run:
        run.wait_steps(60)
        stack.loom("inject", run.job, "skip", "--rank", "1")
        found = run.wait_incident("divergence")
        assert found["verdict"].startswith("rank 1 on node") and "left out 1 collective" in found["verdict"]
        assert found["finding"]["certain"] and found["decision"] == "reported only"
        run.goes_on()
        assert stack.status(run.job)["restarts"] == 0


def test_a_dry_run_says_what_it_would_do_and_the_rank_may_come_back(stack: Stack) -> None:
    policy = stack.home.root.parent / "calm.toml"
    policy.write_text(CALM)
    with Faulty(stack, "none", flags=("--policy", str(policy))) as run:
        run.wait_steps(30)
        pid = run.pid(1)
        os.kill(pid, signal.SIGSTOP)
        found = run.wait_incident("hang", STOPPED)
        assert found["decision"].startswith("dry run, would be restarted: certain")
        os.kill(pid, signal.SIGCONT)
        over = run.wait_incident("hang", STOPPED, open=False)
        assert over["resolution"].startswith("rank 1 continued after")
        run.goes_on()
        assert stack.status(run.job)["restarts"] == 0


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """A real cgroup below our own with 400 MB, in whichever version this host has."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    old = next((path for _, controllers, path in lines if "memory" in controllers.split(",")), None)
    new = next((path for _, controllers, path in lines if not controllers), None)
    own, limit = ("memory" + old, "memory.limit_in_bytes") if old is not None else (new or "/", "memory.max")
    group = Path("/sys/fs/cgroup", own.lstrip("/"), f"loom-oom-{os.getpid()}")
    try:
        group.mkdir()
        (group / limit).write_text(str(400 << 20))
    except OSError as error:
        pytest.skip(f"this host lets us make no memory cgroup: {error}")
    try:
        yield group
    finally:
        wait_until(lambda: not (group / "cgroup.procs").read_text().strip(), "its processes are gone")
        group.rmdir()


def test_a_rank_that_the_kernel_killed_for_its_memory(stack: Stack, small_memory: Path) -> None:
    """By a real cgroup: the kernel's count of its kills tells it from any other SIGKILL."""
    with Faulty(stack, "oom", "--cgroup", str(small_memory)) as job:
        # What is shown of its steps was read after it had joined the group.
        wait_until(lambda: stack.status(job.job)["workers"][1]["steps"] >= 50, "it trains")
        Path(f"{job.notes}.go").touch()
        incident = job.wait_incident("crash", culprit=1)
        assert "memory" in incident["verdict"], incident["verdict"]
        (exit,) = [one for one in incident["exits"] if one["rank"] == 1]
        assert exit["signal"] == 9 if "signal" in exit else True
