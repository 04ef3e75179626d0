"""Each submission keeps its own environment, whoever else uses the same job name at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from weaver_story import SPEC, ObedientAgent, running, until

from torchloom.bus.memory import MemoryBus, MemoryHub
from torchloom.errors import BusUnavailable, Conflict, LoomError, NotFound
from torchloom.model.fleet import JobState
from torchloom.model.job import Accepted, JobSpec
from torchloom.weaver.service import Weaver

HELD = JobSpec(program=SPEC.program, cwd="/", workers_per_node=2, env_names=("WHOSE",))


class HesitantBus(MemoryBus):
    """Objects take a while to be stored, as over a network: others get their turn meanwhile."""

    async def put_object(self, name: str, data: bytes) -> None:
        await asyncio.sleep(0.02)
        await super().put_object(name, data)


@asynccontextmanager
async def stage(hub: MemoryHub, name: str = "w1") -> AsyncIterator[Weaver]:
    weaver, stop = Weaver(HesitantBus(hub), name), asyncio.Event()
    task = asyncio.create_task(weaver.run(stop))
    try:
        yield weaver
    finally:
        stop.set()
        await task


async def ready(weaver: Weaver, agent: ObedientAgent) -> None:
    await until(weaver, lambda: weaver.active, "leads")
    await agent.join()
    await until(weaver, lambda: "n1" in weaver.fleet.nodes, "joined")


async def runs_with(weaver: Weaver, agent: ObedientAgent, generation: int) -> str:
    """Whose environment the workers got."""
    await until(weaver, lambda: "j" in weaver.fleet.jobs, "is there")
    await until(
        weaver,
        lambda: (
            weaver.fleet.jobs["j"].state is JobState.RUNNING
            and weaver.fleet.jobs["j"].generation == generation
        ),
        "runs",
    )
    return agent.env.get("WHOSE", "nobody's")


async def end(weaver: Weaver, agent: ObedientAgent) -> None:
    for worker in weaver.fleet.jobs["j"].workers:
        await agent.die(worker.ref, 0)
    await until(weaver, lambda: weaver.fleet.jobs["j"].ended, "ends")


async def submit(weaver: Weaver, whose: str, key: str = "") -> Accepted | LoomError:
    try:
        return await weaver.submit("j", HELD, {"WHOSE": whose}, whose, key=key, digest=whose)
    except LoomError as error:
        return error


@pytest.mark.parametrize("keys", [("one", "two"), ("one", ""), ("", "")])
def test_of_two_submissions_of_one_name_at_once_one_makes_the_job_and_runs_with_its_own(
    keys: tuple[str, str],
) -> None:
    async def scenario() -> None:
        hub = MemoryHub()
        agent = ObedientAgent(MemoryBus(hub))
        async with stage(hub) as weaver:
            await ready(weaver, agent)
            outcomes = await asyncio.gather(submit(weaver, "ann", keys[0]), submit(weaver, "bob", keys[1]))
            made = [one for one in outcomes if isinstance(one, Accepted)]
            assert len(made) == 1 and made[0].created
            assert sum(isinstance(one, Conflict) for one in outcomes) == 1
            winner = "ann" if outcomes[0] is made[0] else "bob"
            assert weaver.fleet.jobs["j"].by == winner
            assert await runs_with(weaver, agent, 1) == winner
            assert sum(name.startswith("env.") for name in hub.objects) == 1, "the loser's values are gone"

    asyncio.run(scenario())


def test_two_services_asked_at_once_agree_on_one_job_and_its_environment() -> None:
    async def scenario() -> None:
        hub = MemoryHub()
        agent = ObedientAgent(MemoryBus(hub))
        async with stage(hub, "w1") as first, stage(hub, "w2") as second:
            await until(first, lambda: first.active or second.active, "one leads")
            leader = first if first.active else second
            await ready(leader, agent)
            await until(second, lambda: "n1" in second.fleet.nodes, "joined")
            await until(first, lambda: "n1" in first.fleet.nodes, "joined")
            outcomes = await asyncio.gather(submit(first, "ann", "one"), submit(second, "bob", "two"))
            assert sorted(type(one).__name__ for one in outcomes) == ["Accepted", "Conflict"]
            winner = "ann" if isinstance(outcomes[0], Accepted) else "bob"
            assert await runs_with(leader, agent, 1) == winner

    asyncio.run(scenario())


def test_a_job_submitted_while_the_one_before_is_deleted_keeps_its_environment() -> None:
    async def scenario() -> None:
        hub = MemoryHub()
        agent = ObedientAgent(MemoryBus(hub))
        async with stage(hub) as weaver:
            await ready(weaver, agent)
            await submit(weaver, "ann")
            assert await runs_with(weaver, agent, 1) == "ann"
            await end(weaver, agent)

            async def again() -> None:
                while not isinstance(await submit(weaver, "bob"), Accepted):
                    await weaver.changed(weaver.fleet.seq, 0.05)

            await asyncio.gather(weaver.delete("j", "ann"), again())
            assert await runs_with(weaver, agent, 2) == "bob"
            await end(weaver, agent)
            assert await weaver._environments.get(weaver.fleet.jobs["j"]) == {"WHOSE": "bob"}

    asyncio.run(scenario())


def test_the_leader_does_not_start_a_new_job_with_the_environment_of_a_deleted_one() -> None:
    """It was deleted and submitted anew through another service; the leader remembered the old values."""

    async def scenario() -> None:
        hub = MemoryHub()
        agent = ObedientAgent(MemoryBus(hub))
        async with running(hub, "w1") as first, running(hub, "w2") as second:
            await until(first, lambda: first.active or second.active, "one leads")
            leader, other = (first, second) if first.active else (second, first)
            await ready(leader, agent)
            await submit(leader, "ann")
            assert await runs_with(leader, agent, 1) == "ann"
            await end(leader, agent)
            await until(other, lambda: other.fleet.seq >= leader.fleet.seq, "follows")
            await other.delete("j", "bob")
            await submit(other, "bob")
            assert await runs_with(leader, agent, 2) == "bob"

    asyncio.run(scenario())


def test_a_job_whose_environment_cannot_be_read_does_not_start_without_it() -> None:
    async def scenario() -> None:
        hub = MemoryHub()
        agent = ObedientAgent(MemoryBus(hub))
        async with running(hub, "w1") as weaver:
            await ready(weaver, agent)
            await submit(weaver, "ann")
            assert await runs_with(weaver, agent, 1) == "ann"
            weaver._environments._cache.clear()
            hub.objects.clear()
            with pytest.raises(BusUnavailable, match="environment of j"):
                await weaver._environments.get(weaver.fleet.jobs["j"])

    asyncio.run(scenario())


def test_a_deletion_that_comes_late_leaves_a_newer_job_of_the_name_alone() -> None:
    async def scenario() -> None:
        hub = MemoryHub()
        agent = ObedientAgent(MemoryBus(hub))
        async with running(hub, "w1") as weaver:
            await ready(weaver, agent)
            for whose, generation in (("ann", 1), ("bob", 2)):
                await submit(weaver, whose)
                assert await runs_with(weaver, agent, generation) == whose
                await end(weaver, agent)
                if whose == "ann":
                    late = weaver.fleet.jobs["j"].env_id
                    await weaver.delete("j", "ann")
            from torchloom.model.events import JobDeleted

            await weaver._stream.say("delete", JobDeleted(job="j", by="ann", env_id=late))
            assert weaver.fleet.jobs["j"].by == "bob"
            await weaver.delete("j", "ann")
            with pytest.raises(NotFound):
                await weaver.delete("j", "ann")
            assert not [name for name in hub.objects if name.startswith("env.")]

    asyncio.run(scenario())
