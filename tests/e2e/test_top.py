"""`loom top` on a live stack, with keys as a person presses them, at 80 × 24."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stack import HANG_S, Stack, wait_until
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, Static

from torchloom.cli.top.screen import Help, Question, Top

TRAINS = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
while True:
    weight.grad = torch.ones(1)
    dist.all_reduce(weight.grad)
    optimizer.step()
    time.sleep(0.02)
"""


async def until(pilot: Pilot[None], condition: Callable[[], Any], what: str) -> None:
    give_up = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < give_up, f"waited in vain: {what}"
        await pilot.pause(0.05)


def cells(app: Top, name: str) -> list[list[str]]:
    table: DataTable[Any] = app.query_one(f"#{name}", DataTable)
    return [[str(cell) for cell in table.get_row_at(row)] for row in range(table.row_count)]


def said(app: Top) -> str:
    return str(app.query_one("#said", Static).render())


@pytest.fixture
def stack(tmp_path: Path) -> Any:
    made = Stack(tmp_path / "home")
    script = tmp_path / "train.py"
    script.write_text(TRAINS)
    try:
        made.up()
        made.loom("submit", "--nproc-per-node", "2", "--name", "alpha", str(script))
        wait_until(lambda: made.status("alpha")["step"] > 5, "it trains")
        yield made
    finally:
        made.end()


def test_jobs_ranks_and_incidents_are_live_and_keys_ask_first(stack: Stack) -> None:
    async def scene() -> None:
        app = Top(stack.client().endpoint, 0.2, read_only=False)
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: cells(app, "jobs"), "a job")
            assert cells(app, "jobs")[0][:2] == ["alpha", "running"]
            await pilot.press("enter")
            await until(pilot, lambda: len(cells(app, "ranks")) == 2, "its ranks")
            first = int(cells(app, "ranks")[0][2].split()[0])
            await until(pilot, lambda: int(cells(app, "ranks")[0][2].split()[0]) > first, "steps grow")
            os.kill(stack.worker_pid("alpha", 1), signal.SIGKILL)
            await until(pilot, lambda: cells(app, "incidents"), "the incident")
            assert "crash" in cells(app, "incidents")[0]
            await pilot.press("slash", *"zzz")
            await until(pilot, lambda: not cells(app, "jobs"), "the filter leaves nothing")
            await pilot.press("escape")
            await until(pilot, lambda: cells(app, "jobs"), "the filter is cleared")
            assert not app.query_one("#filter", Input).display
            await pilot.press("question_mark")
            await until(pilot, lambda: isinstance(app.screen, Help), "help")
            await pilot.press("escape")
            await until(pilot, lambda: not isinstance(app.screen, Help), "help is closed")
            await pilot.press("x")
            await until(pilot, lambda: isinstance(app.screen, Question), "a question")
            await pilot.press("n")
            await until(pilot, lambda: not isinstance(app.screen, Question), "the answer")
            assert stack.status("alpha")["state"] != "stopped"
            await pilot.press("x")
            await until(pilot, lambda: isinstance(app.screen, Question), "a question again")
            await pilot.press("y")
            await until(pilot, lambda: stack.status("alpha")["ended"], "it stops")
            await pilot.press("a")
            await until(pilot, lambda: "stopped" in str(cells(app, "jobs")), "ended jobs are shown too")

    asyncio.run(scene())


def test_read_only_changes_nothing_and_old_data_is_marked(stack: Stack) -> None:
    async def scene() -> None:
        app = Top(stack.client().endpoint, 0.2, read_only=True)
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: cells(app, "jobs"), "a job")
            for key in "xpc":
                await pilot.press(key)
                assert not isinstance(app.screen, Question)
            assert "read-only" in said(app)
            await asyncio.to_thread(stack.loom, "stop", "alpha", check=None)
            await asyncio.to_thread(stack.loom, "down")
            await until(pilot, lambda: "OLD DATA" in said(app), "it says that the data is old")

    asyncio.run(scene())
