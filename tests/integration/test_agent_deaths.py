"""The agent where something dies, is away or comes twice: nothing is lost, nothing is done again."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from agent_stage import (
    NODE,
    SOURCES,
    Stage,
    parent_of,
    processes_naming,
    run,
    sh,
    steps,
    telemetry,
    until,
)

from torchloom.agent.main import serve
from torchloom.agent.neighbour.channel import call
from torchloom.agent.neighbour.plans import KeptPlan
from torchloom.agent.observe.boxes import ReadableBox
from torchloom.agent.processes import exits, fencing
from torchloom.agent.processes.process import Process, is_alive, start_ticks
from torchloom.bus.protocol import Message
from torchloom.checkpoint.memory import tier
from torchloom.errors import Conflict
from torchloom.home import Home
from torchloom.model.events import (
    EffectFailed,
    FirstStep,
    NodeJoined,
    NodeLeft,
    WorkerExited,
    WorkersStarted,
)
from torchloom.model.job import Program
from torchloom.model.messages import Standing
from torchloom.model.neighbours import MemoryPeer
from torchloom.private import make_private
from torchloom.spawner.client import AsyncSpawnerClient
from torchloom.wire import codec, subjects


def test_a_spawner_that_is_slow_to_reap_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where only it can tell how a worker died, that is not called unknown because a busy host reaps late."""
    monkeypatch.setattr(Process, "status", lambda _: None)  # as with a kernel older than 6.15
    monkeypatch.setattr(exits, "_WORD_WITHIN_S", 600.0)  # this machine may be busier than any host

    async def scene(stage: Stage) -> None:
        await stage.start_agent()
        started = await stage.start(sh("exec sleep 600"))
        pid = started.workers[0].pid
        spawner = parent_of(pid)
        os.kill(spawner, signal.SIGSTOP)
        try:
            os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(0.3)
            assert stage.events(WorkerExited) == []
        finally:
            os.kill(spawner, signal.SIGCONT)
        assert (await stage.exit_of(0)).exit.signal == signal.SIGKILL

    run(tmp_path, scene)


