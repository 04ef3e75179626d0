"""The agent with a real spawner and small real workers, over the memory bus."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from torchloom.agent import boxes
from torchloom.agent.main import serve
from torchloom.agent.process import is_alive, start_ticks
from torchloom.bus.memory import MemoryBus, MemoryHub
from torchloom.errors import Conflict
from torchloom.home import Home
from torchloom.model.effects import Effect, Launch, StartStore, StartWorkers, StopStore, StopWorkers
from torchloom.model.events import (
    EffectDone,
    EffectFailed,
    Event,
    FirstStep,
    NodeJoined,
    NodeLeft,
    StoreLost,
    StoreStarted,
    WorkerExited,
    WorkerRegistered,
    WorkersStarted,
)
from torchloom.model.job import Program
from torchloom.model.messages import BoxReading, Command, LogPiece, ReadBox, ReadLog, Receipt, Telemetry
from torchloom.model.node import StoreAddress, StoreRef
from torchloom.model.worker import WorkerRef
from torchloom.wire import codec, subjects

NODE = "here"
E = TypeVar("E", bound=Event)
SOURCES = str(Path(__file__).parents[2] / "src")


class Stage:
    """One home, one bus, and the agents that serve it one after the other."""

    def __init__(self, home: Home, work: Path) -> None:
        self.home = home
        self.work = work
        self.hub = MemoryHub()
        self.weaver = self.hub.bus()
        self.agent_bus: MemoryBus = self.hub.bus()
        self.stop = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.numbers = iter(range(1, 1000))

    # -- the agent ------------------------------------------------------------------------------
    async def start_agent(self, prewarm: bool = False, **options: Any) -> None:
        self.stop = asyncio.Event()
        ready = asyncio.Event()
        self.agent_bus = self.hub.bus()
        self.task = asyncio.create_task(
            serve(self.home, NODE, self.agent_bus, stop=self.stop, ready=ready, prewarm=prewarm, **options)
        )
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait([self.task, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self.task.done():
            self.task.result()

    async def stop_agent(self) -> None:
        assert self.task is not None
        self.stop.set()
        await self.task
        await self.agent_bus.close()

    async def crash_agent(self) -> None:
        assert self.task is not None
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task
        await self.agent_bus.close()

    # -- the weaver's side ----------------------------------------------------------------------
    async def send(self, effect: Effect, epoch: int = 1, env: dict[str, str] | None = None) -> Receipt:
        command = Command(epoch, effect, environment() if env is None else env)
        answer = await self.weaver.request(subjects.command(NODE), codec.encode(command))
        return codec.decode_receipt(answer)

    def events(self, kind: type[E]) -> list[E]:
        found = [codec.decode_envelope(record.data).body for record in self.hub.records]
        return [event for event in found if isinstance(event, kind)]

    async def event(self, kind: type[E], accept: Callable[[E], bool] = lambda _: True) -> E:
        try:
            return await until(lambda: next(filter(accept, self.events(kind)), None))
        except TimeoutError as error:
            raise AssertionError(f"no {kind.__name__}; failed: {self.events(EffectFailed)}") from error

    async def exit_of(self, rank: int, generation: int = 1) -> WorkerExited:
        return await self.event(WorkerExited, lambda e: e.ref.rank == rank and e.ref.generation == generation)

    def effect_id(self) -> str:
        return f"e{next(self.numbers)}-0"

    def order(
        self,
        program: Program,
        *,
        world: int = 1,
        generation: int = 1,
        job: str = "tiny",
        port: int = 1,
        **changes: Any,
    ) -> StartWorkers:
        fields: dict[str, Any] = {
            "id": self.effect_id(),
            "cause": 1,
            "reason": "a test wants it",
            "node": NODE,
            "job": job,
            "generation": generation,
            "program": program,
            "cwd": str(self.work),
            "interpreter": sys.executable,
            "spawn": "cold",
            "preload": (),
            "launches": tuple(
                Launch(WorkerRef(job, rank, generation, (generation - 1) * world + rank + 1), rank)
                for rank in range(world)
            ),
            "world_size": world,
            "local_world_size": world,
            "group_rank": 0,
            "group_world_size": 1,
            "replicas": 1,
            "restart_count": 0,
            "max_restarts": 3,
            "store": StoreAddress("127.0.0.1", port),
        }
        return StartWorkers(**{**fields, **changes})

    async def start(self, program: Program, **changes: Any) -> WorkersStarted:
        order = self.order(program, **changes)
        assert (await self.send(order)).accepted
        started = await self.event(WorkersStarted, lambda e: e.effect == order.id)
        return started

    async def end(self, *refs: WorkerRef, **how: Any) -> EffectDone:
        effect = StopWorkers(
            id=self.effect_id(), cause=1, reason="a test is over", node=NODE, workers=refs, **how
        )
        assert (await self.send(effect)).accepted
        return await self.event(EffectDone, lambda e: e.effect == effect.id)

    def boxes(self) -> list[Path]:
        return list(boxes.found_in(self.home))


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": SOURCES}


def steps(step_s: float, *words: str) -> Program:
    """A worker that steps, without torch."""
    script = str(Path(__file__).with_name("agent_worker.py"))
    return Program("command", sys.executable, (script, str(step_s), *words))


def sh(text: str) -> Program:
    return Program("command", "sh", ("-c", text))


async def until(check: Callable[[], Any], timeout_s: float = 30.0) -> Any:
    """Wait for a condition."""
    give_up = time.monotonic() + timeout_s
    while not (found := check()):
        if time.monotonic() > give_up:
            raise TimeoutError("waited too long")
        await asyncio.sleep(0.005)
    return found


@contextlib.asynccontextmanager
async def staged(tmp_path: Path) -> AsyncIterator[Stage]:
    home = Home(tmp_path / uuid.uuid4().hex[:8])
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    stage = Stage(home, work)
    try:
        yield stage
    finally:
        if stage.task is None or stage.task.done():
            await stage.start_agent()
        refs = [ref for joined in stage.events(WorkersStarted) for ref in (w.ref for w in joined.workers)]
        gone = {event.ref for event in stage.events(WorkerExited)}
        await stage.end(*{ref for ref in refs if ref not in gone})
        await stage.stop_agent()
        assert not processes_naming(home.sockets)
        left = [path for path in (home.boxes, home.boxes_fallback, home.sockets) if path.exists()]
        assert not left, f"left behind: {left} {[list(path.iterdir()) for path in left]}"


def processes_naming(path: Path) -> list[int]:
    """Processes, e.g. spawners, whose command line speaks of this path."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and os.fsencode(path) in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def run(tmp_path: Path, scene: Callable[[Stage], Any]) -> None:
    async def play() -> None:
        async with staged(tmp_path) as stage:
            await scene(stage)

    asyncio.run(play())


