"""Faults of devices in real jobs on the simulated accelerator: who is named, and what is told apart."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stack import HANG_S, Stack, lines_of, wait_until

from torchloom.chaos import accelerator
from torchloom.probe import native

PROGRAM = Path(__file__).parents[2] / "bench" / "workloads" / "on_device.py"
UNSEEN = PROGRAM.with_name("device_unseen.py")
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    for made in (accelerator.build(), native.build()):
        if made.library is None:
            pytest.skip(f"nothing to record with or on: {made.detail or made.outcome.value}")
    with tempfile.TemporaryDirectory(prefix="loom-e2e-") as root:
        one = Stack(Path(root) / "home")
        one.up()
        try:
            yield one
        finally:
            one.end()


def told(
    stack: Stack,
    fault: str,
    kinds: tuple[str, ...],
    *more: str,
    culprit: int | None = None,
    program: Path = PROGRAM,
) -> dict[str, Any]:
    """The first incident of these kinds, and of this culprit if one is named, of a job with this fault on two
    ranks, of which rank 1 has it."""
    notes = stack.home.root.parent / f"notes-{fault}"
    job = stack.submit(str(program), str(notes), fault, *more)
    try:

        def reported() -> list[dict[str, Any]]:
            of_kind = [one for one in stack.json("incidents", job) if one["kind"] in kinds]
            return [one for one in of_kind if culprit is None or one["culprit"] == culprit]

        try:
            return dict(wait_until(reported, f"{fault} is reported")[-1])
        except AssertionError as error:
            raise AssertionError(f"{error}: {stack.json('incidents', job)} {lines_of(notes)[-3:]}") from error
    finally:
        stack.end_jobs()


HANGS = ("hang", "communication-hang", "no-progress")


@pytest.mark.parametrize("ahead", [1, 10])
def test_a_stuck_kernel_is_its_devices(stack: Stack, ahead: int) -> None:
    """Both hosts have enqueued the collective, and both are ahead of it."""
    incident = told(stack, "kernel", HANGS, "--ahead", str(ahead))
    assert incident["culprit"] == 1, incident["verdict"]
    assert "its device has not reached it" in incident["verdict"]
    assert "has been busy for" in incident["verdict"]


@pytest.mark.parametrize("case", ["pipeline-batched", "barriers"])
def test_a_stuck_kernel_in_a_batch_and_in_front_of_a_barrier(stack: Stack, case: str) -> None:
    """Where a rank stands in several operations at once, and where its host cannot return from the call."""
    incident = told(stack, case, HANGS, program=UNSEEN)
    assert incident["culprit"] == 1, incident["verdict"]
    assert "its device has not reached it" in incident["verdict"]


def test_a_host_that_waits_for_its_stuck_device(stack: Stack) -> None:
    incident = told(stack, "sync", HANGS)
    assert incident["culprit"] == 1, incident["verdict"]
    assert "has not entered" in incident["verdict"]
    assert "its device has been busy for" in incident["verdict"]


def test_a_host_that_is_stuck_itself(stack: Stack) -> None:
    incident = told(stack, "loop", HANGS)
    assert incident["culprit"] == 1, incident["verdict"]
    assert "its device is idle and waits for it" in incident["verdict"]


def test_a_collective_that_all_have_reached_is_nobodys(stack: Stack) -> None:
    incident = told(stack, "communication", HANGS)
    assert (incident["kind"], incident["culprit"]) == ("communication-hang", None), incident["verdict"]


def test_a_device_that_fell_off_the_bus_is_certain(stack: Stack) -> None:
    incident = told(stack, "lost", HANGS)
    assert incident["culprit"] == 1, incident["verdict"]
    assert "fell off the bus" in incident["verdict"]


def test_a_slow_device_is_a_straggler(stack: Stack) -> None:
    """The hosts of both ranks take the same time a step: only the devices show it. On a busy machine rank 1
    may truly wait for a core at that moment as well, and then that is reported as the cause."""
    kinds = ("compute-slow", "host-contention", "data-imbalance", "communication-slow")
    incident = told(stack, "slow", kinds, culprit=1)
    assert incident["kind"] in ("compute-slow", "host-contention"), incident["verdict"]


def test_a_pause_holds_the_hosts_and_waits_for_no_device(stack: Stack) -> None:
    """All stop at one boundary and continue; with a device that never ends, an answer comes all the same."""
    notes = stack.home.root.parent / "notes-steered"
    job = stack.submit(str(PROGRAM), str(notes), "none")
    try:
        wait_until(lambda: len(lines_of(notes)) > 40, "it trains")
        stack.steer("pause", job)
        paused = len(lines_of(notes))
        assert stack.status(job)["paused"]
        stack.steer("resume", job)
        wait_until(lambda: len(lines_of(notes)) > paused + 40, "it continues")
    finally:
        stack.end_jobs()
    stuck = stack.home.root.parent / "notes-stuck"
    job = stack.submit(str(PROGRAM), str(stuck), "kernel")
    try:
        wait_until(
            lambda: [one for one in stack.json("incidents", job) if one["kind"] == "hang"], "it is reported"
        )
        began = time.monotonic()
        answer = stack.loom("pause", job, "--timeout", "60s", check=None)
        assert answer.returncode != 0, "nobody can hold a host that waits for its device"
        assert time.monotonic() - began < HANG_S
        assert answer.stderr.startswith("loom: "), answer
    finally:
        stack.end_jobs()


def test_set_checkpoint_kill_and_resume_on_a_device(stack: Stack) -> None:
    """A change, a save and a kill, with everything on the device; the resumed run repeats its steps bit for
    bit, which needs the device's own random numbers too."""
    notes, store = stack.home.root.parent / "notes-state", stack.home.root.parent / "store"

    def steps(generation: int) -> dict[tuple[int, int], list[str]]:
        """By rank and step, what was drawn and the loss."""
        fields = [line.split() for line in lines_of(notes)]
        return {(int(f[1]), int(f[2])): f[3:] for f in fields if len(f) == 5 and int(f[0]) == generation}

    job = stack.submit("device_state.py", str(notes), str(store))
    try:
        first = wait_until(lambda: (found := steps(0) or steps(1)) and len(found) > 20 and found, "it trains")
        generation = 0 if steps(0) else 1
        assert first
        stack.steer("set", job, "lr=0.005")
        stack.steer("checkpoint", job)

        def long_saved() -> int:
            """The newest save, once both ranks are ten steps past it: a save that was said again is newer."""
            entries = stack.json("checkpoints", job)["checkpoints"]
            newest = int(entries[0]["step"]) if entries else 0
            return newest if all((r, newest + 10) in steps(generation) for r in (0, 1)) else 0

        wait_until(long_saved, "ten steps after the newest save")
        os.kill(stack.worker_pid(job, 1), signal.SIGKILL)
        try:
            wait_until(lambda: len(steps(generation + 1)) >= 40, "it continues")
        except AssertionError as error:
            told = [(one["kind"], one["verdict"], one["decision"]) for one in stack.json("incidents", job)]
            raise AssertionError(f"{error}\n{told}\n{lines_of(notes)[-4:]}\n{stack.logs()}") from error
        (crash,) = [one for one in stack.json("incidents", job) if one["kind"] == "crash"]
    finally:
        stack.end_jobs()
    before, after = steps(generation), steps(generation + 1)
    assert min(step for _, step in after) > 1, "it was resumed"
    repeated = before.keys() & after.keys()
    assert {rank for rank, _ in repeated} == {0, 1} and len(repeated) >= 4, (sorted(after)[:2], crash)
    assert {at: after[at] for at in repeated} == {at: before[at] for at in repeated}
    assert crash["culprit"] == 1 and crash["lost_steps"], crash
