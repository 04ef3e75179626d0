"""Windows of many ranks over a real nats-server: one process sends what agents send, another judges them.

Hosts of eight ranks, two looks a second, three new steps in each, as a job of six steps a second has them.
The messages are packed before they are sent: what packing costs an agent is measured there, by rank. The
receiver's costs are those after its first look, with which everything begins.
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from torchloom.bus.address import BusAddress
from torchloom.bus.nats import NatsBus
from torchloom.bus.nats_binary import find_server
from torchloom.bus.protocol import Message
from torchloom.chaos import wide_job
from torchloom.core.detect.judge import AllLimits, Memory, judge
from torchloom.core.detect.wide_board import board_for
from torchloom.core.detect.window_blocks import Packing
from torchloom.model.windows import RankWindow, RefWindow, WindowBatch
from torchloom.model.worker import WorkerRef
from torchloom.wire import codec, subjects

HOST, NEW_STEPS, ALL_STEPS_EVERY, KEPT = 8, 3, 8, 32
EVERY_S = 0.5


def looks_of(ranks: int, looks: int) -> tuple[list[list[tuple[str, bytes]]], float]:
    """The messages of each look, and the CPU time of packing them all."""
    job = wide_job.WideJob(ranks=ranks, seed=7, steps=KEPT + NEW_STEPS * looks)
    whole = wide_job.windows(job)
    agents = [Packing() for _ in range(0, ranks, HOST)]
    found, spent = [], 0.0
    gc.freeze()
    for look in range(looks):
        messages = []
        for host, agent in enumerate(agents):
            seen = [_seen(w, look, host) for w in whole[host * HOST : host * HOST + HOST]]
            refs = tuple(RefWindow(WorkerRef("job", w.rank, 1, 1), w) for w in seen)
            begun = time.process_time()
            odd, blocks = agent.pack(refs)
            node = seen[0].node
            data = codec.encode(WindowBatch(node=node, session="s", sent_ns=look, windows=odd, blocks=blocks))
            spent += time.process_time() - begun
            messages.append((subjects.windows(node), data))
        found.append(messages)
    return found, spent


def _seen(window: RankWindow, look: int, host: int) -> RankWindow:
    """A rank at one look; each host sends all steps again in a look of its own."""
    end = KEPT + NEW_STEPS * (look + 1)
    first = 0 if look == 0 or (look + host) % ALL_STEPS_EVERY == 0 else end - NEW_STEPS
    later_ns = round(EVERY_S * 1e9) * look
    return replace(
        window,
        steps=window.steps[max(first, end - KEPT) : end],
        steps_done=end,
        values_step=end,
        hashes=(),
        taken_ns=window.taken_ns + later_ns,
        last_activity_ns=window.last_activity_ns + later_ns,
        groups=tuple(
            replace(group, entered=end * each, finished=end * each)
            for group, each in zip(window.groups, (1, 3), strict=True)
        ),
    )


async def receive(url: str, ranks: int) -> None:
    """Keep all windows, judge as soon as there is one of every rank, and tell what that cost."""
    bus = await NatsBus.connect(BusAddress((url,)), name="bench-windows")
    board, memory = board_for(ranks), Memory()
    fresh: set[int] = set()
    over = asyncio.Event()
    total = {"looks": 0, "judge_s": 0.0, "bytes": 0, "unread": 0, "from_s": time.process_time()}

    async def hear(message: Message) -> None:
        nonlocal memory, total
        total["bytes"] += len(message.data)
        for block in codec.decode_window_batch(message.data).blocks:
            read = board.take(block)
            total["unread"] += len(block.ranks) - len(read)
            fresh.update(block.ranks[row] for row in read)
        if len(fresh) == ranks:
            fresh.clear()
            begun = time.process_time()
            memory, _ = judge(board, memory, AllLimits())
            total["judge_s"] += time.process_time() - begun
            total["looks"] += 1
            if total["looks"] == 1:
                total |= {"judge_s": 0.0, "from_s": time.process_time()}

    async def end(_: Message) -> None:
        over.set()

    await bus.subscribe(subjects.WINDOWS, hear)
    await bus.subscribe("bench.over", end)
    print("ready", flush=True)
    await over.wait()
    total["cpu_s"] = time.process_time() - total["from_s"]
    print(json.dumps(total), flush=True)
    await bus.close()


async def _send(url: str, looks: Sequence[Sequence[tuple[str, bytes]]]) -> tuple[float, float]:
    """CPU time of publishing, and how far behind its time the last look was."""
    bus = await NatsBus.connect(BusAddress((url,)), name="bench-agents")
    begun_cpu, begun = time.process_time(), time.monotonic()
    for number, messages in enumerate(looks):
        for subject, data in messages:
            await bus.publish(subject, data)
        await asyncio.sleep(max(0.0, begun + EVERY_S * (number + 1) - time.monotonic()))
    spent, late_s = time.process_time() - begun_cpu, time.monotonic() - begun - EVERY_S * len(looks)
    await asyncio.sleep(2.0)
    await bus.publish("bench.over", b"")
    await asyncio.sleep(0.5)
    await bus.close()
    return spent, late_s


def over_nats(ranks: int, looks: int, port: int) -> dict[str, object]:
    """One row of the table."""
    made, packing_s = looks_of(ranks, looks)
    sent = sum(len(data) for messages in made for _, data in messages)
    with tempfile.TemporaryDirectory(prefix="loom-bench-") as root:
        server = [str(find_server()), "-a", "127.0.0.1", "-p", str(port)]
        with (Path(root) / "log").open("wb") as log:
            nats = subprocess.Popen(server, stdout=log, stderr=log)
        url = f"nats://127.0.0.1:{port}"
        try:
            time.sleep(1.0)
            command = [sys.executable, __file__, url, str(ranks)]
            reader = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert reader.stdout is not None
            assert reader.stdout.readline().strip() == "ready"
            publishing_s, late_s = asyncio.run(_send(url, made))
            total: dict[str, Any] = json.loads(reader.stdout.readline())
            reader.wait(timeout=30)
        finally:
            nats.kill()
            nats.wait()
    each, later = 1e6 / (ranks * looks), 1e6 / (ranks * (looks - 1))
    return {
        "ranks": ranks,
        "bytes a rank and second": round(sent / ranks / looks / EVERY_S),
        "sender: pack, µs a rank": round(packing_s * each, 1),
        "sender: publish, µs a rank": round(publishing_s * each, 1),
        "receiver, ms per 1,000 ranks and look": round(total["cpu_s"] * later, 2),
        "of it judging": round(total["judge_s"] * later, 2),
        "receiver, share of a core": f"{total['cpu_s'] / ((looks - 1) * EVERY_S):.0%}",
        "looks judged": f"{total['looks']} of {looks}",
        "bytes received": f"{total['bytes'] / sent:.0%}",
        "sender late s": round(late_s, 2),
    }


if __name__ == "__main__":
    asyncio.run(receive(sys.argv[1], int(sys.argv[2])))
