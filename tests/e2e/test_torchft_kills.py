"""Replicas of a torchft job, and its lighthouse, are killed and stopped at random: the result is the same.

`LOOM_TEST_SEED` and `LOOM_TEST_KILLS` repeat a run or choose another one. A run prints every fault, its seed,
and how long the survivors paused.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from replica_runs import Replicas, check_data, check_one_history, made_steps, started
from stack import Stack

SCRIPT = Path(__file__).parent / "scripts" / "torchft_exact.py"
SEED = int(os.environ.get("LOOM_TEST_SEED", "172310"))


class Fault:
    """What was done to whom, and when."""

    def __init__(self, text: str, victims: tuple[int, ...]) -> None:
        self.text = text
        self.victims = victims
        self.at_ns = time.monotonic_ns()


def kill(pid: int) -> None:
    if pid:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it was being replaced already


def disturb(job: Replicas, chance: random.Random, *, all_at_once: bool) -> Fault:
    """One fault, at a random moment."""
    everybody = tuple(range(len(job.jobs)))
    victim = chance.randrange(len(job.jobs))
    match chance.choices(("kill", "stop", "lighthouse", "all"), (12, 6, 2, 1 if all_at_once else 0))[0]:
        case "lighthouse":
            made = Fault("killed the lighthouse", ())
            for pid in job.stack.lighthouses():
                kill(pid)
        case "stop":
            pid = job.pid(victim)
            made = Fault(f"stopped replica {victim}", (victim,))
            os.kill(pid, signal.SIGSTOP)
            time.sleep(chance.random())  # how long the fault lasts
            os.kill(pid, signal.SIGCONT)
        case "all":
            pids = [job.pid(index) for index in everybody]
            made = Fault("killed all replicas", everybody)
            for pid in pids:
                kill(pid)
        case _:
            pid = job.pid(victim)
            made = Fault(f"killed replica {victim}", (victim,))
            kill(pid)
    return made


def pauses_s(job: Replicas, faults: list[Fault]) -> dict[str, list[float]]:
    """By kind of fault, the longest pause of each survivor between a fault and the next one."""
    found: dict[str, list[float]] = {}
    ends = [*(fault.at_ns for fault in faults[1:]), time.monotonic_ns()]
    times = [[at_ns for at_ns, _, _ in made_steps(job, index)] for index in range(len(job.jobs))]
    for fault, end_ns in zip(faults, ends, strict=True):
        for index in set(range(len(job.jobs))) - set(fault.victims):
            gaps = (min(b, end_ns) - max(a, fault.at_ns) for a, b in pairwise(times[index]))
            found.setdefault(fault.text.rstrip("0123456789 "), []).append(max(gaps, default=0) / 1e9)
    return found


def survive(
    stack: Stack, name: str, *, size: int, least: int, faults: int, all_at_once: bool = False
) -> tuple[Replicas, int]:
    """A job that had so many faults and has ended, and its last step. `least`: replicas without which no step
    is committed."""
    print(f"LOOM_TEST_SEED={SEED} LOOM_TEST_KILLS={faults} least={least}")
    chance = random.Random(SEED)
    flags = ("--min-replicas", str(least), "--max-restarts", "100000", "--env", f"LEAST={least}")
    if all_at_once:
        flags += ("--env", "SAVE_EVERY=20")
    job = started(stack, name, size=size, steps=1_000_000, script=SCRIPT, flags=flags)
    done: list[Fault] = []
    for number in range(faults):
        done.append(disturb(job, chance, all_at_once=all_at_once))
        print(number, done[-1].text, flush=True)
        job.wait_steps(chance.randint(1, 5), size, tuple(range(size)))
    last = job.end_together()
    check_one_history(job)
    check_data(job)
    if not all_at_once:
        for index in range(size):
            steps = [step for _, step, _ in made_steps(job, index)]
            assert steps == sorted(steps), "nothing that was committed is lost"
    print(f"{faults} faults, {last} steps; survivors' longest pause in s:")
    for kind, pauses in pauses_s(job, done).items():
        pauses.sort()
        shares = {p: pauses[min(len(pauses) - 1, len(pauses) * p // 100)] for p in (50, 90, 99)}
        said = ", ".join(f"p{p} {value:.2f}" for p, value in shares.items())
        print(f"  {kind}: {said}, worst {pauses[-1]:.2f} (n={len(pauses)})")
    return job, last


def plain(steps: int, replicas: int) -> str:
    """The weights of the same training in one process, without torchft."""
    env = os.environ | {"MAX_STEPS": str(steps), "NUM_REPLICA_GROUPS": str(replicas)}
    command = [sys.executable, str(SCRIPT), "plain"]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.split()[-1]


def test_three_faults_change_no_bit_of_the_result(stack: Stack) -> None:
    stack.env["PYTHONPATH"] = ""
    job, last = survive(stack, "ft-three", size=2, least=2, faults=3)
    assert job.weights() == {plain(last, 2)}, "as in one process, without torchft"


@pytest.mark.long
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("least", [3, 1])
def test_two_hundred_kills_and_stops(stack: Stack, least: int) -> None:
    """With `least` 3 all replicas are part of every step, so the result is that of an undisturbed run, even
    if all are killed at once and continue from checkpoints. With 1 survivors never wait for the others."""
    stack.env["PYTHONPATH"] = ""
    faults = int(os.environ.get("LOOM_TEST_KILLS", "100"))
    job, last = survive(stack, f"ft-{least}", size=3, least=least, faults=faults, all_at_once=least == 3)
    assert len(job.weights()) == 1
    if least == 3:
        calm = started(stack, "ft-calm", size=3, steps=last, script=SCRIPT, flags=("--min-replicas", "3"))
        assert calm.weights() == job.weights()