def test_an_agent_that_dies_at_a_start_leaves_no_worker_without_its_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker runs, its agent has not even heard of it and never will: the spawner ends it in time."""
    forked = asyncio.Event()
    start = AsyncSpawnerClient.start

    async def start_and_stand_still(client: AsyncSpawnerClient, *orders: Any) -> Any:
        await start(client, *orders)
        forked.set()
        await asyncio.Event().wait()

    async def scene(stage: Stage) -> None:
        async def heard(message: Message) -> None:
            if codec.decode_lease_ask(message.data).what_for == "name":
                await stage.weaver.respond(message, codec.encode(Standing("yours")))
            else:
                await stage.weaver.respond(message, b"heard")

        leases = await stage.weaver.subscribe(subjects.LEASES, heard)
        monkeypatch.setattr(AsyncSpawnerClient, "start", start_and_stand_still)
        await stage.start_agent()
        assert (await stage.send(stage.order(sh("exec sleep 600"), fence_s=3.0))).accepted
        await forked.wait()
        await leases.unsubscribe()
        await stage.crash_agent()
        monkeypatch.undo()
        (path,) = stage.boxes()
        box = ReadableBox.open(path)
        limit_ns, until_ns = box.view.fence()
        assert limit_ns == 3 * 10**9 and until_ns > 0
        await until(lambda: not is_alive(box.pid, box.start_ticks))
        assert fencing.now_ns() > until_ns
        box.close()
        await stage.start_agent()  # the next one tells its end and cleans up
        assert (await stage.exit_of(0)).exit.signal == signal.SIGKILL

    run(tmp_path, scene)


def test_an_order_that_comes_again_starts_nothing_again(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.start_agent()
        order = stage.order(sh("echo once; sleep 1000"))
        for _ in range(3):
            assert (await stage.send(order)).accepted
        started = await stage.event(WorkersStarted)
        assert (await stage.send(order)).accepted  # its result is known now
        await stage.crash_agent()
        await stage.start_agent()
        assert (await stage.send(order)).accepted
        await until(lambda: len(stage.events(NodeJoined)) == 2)
        log = stage.home.jobs_dir / "tiny" / "rank-0.log"
        await until(lambda: "once" in log.read_text())
        await stage.end(started.workers[0].ref)
        assert log.read_text().count("once") == 1
        assert len(stage.events(WorkersStarted)) == 1  # all under one id

    run(tmp_path, scene)


def test_an_order_that_comes_again_after_the_end_starts_nothing(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.start_agent()
        order = stage.order(sh("echo once"))
        await stage.send(order)
        await stage.exit_of(0)
        await until(lambda: not stage.boxes())
        await stage.crash_agent()
        await stage.start_agent()
        stage.hub.by_id.clear()  # as after the hour in which the stream knows ids
        await stage.send(order)
        again = await until(lambda: stage.events(WorkersStarted)[1:])
        assert again[0].workers[0].pid == 0
        assert stage.home.jobs_dir.joinpath("tiny", "rank-0.log").read_text().count("once") == 1

    run(tmp_path, scene)


@pytest.mark.parametrize("victim", ["agent", "spawner"])
def test_a_death_in_the_middle_of_a_start_neither_loses_nor_doubles_a_worker(
    tmp_path: Path, victim: str
) -> None:
    async def scene(stage: Stage) -> None:
        await stage.start_agent()
        await stage.start(sh("exit 0"), job="first")  # so that there is a spawner
        for generation, delay_s in enumerate((0.0, 0.001, 0.003, 0.006, 0.01, 0.02), 1):
            order = stage.order(sh("echo begun; sleep 1000"), world=4, generation=generation)
            sending = asyncio.create_task(stage.send(order))
            await asyncio.sleep(delay_s)
            if victim == "agent":
                await stage.crash_agent()
                await stage.start_agent()
            else:
                spawners = [pid for pid in processes_naming(stage.home.sockets) if is_spawner(pid)]
                for pid in spawners:
                    os.kill(pid, signal.SIGKILL)
            await asyncio.wait([sending])
            sending.exception()
            assert (await stage.send(order)).accepted
            started = await stage.event(WorkersStarted, lambda e, o=order: e.effect == o.id)  # type: ignore[misc]
            for worker in started.workers:
                assert is_alive(worker.pid, start_ticks(worker.pid))
            directory = stage.home.jobs_dir / "tiny"
            for rank in range(4):
                path = directory / f"rank-{rank}.log"
                await until(lambda p=path, g=generation: p.read_text().count("begun") >= g)  # type: ignore[misc]
            await stage.end(*(w.ref for w in started.workers))
            for rank in range(4):
                assert (directory / f"rank-{rank}.log").read_text().count("begun") == generation
        assert not stage.events(EffectFailed)

    run(tmp_path, scene)


def is_spawner(pid: int) -> bool:
    """Not a forked child of one that is about to become something else."""
    with contextlib.suppress(OSError):
        return b"torchloom.spawner" not in Path(f"/proc/{parent_of(pid)}/cmdline").read_bytes()
    return False


def test_a_new_agent_adopts_what_runs_and_reports_what_died_meanwhile(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.start_agent()
        started = await stage.start(steps(0.01), world=2)
        await until(lambda: len(stage.events(FirstStep)) == 2)
        await stage.crash_agent()
        victim = started.workers[1]
        ticks = start_ticks(victim.pid)
        os.kill(victim.pid, signal.SIGKILL)
        await until(lambda: not is_alive(victim.pid, ticks))
        await stage.start_agent()
        joined = await until(lambda: stage.events(NodeJoined)[1:])
        assert [w.pid for w in joined[0].inventory.workers] == [started.workers[0].pid]
        assert joined[0].inventory.exits_to_come == (victim.ref,)
        ended = await stage.exit_of(1)
        assert ended.exit.signal == 9 and ended.exit.source in ("spawner", "pidfd")
        pulse = await telemetry(stage, lambda t: bool(t.workers))
        assert pulse.workers[0].ref.rank == 0
        os.kill(started.workers[0].pid, signal.SIGTERM)
        assert (await stage.exit_of(0)).exit.signal == signal.SIGTERM
        assert len(stage.events(FirstStep)) == 2

    run(tmp_path, scene)


def test_exits_are_known_without_the_spawner(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.start_agent()
        started = await stage.start(sh("trap 'exit 7' USR1; echo ready; while :; do sleep 0.01; done"))
        worker = started.workers[0]
        await until(lambda: b"ready" in stage.home.jobs_dir.joinpath("tiny", "rank-0.log").read_bytes())
        spawner = parent_of(worker.pid)
        os.kill(spawner, signal.SIGKILL)
        await until(lambda: parent_of(worker.pid) != spawner)
        assert is_alive(worker.pid, start_ticks(worker.pid))
        os.kill(worker.pid, signal.SIGUSR1)
        ended = await stage.exit_of(0)
        assert (ended.exit.code, ended.exit.source) == (7, "pidfd")
        again = await stage.start(sh("exit 5"), generation=2)  # by a new spawner
        assert again.workers[0].pid
        assert (await stage.exit_of(0, generation=2)).exit.code == 5

    run(tmp_path, scene)


def test_a_worker_without_a_box_is_watched_and_adopted_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = Path("/proc/there-is-no-room-here")
    monkeypatch.setattr(Home, "boxes", property(lambda _: nowhere))
    monkeypatch.setattr(Home, "boxes_fallback", property(lambda _: nowhere))

    async def scene(stage: Stage) -> None:
        await stage.start_agent()
        order = stage.order(sh("sleep 1000"))
        await stage.send(order)
        started = await stage.event(WorkersStarted)
        assert "no black box" in started.workers[0].blind
        await stage.crash_agent()
        await stage.start_agent()
        joined = (await until(lambda: stage.events(NodeJoined)[1:]))[0]
        assert [w.pid for w in joined.inventory.workers] == [started.workers[0].pid]
        await stage.send(order)  # known, though there is no box to tell
        pulse = await telemetry(stage, lambda t: bool(t.workers))
        assert pulse.workers[0].phase == "unknown"
        os.kill(started.workers[0].pid, signal.SIGKILL)
        assert (await stage.exit_of(0)).exit.signal == 9
        assert len(stage.events(WorkersStarted)) == 1

    run(tmp_path, scene)


def test_without_pidfds_ends_are_seen_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(os, "pidfd_open", refuse)

    async def scene(stage: Stage) -> None:
        await stage.start_agent()
        started = await stage.start(steps(0.01, "stubborn", "child"), world=2)
        await until(lambda: len(stage.events(FirstStep)) == 2)
        os.kill(started.workers[0].pid, signal.SIGKILL)
        assert (await stage.exit_of(0)).exit.signal == 9
        await stage.end(started.workers[1].ref, grace_s=0.05)
        assert (await stage.exit_of(1)).exit.signal == 9
        for rank in (0, 1):
            text = stage.home.jobs_dir.joinpath("tiny", f"rank-{rank}.log").read_text()
            child = int(text.split("child ")[1].split()[0])
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)  # may be missed this way, see Process

    run(tmp_path, scene)


def test_damaged_boxes_never_stop_the_agent(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.start_agent()
        started = await stage.start(steps(0.01), world=2)
        await until(lambda: len(stage.events(FirstStep)) == 2)
        await stage.crash_agent()
        one, other = sorted(stage.boxes())
        with one.open("r+b") as file:
            file.write(b"\0" * 64)  # its worker lives
        stage.home.boxes.joinpath("old.r0.g1.i1.abc.box").write_bytes(b"short")  # nobody's
        foreign = stage.home.boxes / "something-else.box"
        foreign.write_bytes(b"?")
        await stage.start_agent()
        joined = (await until(lambda: stage.events(NodeJoined)[1:]))[0]
        assert {w.pid for w in joined.inventory.workers} == {w.pid for w in started.workers}
        assert set(stage.boxes()) == {one, other, foreign}
        foreign.unlink()
        await stage.end(*(w.ref for w in started.workers))
        assert {e.ref for e in stage.events(WorkerExited)} == {w.ref for w in started.workers}

    run(tmp_path, scene)


def test_nothing_is_lost_while_the_bus_is_away(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.start_agent()
        started = await stage.start(steps(0.01), world=2)
        await until(lambda: len(stage.events(FirstStep)) == 2)
        stage.agent_bus.partition()
        os.kill(started.workers[0].pid, signal.SIGKILL)
        await until(lambda: not is_alive(started.workers[0].pid, start_ticks(started.workers[0].pid)))
        await asyncio.sleep(0.05)
        assert not stage.events(WorkerExited)
        assert len(stage.boxes()) == 2  # kept until the exit is in the stream
        stage.agent_bus.heal()
        assert (await stage.exit_of(0)).exit.signal == 9
        joined = (await until(lambda: stage.events(NodeJoined)[1:]))[0]
        assert joined.session == stage.events(NodeJoined)[0].session
        assert [w.ref.rank for w in joined.inventory.workers] == [1]

    run(tmp_path, scene)


def test_only_one_agent_per_home(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.start_agent()
        with pytest.raises(Conflict, match="another agent"):
            await serve(stage.home, NODE, stage.hub.bus(), stop=asyncio.Event(), prewarm=False)

    run(tmp_path, scene)


def test_leaving_says_so_and_workers_go_on(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.start_agent()
        started = await stage.start(sh("sleep 1000"))
        await stage.stop_agent()
        assert stage.events(NodeLeft)
        assert is_alive(started.workers[0].pid, start_ticks(started.workers[0].pid))
        await stage.start_agent()
        joined = stage.events(NodeJoined)
        await until(lambda: len(stage.events(NodeJoined)) == 2)
        assert stage.events(NodeJoined)[1].inventory.workers[0].pid == started.workers[0].pid
        assert len(joined) in (1, 2)

    run(tmp_path, scene)


def test_a_spawner_is_made_ready_at_once_and_replaced_when_it_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", SOURCES)

    async def scene(stage: Stage) -> None:
        await stage.start_agent(prewarm=True)
        path = (await until(lambda: list(stage.home.sockets.glob("spawner-*.sock"))))[0]
        order = stage.order(Program("script", "hello.py"), spawn="warm", interpreter="")
        (stage.work / "hello.py").write_text("print('hello')")
        await stage.send(order, env=dict(os.environ))
        await stage.exit_of(0)
        assert list(stage.home.sockets.glob("spawner-*.sock")) == [path]  # the one made ready served it
        (spawner,) = processes_naming(path)
        os.kill(spawner, signal.SIGKILL)
        await until(lambda: processes_naming(path) not in ([], [spawner]))

    run(tmp_path, scene)


def test_an_agent_that_was_restarted_answers_the_agents_of_its_neighbours_at_once(tmp_path: Path) -> None:
    """Not only from the next start on: until then no copy would be taken."""

    async def scene(stage: Stage) -> None:
        await stage.start_agent()
        await stage.crash_agent()
        folder = tier.directory(stage.home.boxes, "kept")
        make_private(folder)
        plan = KeptPlan(1, MemoryPeer("other", "127.0.0.1", 1), "11" * 32)
        tier.neighbour(folder).write_bytes(msgspec.json.encode(plan))
        await stage.start_agent()
        port = stage.events(NodeJoined)[-1].inventory.memory_port

        def ask() -> Any:
            with call("127.0.0.1", port, "kept", plan.secret) as channel:
                channel.say(ask="list", rank=0)
                return channel.hear()

        assert await asyncio.to_thread(ask) == {"states": []}

    run(tmp_path, scene)
