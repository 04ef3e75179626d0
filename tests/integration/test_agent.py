"""The agent with a real spawner and small real workers, over the memory bus."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent_stage import (
    NODE,
    SOURCES,
    Stage,
    environment,
    read_box,
    read_log,
    run,
    sh,
    steps,
    telemetry,
    until,
)

from torchloom.agent.processes.process import is_alive, start_ticks
from torchloom.api.log_order import Merge, stretches
from torchloom.model.effects import StartRendezvous, StopRendezvous, StopWorkers
from torchloom.model.events import (
    EffectDone,
    EffectFailed,
    FirstStep,
    NodeJoined,
    RendezvousLost,
    RendezvousStarted,
    WorkerExited,
    WorkerRegistered,
)
from torchloom.model.job import Program
from torchloom.model.messages import Command, LogPiece, ReadLog, ReadSteps
from torchloom.model.node import RendezvousRef
from torchloom.model.worker import WorkerRef
from torchloom.wire import codec, subjects


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
        assert abs(first.at_ns - time.time_ns()) < 3600e9, "a time of day, not of the machine"
        registered = await stage.event(WorkerRegistered)
        assert [d.device for d in registered.devices] == [f"cpu-{NODE}-0"]
        killed_ns = time.time_ns()
        os.kill(started.workers[0].pid, signal.SIGKILL)
        ended = await stage.exit_of(0)
        assert (ended.exit.code, ended.exit.signal) == (None, 9) and ended.exit.foreign
        assert ended.steps > 0 and ended.ran_s > 0
        assert ended.activity.startswith("in all_reduce #412 (4.0 MB float32) for ")
        assert killed_ns <= ended.at_ns <= time.time_ns()

    run(tmp_path, scene)


def test_stop_at_a_boundary_then_term_then_kill(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.start_agent()
        # Held, so that it cannot be past its end before it is told of it.
        gentle = await stage.start(steps(0.01, "held=30"), job="gentle")
        stubborn = await stage.start(steps(0.01, "stubborn"), job="stubborn")
        await until(lambda: len(stage.events(FirstStep)) == 2)
        await stage.end(gentle.workers[0].ref, at_step=40, boundary_wait_s=600.0, grace_s=600.0)
        ended = await stage.event(WorkerExited, lambda e: e.ref.job == "gentle")
        assert ended.exit.ok and ended.steps == 39
        assert ended.log_tail[-1] == "stopped before step 40"
        await stage.end(stubborn.workers[0].ref, grace_s=0.2)
        killed = await stage.event(WorkerExited, lambda e: e.ref.job == "stubborn")
        assert killed.exit.signal == signal.SIGKILL and not killed.exit.foreign

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
        newer = codec.encode(Command(7, stage.order(sh("exit 0"), generation=3), schema=2))
        answer = codec.decode_receipt(await stage.weaver.request(subjects.command(NODE), newer))
        assert answer.too_old and not answer.accepted, "a command of a newer schema"
        assert "is too old for this command: it has schema 2, this version reads up to 1" in answer.why
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
        started = await stage.start(steps(0.01, "collective", "child", "held=3"))
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
        asked = ReadSteps((started.workers[0].ref, WorkerRef("tiny", 0, 9, 9)))
        answer = await stage.weaver.request(subjects.query(NODE), codec.encode(asked))
        (far,) = codec.decode_steps_reading(answer).ranks
        assert (far.rank, far.paused) == (0, False) and far.steps >= 1 and far.since_s >= 0
        garbage = await stage.weaver.request(subjects.query(NODE), b"garbage")
        assert not codec.decode_box_reading(garbage).found

    run(tmp_path, scene)


def test_lines_of_two_ranks_have_an_order_and_a_bar_is_seen_while_it_moves(tmp_path: Path) -> None:
    """Both ranks print in turn, each when the other's line is in its log."""
    turn = 'for n in 0 1 2; do until [ -e "$0/$n-$RANK" ]; do sleep 0.01; done; echo "$n of $RANK"; done'
    bar = "printf '10%%\\r20%%'; until [ -e \"$0/end\" ]; do sleep 0.01; done; echo"

    async def scene(stage: Stage) -> None:
        await stage.start_agent()
        await stage.start(sh(f"{turn}; {bar}", str(tmp_path)), world=2)
        wanted = []
        for n in range(3):
            for rank in (0, 1):
                line = b"%d of %d\n" % (n, rank)
                (tmp_path / f"{n}-{rank}").touch()
                await read_until(stage, ReadLog("tiny", rank), lambda piece, line=line: line in piece.data)
                wanted.append(line)
        merge = Merge()
        for rank in (0, 1):
            merge.add(stretches(rank, await read_log(stage, ReadLog("tiny", rank))))
        found = b"".join(one.data for one in merge.take(2**62, 2**62)).splitlines(keepends=True)
        assert [line for line in found if b" of " in line and b"loom" not in line] == wanted
        asked = ReadLog("tiny", 1, unfinished=True)
        seen = await read_until(stage, asked, lambda piece: piece.unfinished.endswith(b"20%"))
        assert seen.unfinished == b"10%\r20%" and b"20%" not in seen.data
        (tmp_path / "end").touch()
        seen = await read_until(stage, asked, lambda piece: b"20%" in piece.data)
        assert seen.data.endswith(b"10%\r20%\n") and seen.unfinished == b""

    run(tmp_path, scene)