def test_a_worker_starts_prints_and_exits_with_its_code(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.start_agent()
        joined = await stage.event(NodeJoined)
        assert joined.inventory.devices and joined.inventory.workers == ()
        started = await stage.start(sh("echo rank $RANK of $WORLD_SIZE; exit $((RANK + 3))"), world=2)
        assert [w.blind for w in started.workers] == ["", ""]
        for rank in (0, 1):
            ended: WorkerExited = await stage.exit_of(rank)
            assert (ended.exit.code, ended.exit.signal) == (rank + 3, None)
            assert ended.exit.source in ("spawner", "pidfd")
            assert ended.log_tail == (f"[loom] generation 1: rank {rank} of 2", f"rank {rank} of 2")
        await until(lambda: not stage.boxes())

    run(tmp_path, scene)


def test_a_kill_is_told_by_its_signal_with_what_the_worker_was_doing(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.start_agent()
        started = await stage.start(steps(0.01, "collective"))
        first = await stage.event(FirstStep)
        assert abs(first.at_ns - time.time_ns()) < 60e9
        registered = await stage.event(WorkerRegistered)
        assert [d.device for d in registered.devices] == [f"cpu-{NODE}-0"]
        os.kill(started.workers[0].pid, signal.SIGKILL)
        killed_ns = time.time_ns()
        ended = await stage.exit_of(0)
        assert (ended.exit.code, ended.exit.signal) == (None, 9)
        assert ended.steps > 0 and ended.ran_s > 0
        assert ended.activity.startswith("in all_reduce #412 (4.0 MB float32) for ")
        assert ended.at_ns - killed_ns < 5e9

    run(tmp_path, scene)


def test_stop_at_a_boundary_then_term_then_kill(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.start_agent()
        gentle = await stage.start(steps(0.01), job="gentle")
        stubborn = await stage.start(steps(0.01, "stubborn"), job="stubborn")
        await until(lambda: len(stage.events(FirstStep)) == 2)
        await stage.end(gentle.workers[0].ref, at_step=200, boundary_wait_s=30.0, grace_s=30.0)
        ended = await stage.event(WorkerExited, lambda e: e.ref.job == "gentle")
        assert ended.exit.ok and ended.steps == 199
        assert ended.log_tail[-1] == "stopped before step 200"
        await stage.end(stubborn.workers[0].ref, grace_s=0.2)
        killed = await stage.event(WorkerExited, lambda e: e.ref.job == "stubborn")
        assert killed.exit.signal == signal.SIGKILL

    run(tmp_path, scene)


def test_a_harsher_stop_does_not_wait_for_a_gentle_one(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.start_agent()
        started = await stage.start(steps(0.01, "stubborn"))
        ref = started.workers[0].ref
        await stage.event(FirstStep)
        slow = StopWorkers(id="slow", cause=1, reason="gently", node=NODE, workers=(ref,), grace_s=600.0)
        await stage.send(slow)
        await stage.end(ref)
        assert (await stage.exit_of(0)).exit.signal == signal.SIGKILL
        await stage.event(EffectDone, lambda e: e.effect == "slow")

    run(tmp_path, scene)


def test_whoever_sits_in_a_broken_collective_is_killed_at_once(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.start_agent()
        started = await stage.start(steps(0.01, "stubborn", "collective"))
        await stage.event(FirstStep)
        await stage.end(started.workers[0].ref, grace_s=600.0, kill_in_collective=True)
        assert (await stage.exit_of(0)).exit.signal == signal.SIGKILL

    run(tmp_path, scene)


def test_children_of_a_worker_die_with_it(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.start_agent()
        started = await stage.start(steps(0.01, "child"))
        await stage.event(FirstStep)
        text = stage.home.jobs_dir.joinpath("tiny", "rank-0.log").read_text()
        child = int(text.split("child ")[1].split()[0])
        ticks = start_ticks(child)
        assert is_alive(child, ticks)
        os.kill(started.workers[0].pid, signal.SIGKILL)
        await stage.exit_of(0)
        await until(lambda: not is_alive(child, ticks))

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
        await stage.end(started.workers[0].ref)
        assert stage.home.jobs_dir.joinpath("tiny", "rank-0.log").read_text().count("once") == 1
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


def test_commands_of_an_older_epoch_or_another_node_are_refused(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.start_agent()
        order = stage.order(sh("exit 0"))
        assert (await stage.send(order, epoch=7)).highest_epoch == 7
        refused = await stage.send(stage.order(sh("exit 0"), generation=2), epoch=6)
        assert not refused.accepted and refused.highest_epoch == 7 and "epoch 6" in refused.why
        await stage.exit_of(0)
        await stage.stop_agent()
        await stage.start_agent()
        assert not (await stage.send(stage.order(sh("exit 0"), generation=2), epoch=6)).accepted
        assert not (await stage.send(stage.order(sh("exit 0"), node="there"), epoch=8)).accepted
        garbage = await stage.weaver.request(subjects.command(NODE), b"garbage")
        assert not codec.decode_receipt(garbage).accepted
        (await stage.event(NodeJoined, lambda e: e.inventory.highest_epoch == 7))
        stage.numbers = iter(range(500, 600))
        original = stage.send
        stage.send = lambda effect, epoch=9, env=None: original(effect, epoch, env)  # type: ignore[method-assign]

    run(tmp_path, scene)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"program": Program("script", "missing.py")}, "missing.py does not exist"),
        ({"cwd": "/nowhere/at/all"}, "/nowhere/at/all does not exist"),
        ({"interpreter": "/nowhere/python"}, "/nowhere/python"),
        ({"program": Program("command", "no-such-program")}, "no program no-such-program"),
    ],
)
def test_what_cannot_be_started_is_said_in_one_sentence(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    async def scene(stage: Stage) -> None:
        await stage.start_agent()
        order = stage.order(**{"program": sh("exit 0"), "world": 2, **changes})
        await stage.send(order)
        failed = await stage.event(EffectFailed)
        assert failed.effect == order.id and words in failed.why and "\n" not in failed.why
        assert not stage.boxes()

    run(tmp_path, scene)


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


def test_stopping_what_never_ran_is_an_exit_all_the_same(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.start_agent()
        ref = WorkerRef("tiny", 0, 1, 1)
        await stage.end(ref)
        ended = await stage.exit_of(0)
        assert ended.ref == ref and ended.exit.source == "inventory"

    run(tmp_path, scene)


def test_logs_and_boxes_can_be_asked_for(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.start_agent()
        started = await stage.start(steps(0.01, "collective", "child"))
        await stage.event(FirstStep)
        piece = await read_log(stage, ReadLog("tiny", 0))
        assert (
            piece.data.startswith(b"[loom] generation 1") and piece.data.endswith(b"\n") and not piece.ended
        )
        assert (await read_log(stage, ReadLog("tiny", 0, offset=piece.next_offset))).data == b""
        tail = await read_log(stage, ReadLog("tiny", 0, offset=-1))
        assert tail.data.startswith(b"child ") and tail.next_offset == piece.next_offset
        assert (await read_log(stage, ReadLog("../../etc", 0))).data == b""
        assert (await read_log(stage, ReadLog("unknown", 3))).data == b""
        reading = await read_box(stage, started.workers[0].ref)
        assert reading.found and reading.steps[0]["step"] == 1
        assert reading.collectives[0]["op"] == "all_reduce" and reading.collectives[0]["finished_ns"] is None
        assert reading.metrics["loss"] == 0.5 and reading.hyperparameters == [{"lr": 0.1}]
        assert not (await read_box(stage, WorkerRef("tiny", 0, 9, 9))).found
        garbage = await stage.weaver.request(subjects.query(NODE), b"garbage")
        assert not codec.decode_box_reading(garbage).found

    run(tmp_path, scene)


def test_a_pulse_means_progress(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.start_agent()
        started = await stage.start(steps(0.01))
        seen = await telemetry(stage, lambda t: bool(t.workers) and t.workers[0].steps > 5)
        pulse = seen.workers[0]
        assert pulse.phase == "training" and pulse.step_s == pytest.approx(0.01)
        assert pulse.metrics == {"loss": 0.5}
        os.kill(started.workers[0].pid, signal.SIGSTOP)
        await telemetry(stage, lambda t: bool(t.workers) and t.workers[0].idle_s > 0.3)
        await stage.end(started.workers[0].ref, grace_s=0.05)
        assert (await stage.exit_of(0)).exit.signal == 9

    run(tmp_path, scene)


def test_a_flood_of_output_does_not_fill_the_disk(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        limit = 1 << 20
        await stage.start_agent(log_limit=limit)
        started = await stage.start(sh("while :; do seq 1 20000; sleep 0.02; done"))
        path = stage.home.jobs_dir / "tiny" / "rank-0.log"
        await until(lambda: path.stat().st_size > 8 * limit)
        os.kill(started.workers[0].pid, signal.SIGSTOP)
        await until(lambda: path.stat().st_blocks * 512 <= limit)
        piece = await read_log(stage, ReadLog("tiny", 0, offset=10))
        assert piece.lost_bytes == piece.offset - 10 > 6 * limit
        first = piece.data.split(b"\n")
        assert int(first[1]) == int(first[0]) + 1 or first[1] == b"1"

    run(tmp_path, scene)


def test_secrets_of_ours_do_not_reach_a_worker_and_torchruns_variables_do(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.start_agent()
        secret = {"LOOM_TOKEN": "s3cret", "LOOM_NATS_URL": "nats://u:s3cret@h", "MINE": "kept"}
        order = stage.order(sh("env | sort"), world=2, port=4711)
        await stage.send(order, env=environment() | secret)
        await stage.exit_of(1)
        text = (await read_log(stage, ReadLog("tiny", 1))).data.decode()
        assert "s3cret" not in text
        for line in (
            "MINE=kept",
            "RANK=1",
            "LOCAL_RANK=1",
            "WORLD_SIZE=2",
            "MASTER_PORT=4711",
            "JOB_ID=tiny",
        ):
            assert f"\n{line}\n" in text
        for name in (
            "JOB_ID=tiny",
            "OMP_NUM_THREADS=1",
            "TORCHELASTIC_RUN_ID=tiny",
            "TORCHELASTIC_USE_AGENT_STORE=True",
        ):
            assert f"\n{name}\n" in text
        everything = [p for p in stage.home.root.rglob("*") if p.is_file()]
        assert not [p for p in everything if b"s3cret" in p.read_bytes()]

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


async def read_log(stage: Stage, query: ReadLog) -> LogPiece:
    return codec.decode_log_piece(await stage.weaver.request(subjects.query(NODE), codec.encode(query)))


async def read_box(stage: Stage, ref: WorkerRef) -> BoxReading:
    answer = await stage.weaver.request(subjects.query(NODE), codec.encode(ReadBox(ref)))
    return codec.decode_box_reading(answer)


async def telemetry(stage: Stage, accept: Callable[[Telemetry], bool]) -> Telemetry:
    heard: list[Telemetry] = []

    async def hear(message: Any) -> None:
        heard.append(codec.decode_telemetry(message.data))

    subscription = await stage.weaver.subscribe(subjects.telemetry(NODE), hear)
    try:
        found: Telemetry = await until(lambda: next(filter(accept, heard), None))
        return found
    finally:
        await subscription.unsubscribe()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


SCRIPT = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100_000):
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 1 and step == 3:
        print("rank 1 turns to stone", flush=True)
        time.sleep(1000)
"""


def test_two_ranks_of_torch_meet_in_a_store_and_are_seen_waiting(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.start_agent()
        (stage.work / "train.py").write_text(SCRIPT)
        store = StartStore(
            id="store", cause=1, reason="they must meet", node=NODE, store=StoreRef("tiny", 1),
            host="127.0.0.1", interpreter=sys.executable, spawn="warm",
        )  # fmt: skip
        await stage.send(store)
        up = await stage.event(StoreStarted)
        await stage.start(
            Program("script", "train.py"), world=2, spawn="warm", port=up.address.port, pin_cores=True
        )
        await until(lambda: len(stage.events(FirstStep)) == 2)
        waiting = await telemetry(
            stage, lambda t: bool(t.workers) and all(w.steps == 4 and w.idle_s > 0.3 for w in t.workers)
        )
        stuck = next(w for w in waiting.workers if w.ref.rank == 0)
        assert stuck.collective.startswith("all_reduce #") and "of group default" in stuck.collective
        tracked = stuck.recorder == "native"  # the other one does not see what is under way
        assert bool(stuck.in_collective_s) == tracked
        await stage.crash_agent()
        await stage.start_agent()
        joined = (await until(lambda: stage.events(NodeJoined)[1:]))[0]
        assert joined.inventory.stores == (StoreRef("tiny", 1),)
        refs = [w.ref for w in joined.inventory.workers]
        await stage.end(*refs, grace_s=600.0, kill_in_collective=True)
        assert (await stage.exit_of(0)).exit.signal == (signal.SIGKILL if tracked else signal.SIGTERM)
        assert ("in all_reduce #" if tracked else "after its step 4") in (await stage.exit_of(0)).activity
        assert (await stage.exit_of(1)).exit.signal == signal.SIGTERM
        assert "rank 1 turns to stone" in (await stage.exit_of(1)).log_tail
        stop = StopStore(id="no-store", cause=1, reason="over", node=NODE, store=StoreRef("tiny", 1))
        await stage.send(stop)
        await stage.event(EffectDone, lambda e: e.effect == "no-store")
        assert not stage.events(StoreLost)

    run(tmp_path, scene)


def test_a_stop_overtakes_a_start_that_waits_for_a_warm_spawner(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.start_agent()
        order = stage.order(sh("echo must not run"), spawn="warm")
        await stage.send(order)
        await stage.end(*(launch.ref for launch in order.launches))
        assert (await stage.exit_of(0)).exit.source == "inventory"
        assert "stopped before" in (await stage.event(EffectFailed)).why
        assert b"must not run" not in stage.home.jobs_dir.joinpath("tiny", "rank-0.log").read_bytes()

    run(tmp_path, scene)


def test_a_spawner_is_made_ready_at_once_and_replaced_when_it_dies(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        os.environ["PYTHONPATH"] = SOURCES
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
