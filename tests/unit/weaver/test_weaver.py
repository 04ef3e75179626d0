"""The weaver on the memory bus, with a small agent that obeys: leases, resends, replay, takeover."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import pytest
from msgspec.structs import replace
from weaver_story import SPEC, ObedientAgent, obeyed, running, until

from torchloom.bus.memory import MemoryBus, MemoryHub
from torchloom.bus.protocol import Record
from torchloom.errors import Conflict, NotFound, TimedOut, UsageError
from torchloom.model.effects import (
    StartWorkers,
    StopRendezvous,
)
from torchloom.model.events import (
    Decided,
    WorkerExited,
)
from torchloom.model.fleet import Fleet, JobState
from torchloom.model.job import JobSpec
from torchloom.model.messages import Receipt
from torchloom.model.node import RendezvousRef
from torchloom.model.worker import Exit
from torchloom.weaver import leading
from torchloom.weaver.dispatch import Dispatcher
from torchloom.weaver.service import Weaver
from torchloom.wire import codec


class SlowBus(MemoryBus):
    """A cluster of NATS servers that has just been started."""

    unready = 2

    async def provision(self) -> None:
        if self.unready:
            self.unready -= 1
            raise TimedOut("no answer on STREAM.INFO within 5 s")
        await super().provision()


@pytest.mark.parametrize("patient", [True, False])
def test_a_weaver_waits_for_a_cluster_that_stores_nothing_yet(
    patient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leading, "PROVISION_AGAIN_S", 0.0)

    async def scenario() -> None:
        weaver, stop = Weaver(SlowBus(MemoryHub()), "w1", patient=patient), asyncio.Event()
        task = asyncio.create_task(weaver.run(stop))
        if patient:
            await until(weaver, lambda: weaver.active, "leads")
            stop.set()
            await task
        else:
            with pytest.raises(TimedOut):
                await task

    asyncio.run(scenario())


def test_a_job_runs_fails_restarts_and_completes() -> None:
    async def scenario() -> None:
        hub = MemoryHub()
        agent = ObedientAgent(MemoryBus(hub))
        async with running(hub, "w1") as weaver:
            await until(weaver, lambda: weaver.active, "leads")
            await agent.join()
            await until(weaver, lambda: "n1" in weaver.fleet.nodes, "joined")
            job = (await weaver.submit("j", SPEC, {"SECRET": "x"}, "me")).job
            await until(weaver, lambda: weaver.fleet.jobs[job].state is JobState.RUNNING, "runs")
            assert agent.env.pop("LOOM_RUN") == f"{weaver.fleet.jobs[job].submitted_at_ns:x}"
            assert len(agent.env.pop("LOOM_STORE_SECRET")) == 64
            assert agent.env == {"SECRET": "x"}
            victim = weaver.fleet.jobs[job].workers[1].ref
            await agent.die(victim, None, 9)
            await until(
                weaver,
                lambda: (
                    weaver.fleet.jobs[job].generation == 2
                    and weaver.fleet.jobs[job].state is JobState.RUNNING
                ),
                "runs again",
            )
            assert weaver.fleet.jobs[job].restarts == 1
            for worker in weaver.fleet.jobs[job].workers:
                await agent.die(worker.ref, 0)
            await until(weaver, lambda: weaver.fleet.jobs[job].ended, "ends")
            assert weaver.fleet.jobs[job].state is JobState.COMPLETED
            await until(weaver, lambda: not weaver.fleet.outbox, "nothing is open")
            assert any(isinstance(e, StopRendezvous) for e in agent.done)
        assert b"SECRET" not in b"".join(record.data for record in hub.records)

    asyncio.run(scenario())


def test_an_effect_is_sent_again_until_it_is_done() -> None:
    async def scenario() -> None:
        hub = MemoryHub()
        agent = ObedientAgent(MemoryBus(hub))
        async with running(hub, "w1") as weaver:
            await agent.join()
            agent.deaf = True
            await until(weaver, lambda: weaver.active and "n1" in weaver.fleet.nodes, "ready")
            await weaver.submit("j", SPEC, {}, "me")
            await until(weaver, lambda: agent.received >= 2, "resent")
            agent.deaf = False
            await until(weaver, lambda: weaver.fleet.jobs["j"].state is JobState.RUNNING, "runs")
            assert sum(isinstance(e, StartWorkers) for e in agent.done) == 1

    asyncio.run(scenario())


def test_a_second_weaver_waits_and_takes_over_with_the_same_state() -> None:
    async def scenario() -> None:
        hub = MemoryHub()
        agent = ObedientAgent(MemoryBus(hub))
        async with running(hub, "w2") as second:
            async with running(hub, "w1") as first:
                await until(first, lambda: first.active or second.active, "one leads")
                leader, other = (first, second) if first.active else (second, first)
                await agent.join()
                await until(leader, lambda: "n1" in leader.fleet.nodes, "joined")
                await leader.submit("j", SPEC, {}, "me")
                await until(leader, lambda: leader.fleet.jobs["j"].state is JobState.RUNNING, "runs")
                await until(other, lambda: other.fleet.seq == leader.fleet.seq, "follows")
                assert not other.active
                assert codec.encode(other.fleet) == codec.encode(leader.fleet)
            await until(second, lambda: second.active, "takes over")
            assert sum(isinstance(e, StartWorkers) for e in agent.done) == 1, "nothing is started twice"
            await agent.die(second.fleet.jobs["j"].workers[0].ref, 1)
            await until(second, lambda: second.fleet.jobs["j"].generation == 2, "recovers")

    asyncio.run(scenario())


def test_a_later_weaver_rebuilds_the_same_state_and_the_recorded_decisions() -> None:
    async def scenario() -> None:
        hub = MemoryHub()
        async with obeyed(hub) as (weaver, agent):
            await weaver.submit("j", SPEC, {}, "me")
            await until(weaver, lambda: weaver.fleet.jobs["j"].state is JobState.RUNNING, "runs")
            before = weaver.fleet.jobs["j"]
        decided = [
            effect.id
            for record in hub.records
            if isinstance(body := codec.decode_envelope(record.data).body, Decided)
            for effect in body.effects
        ]
        assert decided == [e.id for e in agent.done], "what was done had been recorded before"
        received = agent.received
        async with running(hub, "w3") as later:
            await until(later, lambda: later.active, "leads")
            assert later.fleet.jobs["j"] == before
            assert agent.received == received, "a new weaver repeats nothing that is done"

    asyncio.run(scenario())


def test_an_agent_cannot_speak_for_another_node() -> None:
    async def scenario() -> None:
        hub = MemoryHub()
        agent, liar = ObedientAgent(MemoryBus(hub)), ObedientAgent(MemoryBus(hub), "n2")
        async with running(hub, "w1") as weaver:
            await agent.join()
            await until(weaver, lambda: weaver.active and "n1" in weaver.fleet.nodes, "ready")
            await weaver.submit("j", SPEC, {}, "me")
            await until(weaver, lambda: weaver.fleet.jobs["j"].state is JobState.RUNNING, "runs")
            ref = weaver.fleet.jobs["j"].workers[0].ref
            lie = WorkerExited(node="n1", ref=ref, exit=Exit(1, None, "spawner"), at_ns=1)
            await liar.say(lie)
            await until(weaver, lambda: weaver.fleet.seq == hub.records[-1].seq, "read")
            assert weaver.fleet.jobs["j"].state is JobState.RUNNING

    asyncio.run(scenario())


def test_bad_requests_are_refused_with_a_sentence_and_leave_no_event() -> None:
    async def scenario() -> None:
        hub = MemoryHub()
        async with obeyed(hub) as (weaver, _):
            await weaver.submit("j", SPEC, {}, "me")
            await until(weaver, lambda: weaver.fleet.jobs["j"].state is JobState.RUNNING, "runs")
            events = len(hub.records)
            with pytest.raises(Conflict, match="already"):
                await weaver.submit("j", SPEC, {}, "me")
            with pytest.raises(UsageError, match="not a valid job id"):
                await weaver.submit("../etc", SPEC, {}, "me")
            with pytest.raises(Conflict, match="largest node holds 8") as refused:
                await weaver.submit(None, replace(SPEC, workers_per_node=9), {}, "me")
            assert "--queue" not in str(refused.value), "waiting would not help"
            with pytest.raises(UsageError, match="1 to 16384"):
                await weaver.submit(None, replace(SPEC, workers_per_node=0), {}, "me")
            with pytest.raises(NotFound):
                await weaver.stop("nope", "me")
            with pytest.raises(Conflict, match="stop it first"):
                await weaver.delete("j", "me")
            assert len(hub.records) == events

    asyncio.run(scenario())


def test_of_two_submissions_with_one_key_at_once_one_makes_a_job() -> None:
    async def scenario() -> None:
        hub = MemoryHub()
        async with running(hub, "w1") as first, running(hub, "w2") as second:
            await until(first, lambda: first.ready and second.ready, "ready")
            asked = [w.submit(None, SPEC, {"A": "1"}, "me", key="k", digest="d") for w in (first, second) * 3]
            answers = await asyncio.gather(*asked)
            assert len({a.job for a in answers}) == 1 and sum(a.created for a in answers) <= 1
            assert len(first.fleet.jobs) == 1
            with pytest.raises(UsageError, match="another request"):
                await first.submit(None, SPEC, {"A": "1"}, "me", key="k", digest="other")
            with pytest.raises(UsageError, match="another request"):
                await first.submit(None, SPEC, {"A": "2"}, "me", key="k", digest="d")
        async with running(hub, "w3") as later:
            await until(later, lambda: later.ready, "ready")
            again = await later.submit(None, SPEC, {"A": "1"}, "me", key="k", digest="d")
            assert again.job == answers[0].job and not again.created, "a key survives a restart"

    asyncio.run(scenario())


def test_what_a_job_may_wait_for_is_the_callers_choice() -> None:
    async def scenario() -> None:
        hub = MemoryHub()
        agent = ObedientAgent(MemoryBus(hub))
        large = JobSpec(program=SPEC.program, cwd="/", workers_per_node=9)
        two = JobSpec(program=SPEC.program, cwd="/", nodes=2)
        async with running(hub, "w1") as weaver:
            await agent.join()
            await until(weaver, lambda: weaver.active and "n1" in weaver.fleet.nodes, "ready")
            for spec in (large, two):
                with pytest.raises(Conflict):
                    await weaver.submit(None, spec, {}, "me")
            waits = (await weaver.submit("waits", large, {}, "me", queue=True)).job
            assert weaver.fleet.jobs[waits].state is JobState.WAITING
            full = JobSpec(program=SPEC.program, cwd="/", workers_per_node=8)
            await weaver.submit("full", full, {}, "me", queue=False)
            with pytest.raises(Conflict, match="no room now"):
                await weaver.submit("more", SPEC, {}, "me", queue=False)
            assert (
                weaver.fleet.jobs[(await weaver.submit("later", SPEC, {}, "me")).job].state
                is JobState.WAITING
            )

    asyncio.run(scenario())


def test_a_later_service_can_tell_what_an_earlier_one_told() -> None:
    async def scenario() -> None:
        hub = MemoryHub()
        async with obeyed(hub) as (weaver, _):
            await weaver.submit("j", SPEC, {}, "me")
            await until(weaver, lambda: weaver.fleet.jobs["j"].state is JobState.RUNNING, "runs")
            await until(weaver, lambda: not weaver.fleet.outbox, "settled")
            told = weaver.notices(0, 1000)
        assert told and {n.kind for n in told} >= {"node-joined", "job-submitted", "workers-started"}
        async with running(hub, "w2") as later:
            await until(later, lambda: later.ready, "ready")
            assert later.fleet.seq > 0 and later.notices(0, 1000) is None, "it began from a snapshot"
            assert await later.reach_back(0)
            again = later.notices(0, len(told))
            assert again == told
            assert not await later.reach_back(10_000), "that place is in another stream"

    asyncio.run(scenario())


def test_a_weaver_leads_although_the_store_of_the_lease_was_made_anew() -> None:
    async def scenario() -> None:
        hub = MemoryHub()
        for name in ("w1", "w2", "w3"):
            async with running(hub, name) as weaver:
                await until(weaver, lambda: weaver.active, "leads")
                epoch = weaver.fleet.epoch
        hub.leases.clear()
        hub.revision = 0
        async with running(hub, "later") as later:
            await until(later, lambda: later.active, "leads")
            assert later.fleet.epoch > epoch

    asyncio.run(scenario())


def test_decisions_that_do_not_fit_into_one_event_are_recorded_in_several() -> None:
    async def scenario() -> None:
        hub = MemoryHub()
        async with obeyed(hub) as (weaver, _):
            store = RendezvousRef("j", 1)
            many = [
                StopRendezvous(id=f"e{n}", cause=1, reason="x" * 10_000, node="n1", store=store)
                for n in range(200)
            ]
            await weaver._dispatcher._record(many, weaver.fleet.epoch)
        recorded = [
            effect.id
            for record in hub.records
            if isinstance(body := codec.decode_envelope(record.data).body, Decided)
            for effect in body.effects
        ]
        assert recorded == [effect.id for effect in many]

    asyncio.run(scenario())


class DeafBus(MemoryBus):
    """Its readers get nothing any more, and everything else works."""

    deaf = False

    async def read(self, after: int) -> AsyncGenerator[Record, None]:
        async with contextlib.aclosing(super().read(after)) as records:
            async for record in records:
                while self.deaf:
                    await asyncio.sleep(0.01)
                yield record


def test_a_weaver_leads_as_soon_as_it_has_caught_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leading, "LEASE_TTL_S", 4 * 3600.0)  # the next look would come in an hour

    async def scenario() -> None:
        hub = MemoryHub()
        await ObedientAgent(MemoryBus(hub)).join()
        bus, stop = DeafBus(hub), asyncio.Event()
        bus.deaf = True
        weaver = Weaver(bus, "w1")
        task = asyncio.create_task(weaver.run(stop))
        while weaver._stream.caught_up_to == 0:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)  # its first look finds it behind
        bus.deaf = False
        await until(weaver, lambda: weaver.active, "leads")
        stop.set()
        await task

    asyncio.run(scenario())


def test_a_weaver_that_no_longer_reads_the_stream_gives_up_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leading, "STALLED_AFTER_S", 0.5)
    monkeypatch.setattr(leading, "LOOK_EVERY_S", 0.1)

    async def scenario() -> None:
        hub = MemoryHub()
        bus = DeafBus(hub)
        deaf, agent = Weaver(bus, "deaf"), ObedientAgent(MemoryBus(hub))
        task = asyncio.create_task(deaf.run(asyncio.Event()))
        await until(deaf, lambda: deaf.active, "leads")
        async with running(hub, "other") as other:
            bus.deaf = True
            await agent.join()
            with pytest.raises(TimedOut, match="although there are newer ones"):
                await task
            await until(other, lambda: other.active, "takes over")
            assert "n1" in other.fleet.nodes

    asyncio.run(scenario())


def test_a_command_that_its_agent_has_taken_is_sent_again_less_and_less_often() -> None:
    async def scenario() -> None:
        now_s, sent = [100.0], []

        class Bus:
            async def append(self, *_: object, **__: object) -> int:
                return 1

            async def request(self, subject: str, data: bytes, timeout_s: float) -> bytes:
                sent.append((subject, now_s[0]))
                return codec.encode(Receipt(subject.endswith("n1"), 1))

        asyncio.get_running_loop().time = lambda: now_s[0]  # type: ignore[method-assign]
        dispatcher = Dispatcher(Bus(), "w", None, asyncio.Event())  # type: ignore[arg-type]
        store = RendezvousRef("j", 1)
        fleet = Fleet()
        for node in ("n1", "n2"):
            effect = StopRendezvous(id=node, cause=1, reason="x", node=node, store=store)
            fleet.outbox[effect.id] = effect
        for _ in range(160):
            await dispatcher.perform(fleet, 1)
            while dispatcher._sending:
                await asyncio.sleep(0)
            now_s[0] += 0.25
        taken = [at_s - 100 for subject, at_s in sent if subject.endswith("n1")]
        refused = [at_s - 100 for subject, at_s in sent if subject.endswith("n2")]
        assert taken == [0, 1, 3, 7, 15, 23, 31, 39], "after 1, 2, 4 and then every 8 s"
        assert refused == [float(n) for n in range(40)], "every second until it is taken"
        await dispatcher.perform(fleet, 1, now=frozenset({"n1"}))
        while dispatcher._sending:
            await asyncio.sleep(0)
        assert [subject[-2:] for subject, _ in sent[-2:]] == ["n1", "n2"], "a new agent gets all at once"

    asyncio.run(scenario())