async def read_until(stage: Stage, query: ReadLog, enough: Callable[[LogPiece], bool]) -> LogPiece:
    async with asyncio.timeout(120):
        while not enough(piece := await read_log(stage, query)):
            await asyncio.sleep(0.02)
    return piece


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
        await stage.exit_of(0)
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
        store = StartRendezvous(
            id="store", cause=1, reason="they must meet", node=NODE, store=RendezvousRef("tiny", 1),
            host="127.0.0.1", interpreter=sys.executable, spawn="warm",
        )  # fmt: skip
        await stage.send(store)
        up = await stage.event(RendezvousStarted)
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
        assert joined.inventory.stores == (RendezvousRef("tiny", 1),)
        refs = [w.ref for w in joined.inventory.workers]
        await stage.end(*refs, grace_s=600.0, kill_in_collective=True)
        assert (await stage.exit_of(0)).exit.signal == (signal.SIGKILL if tracked else signal.SIGTERM)
        assert ("in all_reduce #" if tracked else "after its step 4") in (await stage.exit_of(0)).activity
        assert (await stage.exit_of(1)).exit.signal == signal.SIGTERM
        assert "rank 1 turns to stone" in (await stage.exit_of(1)).log_tail
        stop = StopRendezvous(
            id="no-store", cause=1, reason="over", node=NODE, store=RendezvousRef("tiny", 1)
        )
        await stage.send(stop)
        await stage.event(EffectDone, lambda e: e.effect == "no-store")
        assert not stage.events(RendezvousLost)

    run(tmp_path, scene)


def test_a_stop_overtakes_a_start_that_waits_for_a_warm_spawner(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.start_agent()
        gate = stage.work / "gate"
        # It is not warm before the stop is done, however slow this test may be beside it.
        stage.work.joinpath("waits.py").write_text(
            f"import os, time\nwhile not os.path.exists({str(gate)!r}):\n    time.sleep(0.01)\n"
        )
        order = stage.order(sh("echo must not run"), spawn="warm", preload=("waits",))
        await stage.send(order, env=environment() | {"PYTHONPATH": f"{SOURCES}:{stage.work}"})
        await stage.end(*(launch.ref for launch in order.launches))
        assert (await stage.exit_of(0)).exit.source == "inventory"
        assert "stopped before" in (await stage.event(EffectFailed)).why
        gate.touch()
        assert b"must not run" not in stage.home.jobs_dir.joinpath("tiny", "rank-0.log").read_bytes()

    run(tmp_path, scene)
