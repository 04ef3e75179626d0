"""Parts are killed in the midst of changes: each change is on all ranks at one step, or on none, and told.

What the ranks did is read off their own logs. Every change has a value of its own.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from stack import Stack, lines_of, wait_until

from torchloom.client import Client, Endpoint
from torchloom.errors import LoomError, UsageError

KILLS = int(os.environ.get("LOOM_TEST_KILLS", "3"))


class Values:
    """The lr of every step, as the optimizers noted it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self) -> list[tuple[int, int, int, float]]:
        lines = [line.split() for line in lines_of(self.path)]
        return [(int(f[0]), int(f[1]), int(f[2]), float(f[3])) for f in lines if len(f) == 4]

    def first_steps(self, value: float) -> dict[int, tuple[int, int]]:
        """By process its rank and the first step that used the value."""
        found: dict[int, tuple[int, int]] = {}
        for pid, rank, step, used in self.rows():
            if used == value:
                found.setdefault(pid, (rank, step))
        return found

    def wait_more(self, more: int = 20) -> None:
        before = len(self.rows())
        wait_until(lambda: len(self.rows()) >= before + 2 * more, f"{more} more steps")


def operations(client: Client, job: str) -> list[Any]:
    try:
        return list(client.operations(job))
    except LoomError:
        return []


def ask(client: Client, job: str, value: float) -> str:
    """The id of the change; it is asked for again while the control service is away."""

    def once() -> str:
        try:
            key = f"value-{value}"
            return client.change(job, {"values": {"lr": value}}, idempotency_key=key)["operation"]
        except UsageError:
            raise
        except LoomError:
            return ""

    return str(wait_until(once, "somebody takes the change"))


@pytest.mark.parametrize("part", ["weaver", "agent", "nats", "worker"])
def test_a_kill_in_the_midst_of_a_change(stack: Stack, tmp_path: Path, part: str) -> None:
    values = Values(tmp_path / "notes")
    job = stack.submit("values.py", str(values.path), "--step-ms", "20", flags=("--max-restarts", "50"))
    stack.wait_state(job, "running")
    values.wait_more()
    client = Client(Endpoint.find(stack.home))
    chance = random.Random(part)
    asked: dict[str, float] = {}
    for number in range(KILLS):
        value = 0.5 + number / 1000
        operation = ask(client, job, value)
        asked[operation] = value
        time.sleep(chance.uniform(0.0, 0.15))
        if part == "worker":
            pids = {rank: pid for pid, rank, _, _ in values.rows()}  # those that stepped last
            os.kill(chance.choice(sorted(pids.values())), signal.SIGKILL)
        else:
            stack.wait_part_back(part, stack.kill_part(part))

        def ended(id: str = operation) -> bool:
            return any(o["id"] == id and o["ended"] for o in operations(client, job))

        wait_until(ended, f"the outcome of change {number}")
        stack.wait_state(job, "running")
        values.wait_more(5)
    told = wait_until(lambda: {o["id"]: o for o in operations(client, job)}, "what became of them")
    for operation, value in asked.items():
        check(told[operation], values.first_steps(value), world=2)
    client.close()


def check(told: dict[str, Any], used: dict[int, tuple[int, int]], world: int) -> None:
    assert told["state"] in ("applied", "not applied"), told
    if told["state"] == "not applied":
        assert not used, f"{told} and yet {used}"
        return
    at_step = told["at_step"]
    there = {rank: step for rank, step in used.values() if step == at_step}
    first = {step for _, step in used.values()}
    # A later generation begins with what is in force: then its ranks use it from their first step on.
    assert first <= {at_step, 1}, f"{told} and yet {used}"
    if not told["unheard"]:
        assert set(there) == set(range(world)), f"{told} and yet {used}"
