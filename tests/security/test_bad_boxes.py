"""One bad byte in one worker's black box costs that worker's telemetry, and nothing else on the host."""

from __future__ import annotations

import asyncio
import mmap
import os
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchloom.agent.host import LocalWorker
from torchloom.agent.observe import pulse
from torchloom.agent.observe.boxes import ReadableBox
from torchloom.agent.observe.evidence import Samples
from torchloom.agent.observe.guarded import guarded
from torchloom.agent.observe.windows import Windows
from torchloom.agent.processes.exits import last_words
from torchloom.bus.memory import MemoryHub
from torchloom.bus.protocol import Message
from torchloom.model.worker import Exit, WorkerRef
from torchloom.wire import blackbox, codec, subjects
from torchloom.wire.blackbox import Header, Progress

DEEP = b"[" * 20_000


def new_box(path: Path) -> ReadableBox:
    path.write_bytes(bytes(blackbox.SIZE))
    os.chmod(path, 0o600)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), blackbox.SIZE) as mapping:
        buffer = memoryview(mapping)
        view = blackbox.View(buffer)
        for index, value in (
            (Header.LAYOUT, blackbox.LAYOUT_VERSION),
            (Header.SIZE, blackbox.SIZE),
            (Header.PID, os.getpid()),
            (Header.MONOTONIC_NS, 1),
            (Header.REALTIME_NS, 1),
            (Header.MAGIC, blackbox.MAGIC),
        ):
            view.set_header(index, value)
        view.words.release()
        buffer.release()
    return ReadableBox.open(path)


def new_worker(tmp_path: Path, rank: int) -> LocalWorker:
    return LocalWorker(
        ref=WorkerRef("job", rank, 1, rank + 1),
        order="0",
        pid=os.getpid(),
        start_ticks=1,
        process=None,
        box=new_box(tmp_path / f"job.r{rank}.g1.i{rank + 1}.0.box"),
        log=tmp_path / f"rank-{rank}.log",
        spawner="",
    )


def new_host(workers: list[LocalWorker]) -> Any:
    said: list[Any] = []
    return SimpleNamespace(
        node="n1",
        session="s",
        epoch=1,
        fleet_nodes=1,
        log_limit=1 << 20,
        log_watch=SimpleNamespace(follow=lambda _: None),
        readings={},
        running=lambda: [w for w in workers if not w.ending],
        devices=SimpleNamespace(told=lambda _: (), gpus=(), expected=lambda *_: ()),
        reporter=SimpleNamespace(say=lambda event, id: said.append(codec.encode(event))),
        said=said,
    )


def spoil(box: ReadableBox, how: str) -> None:
    view = box._view
    match how:
        case "all ones":
            for index in Progress:
                view.words[blackbox.PROGRESS_AT // 8 + index] = blackbox.MASK
        case "a clock of all ones":
            view.set_header(Header.REALTIME_NS, blackbox.MASK)
            view.set_progress(Progress.STEPS, 3)
            view.set_progress(Progress.FIRST_STEP_NS, blackbox.MASK)
            view.set_progress(Progress.TRAINING_STEP, blackbox.MASK)
        case "cut off":
            os.truncate(box.path, 4096)
        case "deep json":
            for blob in (
                blackbox.END,
                blackbox.ANSWERS,
                blackbox.CHECKPOINTS,
                blackbox.METRICS,
                blackbox.DEVICE,
            ):
                view.write_blob(blob, DEEP[: blob.capacity])
        case "noise":
            chance = random.Random(7)
            magic = bytes(view.raw[:64])
            view.raw[:] = chance.randbytes(len(view.raw))
            view.raw[:64] = magic


HOW = ("all ones", "a clock of all ones", "cut off", "deep json", "noise")


@pytest.mark.parametrize("how", HOW)
def test_the_heartbeat_and_the_other_workers_go_on(tmp_path: Path, how: str) -> None:
    async def scene() -> None:
        workers = [new_worker(tmp_path, rank) for rank in range(3)]
        assert workers[1].box is not None
        spoil(workers[1].box, how)
        host, hub = new_host(workers), MemoryHub()
        got: asyncio.Queue[Message] = asyncio.Queue()
        await hub.bus().subscribe(subjects.TELEMETRY, got.put)
        beating = asyncio.create_task(pulse.beat(host, hub.bus()))
        try:
            for _ in range(2):
                async with asyncio.timeout(60):
                    message = await got.get()
                told = codec.decode_telemetry(message.data)
                ranks = {one.ref.rank for one in told.workers}
                assert {0, 2} <= ranks, "the others are reported"
                assert not beating.done()
        finally:
            beating.cancel()
            for worker in workers:
                if worker.box is not None:
                    worker.box.close()

    asyncio.run(scene())


@pytest.mark.parametrize("how", HOW)
def test_windows_of_the_others_are_taken(tmp_path: Path, how: str) -> None:
    workers = [new_worker(tmp_path, rank) for rank in range(3)]
    assert workers[1].box is not None
    spoil(workers[1].box, how)
    host = new_host(workers)
    windows = Windows(host, Samples(host))
    found = {one.ref.rank for one in windows.take(lambda: 10**9)}
    for one in windows.take(lambda: 2 * 10**9):
        codec.encode(one)
    assert {0, 2} <= found, "the others are looked at"
    if how == "cut off":
        assert workers[1].box is None and "cut off" in workers[1].blind
    for worker in workers:
        if worker.box is not None:
            worker.box.close()


@pytest.mark.parametrize("how", HOW)
def test_an_exit_is_reported_whatever_is_in_the_box(tmp_path: Path, how: str) -> None:
    worker = new_worker(tmp_path, 0)
    assert worker.box is not None
    spoil(worker.box, how)
    end = guarded(worker, worker.box.end_record, None)
    event = last_words("n1", worker, Exit(None, 9, "spawner"), 10, end)
    assert event.exit.signal == 9 and codec.encode(event)
    if worker.box is not None:
        worker.box.close()


def read_everything(worker: LocalWorker) -> None:
    """All readers of a box, one after the other, as the agent calls them."""
    host = new_host([worker])
    guarded(worker, lambda: pulse._look(host, worker), None)
    Windows(host, Samples(host)).take(lambda: 10**9)
    codec.encode(last_words("n1", worker, Exit(1, None, "spawner"), 10, None))


def fuzz(tmp_path: Path, data: bytes, at: int) -> None:
    worker = new_worker(tmp_path, 0)
    assert worker.box is not None
    box = worker.box
    begin = 64 + at % (blackbox.SIZE - 64 - len(data)) if len(data) < blackbox.SIZE - 64 else 64
    box._view.raw[begin : begin + len(data)] = data[: blackbox.SIZE - begin]
    try:
        read_everything(worker)
    finally:
        box.close()
        box.path.unlink(missing_ok=True)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(min_size=1, max_size=4096), at=st.integers(0, 2**24))
def test_no_bytes_in_a_box_stop_the_agent(tmp_path: Path, data: bytes, at: int) -> None:
    fuzz(tmp_path, data, at)
