"""Replicas of a torchft job, and its lighthouse, are killed and stopped at random: the result is the same."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from replica_runs import Replicas, started
from stack import Stack

SCRIPT = Path(__file__).parent / "scripts" / "torchft_exact.py"
SEED = int(os.environ.get("LOOM_TEST_SEED", "172310"))


def kill(pid: int) -> None:
    if pid:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # it was being replaced already


def disturb(job: Replicas, chance: random.Random) -> str:
    """One fault, at a random moment; what it was."""
    victim = chance.randrange(len(job.jobs))
    match chance.choices(("kill", "stop", "lighthouse"), (6, 3, 1))[0]:
        case "lighthouse":
            for process in job.stack.processes():
                if "torchloom.agent.lighthouse" in process.cmdline():
                    kill(process.pid)
            return "killed the lighthouse"
        case "stop":
            pid = job.pid(victim)
            os.kill(pid, signal.SIGSTOP)
            time.sleep(chance.random())  # how long the fault lasts
            os.kill(pid, signal.SIGCONT)
            return f"stopped replica {victim}"
        case _:
            kill(job.pid(victim))
            return f"killed replica {victim}"


def survive(stack: Stack, name: str, *, size: int, faults: int) -> tuple[set[str], int]:
    """The weights of all replicas after that many faults, and the number of steps."""
    print(f"LOOM_TEST_SEED={SEED}")
    chance = random.Random(SEED)
    flags = ("--min-replicas", str(size), "--max-restarts", "100000")
    job = started(stack, name, size=size, steps=1_000_000, script=SCRIPT, flags=flags)
    for number in range(faults):
        print(number, disturb(job, chance), flush=True)
        job.wait_steps(chance.randint(1, 5), size, tuple(range(size)))
    last = job.end_together()
    for index in range(size):
        made = [step for step, _ in job.steps(index)]
        assert made == sorted(made), "nothing that was committed is lost"
    return job.weights(), last


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_few_kills_and_stops_change_no_bit_of_the_result(stack: Stack) -> None:
    stack.env["PYTHONPATH"] = ""
    weights, last = survive(stack, "ft-few", size=2, faults=5)
    env = os.environ | {"MAX_STEPS": str(last), "NUM_REPLICA_GROUPS": "2"}
    plain = [sys.executable, str(SCRIPT), "plain"]
    done = subprocess.run(plain, env=env, capture_output=True, text=True, check=True)
    assert weights == {done.stdout.split()[-1]}, "as in one process, without torchft"


@pytest.mark.long
@pytest.mark.timeout(14_400)
def test_two_hundred_kills_and_stops_change_no_bit_of_the_result(stack: Stack) -> None:
    stack.env["PYTHONPATH"] = ""
    faults = int(os.environ.get("LOOM_TEST_KILLS", "200"))
    weights, last = survive(stack, "ft-many", size=3, faults=faults)
    calm = started(stack, "ft-calm", size=3, steps=last, script=SCRIPT, flags=("--min-replicas", "3"))
    assert weights == calm.weights() and len(weights) == 1
