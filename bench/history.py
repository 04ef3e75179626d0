"""How long a control service takes to start, with and without its whole history in the stream.

A real nats-server is filled with the events of jobs that waited for a node, were stopped and deleted. Then it
is restarted, a weaver is started on it, and both are timed: with every event kept and no snapshot, with every
event kept and a snapshot, and after a weaver dropped them. Run it with

    python bench/history.py [--events 200000] [--home DIR] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tempfile
import time
from pathlib import Path

from torchloom.bus.embedded import EmbeddedNats
from torchloom.bus.nats import NatsBus
from torchloom.model.events import Envelope, JobDeleted, JobSubmitted, StopRequested, TimerFired
from torchloom.model.job import JobSpec, Program
from torchloom.weaver import dropping
from torchloom.weaver.service import Weaver
from torchloom.weaver.snapshot import ANCHORS, NEWEST, Snapshots
from torchloom.wire import codec, subjects

AT_ONCE = 512
KEEP = 20_000


def one_job(number: int) -> list[tuple[str, bytes, str]]:
    """A job's events: subject, bytes and id of each."""
    name = f"job{number}"
    spec = JobSpec(program=Program("script", "train.py"), cwd="/", workers_per_node=8)
    bodies = [
        JobSubmitted(job=name, spec=spec, by="bench", env_id=name),
        *(TimerFired(timer=f"{name}-{n}") for n in range(6)),
        StopRequested(job=name, by="bench"),
        JobDeleted(job=name, by="bench", keep_logs=False),
    ]
    made = [Envelope(f"{name}-{at}", "bench", body) for at, body in enumerate(bodies)]
    return [(subjects.weaver_event("bench"), codec.encode(one), one.id) for one in made]


async def fill(bus: NatsBus, events: int, number: int = 0) -> int:
    stored = 0
    due: list[tuple[str, bytes, str]] = []
    while stored < events:
        due += one_job(number)
        number += 1
        if len(due) >= AT_ONCE:
            await asyncio.gather(
                *(bus.append(subject, data, id=id, timeout_s=120) for subject, data, id in due)
            )
            stored, due = stored + len(due), []
    return stored


async def ready_s(server: EmbeddedNats) -> float:
    """Until a weaver that was just started answers requests."""
    bus = await NatsBus.connect(server.address("weaver"), name="bench", wait_s=60)
    began_s, stop = time.monotonic(), asyncio.Event()
    weaver = Weaver(bus, "bench", keep_history=10**9)
    task = asyncio.create_task(weaver.run(stop))
    while not weaver.active:
        await asyncio.sleep(0.005)
        assert not task.done(), task
    took_s = time.monotonic() - began_s
    stop.set()
    await task
    await bus.close()
    return took_s


def restarted(server: EmbeddedNats) -> float:
    server.stop()
    began_s = time.monotonic()
    server.start()
    server.wait_ready(120)
    return time.monotonic() - began_s


async def without_snapshots(server: EmbeddedNats) -> None:
    bus = await NatsBus.connect(server.address("weaver"), name="bench", wait_s=60)
    await bus.provision()
    for slot in (*NEWEST, *ANCHORS):
        await bus.delete_object(slot)
    await bus.close()


async def tended(server: EmbeddedNats, anchors: int, first: int) -> int:
    """Run a weaver until so many anchors are stored and events before `first` are dropped; events left."""
    dropping.LOOK_EVERY_S = 0.1
    bus = await NatsBus.connect(server.address("weaver"), name="bench", wait_s=60)
    stop = asyncio.Event()
    weaver = Weaver(bus, "bench", keep_history=KEEP)
    task = asyncio.create_task(weaver.run(stop))
    while await bus.first_seq() < first or len(await Snapshots(bus).anchors(2**60)) < anchors:
        assert not task.done(), task
        await asyncio.sleep(0.5)
    left = await bus.last_seq() - await bus.first_seq() + 1
    stop.set()
    await task
    await bus.close()
    return left


async def drop(server: EmbeddedNats) -> tuple[float, int]:
    """Let weavers take anchors and drop what they stand for: the time for the second, and events left."""
    await tended(server, 1, 1)
    bus = await NatsBus.connect(server.address("weaver"), name="bench", wait_s=60)
    await fill(bus, KEEP, 10**6)
    await bus.close()
    began_s = time.monotonic()
    left = await tended(server, 2, 2)
    return time.monotonic() - began_s, left


async def measure(home: Path, events: int) -> dict[str, float]:
    server = EmbeddedNats(home / "nats", "bench")
    found: dict[str, float] = {}
    server.start()
    server.wait_ready(60)
    try:
        bus = await NatsBus.connect(server.address("weaver"), name="bench", wait_s=60)
        await bus.provision()
        began_s = time.monotonic()
        found["events"] = await fill(bus, events)
        found["filling_s"] = time.monotonic() - began_s
        await bus.close()
        found["replay_nats_s"] = restarted(server)
        found["replay_weaver_s"] = await ready_s(server)
        found["kept_nats_s"] = restarted(server)
        found["kept_weaver_s"] = await ready_s(server)
        found["dropping_s"], found["events_left"] = await drop(server)
        found["dropped_nats_s"] = restarted(server)
        found["dropped_weaver_s"] = await ready_s(server)
    finally:
        server.stop()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--home", type=Path, help="where the server stores; default: a temporary directory")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    home = options.home or Path(tempfile.mkdtemp(prefix="loom-bench-"))
    try:
        found = asyncio.run(measure(home, options.events))
    finally:
        shutil.rmtree(home, ignore_errors=True)
    if options.json:
        print(json.dumps(found))
        return
    print(f"{found['events']:,.0f} events; {found['events_left']:,.0f} left after dropping")
    print("| start with | nats-server | weaver until it leads |")
    print("|---|---|---|")
    for name, words in (
        ("replay", "all events, no snapshot"),
        ("kept", "all events, a snapshot"),
        ("dropped", "events dropped behind a verified snapshot"),
    ):
        print(f"| {words} | {found[f'{name}_nats_s']:.2f} s | {found[f'{name}_weaver_s']:.2f} s |")


if __name__ == "__main__":
    main()
