"""The agent's tasks: a failure stays where it is, and the end leaves nothing half begun."""

import asyncio
import gc
import warnings

import pytest

from torchloom.agent.tasks import Tasks


async def _work(seen: list[str]) -> None:
    seen.append("begun")


def test_task_cancelled_before_its_first_turn_is_no_unawaited_work(
    recwarn: pytest.WarningsRecorder,
) -> None:
    async def scene() -> None:
        tasks = Tasks()
        tasks.start(_work(seen), "work")
        await tasks.cancel()

    seen: list[str] = []
    gc.collect()  # what tests before this one left is not ours to tell
    warnings.simplefilter("always")
    recwarn.clear()
    asyncio.run(scene())
    gc.collect()
    assert seen == []
    assert [str(one.message) for one in recwarn if one.category is RuntimeWarning] == []


def test_failing_task_ends_no_other() -> None:
    async def fail() -> None:
        raise ValueError("on purpose")

    async def scene() -> None:
        tasks = Tasks()
        await asyncio.gather(tasks.start(fail(), "failing"), tasks.start(_work(seen), "working"))

    seen: list[str] = []
    asyncio.run(scene())
    assert seen == ["begun"]
