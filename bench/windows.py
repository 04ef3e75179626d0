"""What windows cost: the agent's CPU time of one look at one worker and of one stack under suspicion, the
bytes on the wire, and the CPU time where they are judged.

    python bench/windows.py [--looks 200] [--ranks 1024,4096,16384] [--stream 10] [--json]

The black box is a real one filled as the recorder fills it; the process that /proc is read for is this one,
with as many threads as the table says. The agent looks twice a second. The second table is over a real
nats-server, with a receiver of its own that keeps and judges all windows (support/window_stream.py), for
`--stream` looks. `--ranks ""` leaves it out, `--looks 0` the first one.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support.table import emit
from support.window_stream import over_nats
from torchloom.agent.observe import stacks
from torchloom.agent.observe.boxes import ReadableBox
from torchloom.agent.observe.evidence import Samples
from torchloom.agent.observe.windows import Windows
from torchloom.core.nodes.report_pace import WINDOW_EVERY_S
from torchloom.model.worker import WorkerRef
from torchloom.wire import blackbox, codec
from torchloom.wire.blackbox import CollectiveWord, Header, Progress, View

STEP_NS = 50_000_000


class Recording:
    """A black box of a rank that makes 20 steps a second, with some collectives in each."""

    def __init__(self, path: Path, collectives: int) -> None:
        path.write_bytes(bytes(blackbox.SIZE))
        view = View(memoryview(bytearray(blackbox.SIZE)))
        view.set_header(Header.MAGIC, blackbox.MAGIC)
        view.set_header(Header.LAYOUT, blackbox.LAYOUT_VERSION)
        view.set_header(Header.SIZE, blackbox.SIZE)
        path.write_bytes(bytes(view.raw))
        self.box = ReadableBox.open(path)
        self._each = collectives
        self._now_ns = self._steps = self._records = 0

    def step(self) -> None:
        begin = self._now_ns
        for number in range(self._each):
            self._collective(begin + 1 + (number * STEP_NS) // (self._each + 1))
        self._now_ns = begin + STEP_NS
        self._steps += 1
        self.box.view.write_step(self._steps, self._now_ns, STEP_NS, 0, self._each)
        self.box.view.set_progress(Progress.STEPS, self._steps)

    def _collective(self, entered_ns: int) -> None:
        self._records += 1
        slot = (self._records - 1) % blackbox.COLLECTIVE_SLOTS
        at = blackbox.COLLECTIVES_AT // 8 + slot * blackbox.COLLECTIVE_WORDS
        words = self.box.view.words
        body = [self._records, 1, 7, self._records, 4096, 7, blackbox.NO_PEER, entered_ns]
        words[at : at + 8] = memoryview(b"".join(w.to_bytes(8, "little") for w in body)).cast("Q")
        words[at + CollectiveWord.CHECKSUM] = blackbox.checksum(body)
        words[at + CollectiveWord.COMPLETION] = (entered_ns + 1000) << blackbox.TIME_SHIFT | 1 << 1
        self.box.view.set_progress(Progress.COLLECTIVES_ENTERED, self._records)
        self.box.view.set_progress(Progress.COLLECTIVES_FINISHED, self._records)


def look(threads: int, collectives: int, looks: int) -> tuple[float, float]:
    """CPU µs of a look at one worker, and the bytes of its window."""
    over = threading.Event()
    others = [threading.Thread(target=over.wait) for _ in range(threads - 1)]
    for other in others:
        other.start()
    with tempfile.TemporaryDirectory(prefix="loom-bench-") as root:
        made = Recording(Path(root) / "box", collectives)
        worker = SimpleNamespace(
            oom_kills=[], ref=WorkerRef("job", 0, 1, 1), box=made.box, pid=os.getpid(), devices=(), began_ns=0
        )
        host: Any = SimpleNamespace(node="bench", session="s", workers={}, running=lambda: [worker])
        windows = Windows(host, Samples(host))
        spent = size = 0.0
        for _ in range(looks):
            for _ in range(round(WINDOW_EVERY_S * 1e9 / STEP_NS)):
                made.step()
            begin = time.thread_time()
            encoded = codec.encode(windows.take(time.monotonic_ns)[0])
            spent += time.thread_time() - begin
            size += len(encoded)
        made.box.close()
    over.set()
    for other in others:
        other.join()
    return spent / looks * 1e6, size / looks


def stack_ms(times: int = 5) -> float:
    """CPU time of py-spy for one look at this process, its own start included."""

    async def some() -> None:
        for _ in range(times):
            await stacks.read(os.getpid())

    before = os.times()
    asyncio.run(some())
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return used / times * 1000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--looks", type=int, default=200)
    parser.add_argument("--ranks", default="1024,4096,16384")
    parser.add_argument("--stream", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.looks:
        one_worker(args)
    if args.ranks:
        sizes = [int(size) for size in args.ranks.split(",")]
        stream = [over_nats(size, args.stream, free_port()) for size in sizes]
        notes = ["CPU times; hosts of eight ranks, two looks and six steps a second"]
        emit("Windows over NATS, kept and judged by another process", stream, notes, args.json)


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def one_worker(args: argparse.Namespace) -> None:
    rows: list[dict[str, object]] = []
    for threads, collectives in ((1, 2), (16, 2), (16, 20), (64, 20)):
        micros, size = look(threads, collectives, args.looks)
        rows.append(
            {
                "threads": threads,
                "collectives a step": collectives,
                "CPU µs a look": round(micros),
                "share of a core": f"{micros / 1e6 / WINDOW_EVERY_S:.2%}",
                "bytes a window": round(size),
            }
        )
    notes = [f"a stack of a suspect, every 2 s: {stack_ms():.0f} ms of CPU, py-spy's start included"]
    emit("One look at one worker that makes 20 steps a second", rows, notes, args.json)


if __name__ == "__main__":
    main()
