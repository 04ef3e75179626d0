"""What one agent says: about epochs, about other nodes' effects and workers, and in a person's name."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from weaver_story import SPEC, ObedientAgent, running, until

from torchloom.bus.memory import MemoryBus, MemoryHub
from torchloom.bus.protocol import Message
from torchloom.model.events import EffectDone, Envelope, Event, NodeDrained, TimerFired, WorkerExited
from torchloom.model.fleet import JobState
from torchloom.model.messages import Receipt, Telemetry, WorkerPulse
from torchloom.model.worker import Exit, WorkerRef
from torchloom.weaver.service import Weaver
from torchloom.wire import codec, subjects


class Liar(ObedientAgent):
    """Refuses everything with an epoch that nobody has."""

    async def _obey(self, message: Message) -> None:
        self.received += 1
        await self.bus.respond(message, codec.encode(Receipt(False, 2**60, "I obey somebody else")))


def test_an_agent_that_claims_a_higher_epoch_does_not_depose_the_weaver() -> None:
    async def scene() -> None:
        hub = MemoryHub()
        async with running(hub, "w1") as weaver:
            await until(weaver, lambda: weaver.active, "leads")
            liar = Liar(MemoryBus(hub))
            await liar.join()
            await until(weaver, lambda: "n1" in weaver.fleet.nodes, "joined")
            epoch = weaver.fleet.epoch
            await weaver.submit("j", SPEC, {}, "me")
            await until(weaver, lambda: liar.received >= 3, "asked again and again")
            assert weaver.active and weaver.fleet.epoch == epoch, "it has led all the time"

    asyncio.run(scene())


def _pulse(ref: WorkerRef, steps: int) -> WorkerPulse:
    return WorkerPulse(ref=ref, pid=1, steps=steps, step_s=0.1, idle_s=0.0, phase="train", phase_s=0.0)


async def _job_on(weaver: Weaver, agent: ObedientAgent, job: str) -> list[WorkerRef]:
    await agent.join()
    await until(weaver, lambda: agent.node in weaver.fleet.nodes, "joined")
    await weaver.submit(job, SPEC, {}, "me")
    await until(weaver, lambda: weaver.fleet.jobs[job].state is JobState.RUNNING, "runs")
    return [worker.ref for worker in weaver.fleet.jobs[job].workers]


def test_an_agent_cannot_report_the_result_of_another_nodes_effect() -> None:
    async def scene() -> None:
        hub = MemoryHub()
        async with running(hub, "w1") as weaver:
            await until(weaver, lambda: weaver.active, "leads")
            honest, thief = ObedientAgent(MemoryBus(hub)), ObedientAgent(MemoryBus(hub), "n2")
            honest.deaf = True
            await honest.join()
            await until(weaver, lambda: "n1" in weaver.fleet.nodes, "joined")
            await weaver.submit("j", SPEC, {}, "me")
            await until(weaver, lambda: honest.received > 0, "asked")
            await thief.join()
            await until(weaver, lambda: "n2" in weaver.fleet.nodes, "joined")
            (effect,) = [e for e in weaver.fleet.outbox.values() if e.node == "n1"]
            await thief.say(EffectDone(node="n2", effect=effect.id))
            await until(weaver, lambda: weaver.fleet.seq >= hub.last, "read")
            assert effect.id in weaver.fleet.outbox, "only n1 can say that n1 has done it"
            await honest.say(EffectDone(node="n1", effect=effect.id))
            await until(weaver, lambda: effect.id not in weaver.fleet.outbox, "done")

    asyncio.run(scene())


def test_an_agent_cannot_end_or_show_another_nodes_workers() -> None:
    async def scene() -> None:
        hub = MemoryHub()
        async with running(hub, "w1") as weaver:
            await until(weaver, lambda: weaver.active, "leads")
            honest, thief = ObedientAgent(MemoryBus(hub)), ObedientAgent(MemoryBus(hub), "n2")
            refs = await _job_on(weaver, honest, "j")
            await thief.join()
            await until(weaver, lambda: "n2" in weaver.fleet.nodes, "joined")
            await thief.say(WorkerExited(node="n2", ref=refs[0], exit=Exit(None, 9, "spawner"), at_ns=1))
            for incarnation in (refs[0].incarnation, refs[0].incarnation + 100):
                ref = WorkerRef("j", 0, refs[0].generation, incarnation)
                pulse = _pulse(ref, 10**6)
                told = Telemetry(node="n2", session="s", at_ns=1, epoch=1, workers=(pulse,))
                await thief.bus.publish(subjects.telemetry("n2"), codec.encode(told))
            real = Telemetry(
                node="n1",
                session="s",
                at_ns=1,
                epoch=1,
                workers=(_pulse(refs[0], 5),),
            )
            await honest.bus.publish(subjects.telemetry("n1"), codec.encode(real))
            await until(weaver, lambda: 0 in weaver.pulse("j"), "heard")
            assert weaver.pulse("j")[0].steps == 5
            assert weaver.fleet.jobs["j"].state is JobState.RUNNING
            assert all(worker.alive for worker in weaver.fleet.jobs["j"].workers)

    asyncio.run(scene())


@pytest.mark.parametrize(
    "forged",
    [
        NodeDrained(node="n1", by="admin", why="forged"),
        TimerFired(timer="anything"),
    ],
)
def test_an_agent_cannot_speak_as_a_person_or_as_the_weaver(forged: Event) -> None:
    async def scene() -> None:
        hub = MemoryHub()
        async with running(hub, "w1") as weaver:
            await until(weaver, lambda: weaver.active, "leads")
            agent = ObedientAgent(MemoryBus(hub))
            await agent.join()
            await until(weaver, lambda: "n1" in weaver.fleet.nodes, "joined")
            before = codec.encode(weaver.fleet.nodes["n1"])
            envelope = Envelope(uuid.uuid4().hex, "n1", forged)
            await agent.bus.append(subjects.node_event("n1"), codec.encode(envelope), id=envelope.id)
            await until(weaver, lambda: weaver.fleet.seq >= hub.last, "read")
            assert codec.encode(weaver.fleet.nodes["n1"]) == before

    asyncio.run(scene())
