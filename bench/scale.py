"""One weaver with many agents over a real nats-server: CPU, memory, bandwidth, time from a death to commands.

Weaver and server are processes of their own, started as in production, and CPU time is counted for each. The
agents are simulated in this process (support/crowd.py) and send what real ones send: eight ranks a node,
telemetry and windows as often as agents of so many nodes do. One job has all the ranks; one of them dies. Run
it with

    python bench/scale.py [--ranks 1000,4096,16384] [--budget 120] [--json]

`--budget` bounds each size, in seconds: what was not reached by then is shown as –. Where a row says that the
agents were late, this process could not send as often as real hosts would: weaver, server and all agents
share the cores of one machine, and it is too small for the figure. CPU times are right all the same.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from support.crowd import SLOTS, Crowd
from support.table import emit, progress
from torchloom.bus.address import BusAddress
from torchloom.bus.nats import NatsBus
from torchloom.bus.nats_binary import find_server
from torchloom.client import Client, Endpoint, NotAnswering, Unavailable
from torchloom.errors import Conflict, LoomError
from torchloom.model.effects import StartWorkers, StopWorkers
from torchloom.model.job import MAX_WORKERS

STEADY_S = 10.0
"""How long CPU and bandwidth are measured while everything trains."""


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


@dataclass
class Services:
    """A nats-server and a weaver, each in a process of its own."""

    root: Path
    nats: psutil.Popen
    weaver: psutil.Popen
    url: str
    monitor: int
    client: Client

    def traffic(self) -> tuple[int, int]:
        """Bytes that the server has received and sent."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.monitor}/varz", timeout=10) as answer:
            found = json.load(answer)
        return int(found["in_bytes"]), int(found["out_bytes"])


@contextlib.asynccontextmanager
async def services(root: Path, budget: Callable[[], float]) -> AsyncIterator[Services]:
    port, monitor, api = free_port(), free_port(), free_port()
    url = f"nats://127.0.0.1:{port}"
    env = {**os.environ, "LOOM_HOME": str(root / "home"), "LOOM_NATS_URL": url, "LOOM_TOKEN": "bench"}
    server = [str(find_server()), "-js", "-sd", str(root / "js"), "-a", "127.0.0.1", "-p", str(port)]
    with (root / "log").open("wb") as log:
        nats = psutil.Popen([*server, "-m", str(monitor)], stdout=log, stderr=log)
        command = [sys.executable, "-P", "-m", "torchloom.cli", "weaver", "--port", str(api)]
        weaver = psutil.Popen(command, env=env, stdout=log, stderr=log)
    client = Client(Endpoint(f"http://127.0.0.1:{api}", "bench"))
    try:
        while budget() > 0:
            with contextlib.suppress(LoomError, OSError):
                if (await asyncio.to_thread(client.health))["active"]:
                    break
            await asyncio.sleep(0.1)
        yield Services(root, nats, weaver, url, monitor, client)
    finally:
        if weaver.poll() is not None:
            progress(f"the weaver has ended: {(root / 'log').read_text()[-2000:]}")
        if kept := os.environ.get("LOOM_SCALE_LOG"):
            shutil.copyfile(root / "log", kept)
        client.close()
        for process in (weaver, nats):
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired, psutil.TimeoutExpired):
                process.wait(timeout=10)


@dataclass
class Row:
    """One size. Shares of CPU are of one core."""

    ranks: int
    nodes: int
    jobs: int
    all_started_s: float | None = None
    weaver_cpu: float | None = None
    nats_cpu: float | None = None
    agents_cpu: float | None = None
    weaver_mb: float | None = None
    into_weaver_mbit_s: float | None = None
    first_stop_ms: float | None = None
    median_stop_ms: float | None = None
    last_stop_ms: float | None = None
    all_restarted_s: float | None = None
    restart_cpu_s: float | None = None
    """CPU time of the weaver from the death until all nodes were told to start."""
    messages_a_s: float | None = None
    """Telemetry and windows that the agents really sent."""
    agents_late_s: float = 0.0
    cut_off: str = ""
    notes: list[str] = field(default_factory=list)


async def until(condition: Callable[[], Any], budget: Callable[[], float]) -> bool:
    while not condition():
        if budget() <= 0:
            return False
        await asyncio.sleep(0.02)
    return True


async def measure(ranks: int, seconds: float) -> Row:
    ranks -= ranks % SLOTS
    end = time.monotonic() + seconds

    def budget() -> float:
        return end - time.monotonic()

    sizes = [min(MAX_WORKERS, ranks - at) for at in range(0, ranks, MAX_WORKERS)]
    row = Row(ranks=ranks, nodes=ranks // SLOTS, jobs=len(sizes))
    with tempfile.TemporaryDirectory(prefix="loom-scale-") as root:
        async with services(Path(root), budget) as parts:
            bus = await NatsBus.connect(BusAddress((parts.url,)), name="crowd")
            crowd = Crowd(bus, parts.url, ranks)
            beating = asyncio.create_task(crowd.beat())
            try:
                async with asyncio.timeout(max(0.1, budget())):
                    await run(row, parts, crowd, sizes, budget)
            except TimeoutError:
                row.cut_off = row.cut_off or "budget"
            except LoomError as error:
                row.cut_off = error.message
            finally:
                row.agents_late_s = crowd.late_s
                beating.cancel()
                with contextlib.suppress(LoomError, TimeoutError):
                    async with asyncio.timeout(10):
                        await bus.close()
    return row


async def run(row: Row, parts: Services, crowd: Crowd, sizes: list[int], budget: Callable[[], float]) -> None:
    progress(f"{row.ranks} ranks: {row.nodes} nodes join")
    await crowd.join()
    begun = time.monotonic()
    for number, size in enumerate(sizes):
        body = {
            "name": f"job-{number}",
            "command": ["true"],
            "nodes": size // SLOTS,
            "workers_per_node": SLOTS,
            "max_restarts": 100,
        }
        while True:
            try:
                await asyncio.to_thread(parts.client.request, "POST", "/jobs", body=body)
                break
            except (Conflict, NotAnswering, Unavailable) as error:  # nodes not read yet, or too busy
                row.cut_off = f"job {number} was not accepted: {error.message}"
                await asyncio.sleep(0.2)
        row.cut_off = ""
    if not await until(lambda: crowd.ranks == row.ranks, budget):
        row.cut_off = f"{crowd.ranks} of {row.ranks} ranks started"
        return
    row.all_started_s = time.monotonic() - begun
    progress(f"{row.ranks} ranks: all started after {row.all_started_s:.1f} s")
    if not await until(lambda: crowd.idle, budget):  # otherwise the death waits behind the first steps
        row.cut_off = "not all first steps were stored"
        return
    await steady(row, parts, crowd)
    await death(row, parts, crowd, sizes[0], budget)


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def steady(row: Row, parts: Services, crowd: Crowd) -> None:
    """CPU, memory and traffic while all ranks train and nothing happens."""
    await asyncio.sleep(2.0)
    processes = (parts.weaver, parts.nats, psutil.Process())
    before, begun, sent = [cpu_s(one) for one in processes], time.monotonic(), parts.traffic()
    messages = crowd.sent
    await asyncio.sleep(STEADY_S)
    took_s = time.monotonic() - begun
    used = [(cpu_s(one) - was) / took_s for one, was in zip(processes, before, strict=True)]
    row.weaver_cpu, row.nats_cpu, row.agents_cpu = (round(one, 3) for one in used)
    row.messages_a_s = round((crowd.sent - messages) / took_s)
    row.weaver_mb = round(parts.weaver.memory_info().rss / 1e6, 1)
    row.into_weaver_mbit_s = round((parts.traffic()[1] - sent[1]) * 8e-6 / took_s, 2)


async def death(row: Row, parts: Services, crowd: Crowd, size: int, budget: Callable[[], float]) -> None:
    """One rank of the first job is killed: until its peers are told to end, and until all run again."""
    nodes = size // SLOTS
    node, ref = next((node, ref) for node, refs in crowd.live.items() for ref in refs if ref.job == "job-0")
    died_s, used_s = time.monotonic(), cpu_s(parts.weaver)
    await crowd.die(node, ref)
    await until(lambda: len(crowd.since(died_s, StopWorkers, "job-0")) >= nodes, budget)
    stops = sorted(crowd.since(died_s, StopWorkers, "job-0"))
    if stops:
        row.first_stop_ms = round(stops[0] * 1e3, 1)
        row.median_stop_ms = round(statistics.median(stops) * 1e3, 1)
    if len(stops) < nodes:
        row.cut_off = f"{len(stops)} of {nodes} nodes were told to stop"
        return
    row.last_stop_ms = round(stops[nodes - 1] * 1e3, 1)
    if await until(lambda: len(crowd.since(died_s, StartWorkers, "job-0")) >= nodes, budget):
        row.all_restarted_s = round(sorted(crowd.since(died_s, StartWorkers, "job-0"))[nodes - 1], 2)
        row.restart_cpu_s = round(cpu_s(parts.weaver) - used_s, 2)
    else:
        row.cut_off = f"{len(crowd.since(died_s, StartWorkers, 'job-0'))} of {nodes} nodes were told to start"


def shown(row: Row) -> dict[str, object]:
    late = f", agents late by {row.agents_late_s:.1f} s" if row.agents_late_s > 1 else ""
    return {
        "ranks": row.ranks,
        "nodes": row.nodes,
        "jobs": row.jobs,
        "all started": _s(row.all_started_s),
        "messages": "–" if row.messages_a_s is None else f"{row.messages_a_s:,.0f} /s",
        "weaver CPU": _share(row.weaver_cpu),
        "nats CPU": _share(row.nats_cpu),
        "agents CPU": _share(row.agents_cpu),
        "weaver memory": "–" if row.weaver_mb is None else f"{row.weaver_mb:.0f} MB",
        "from the server": "–" if row.into_weaver_mbit_s is None else f"{row.into_weaver_mbit_s:.1f} Mbit/s",
        "death → first stop": _ms(row.first_stop_ms),
        "→ last stop": _ms(row.last_stop_ms),
        "→ last start": _s(row.all_restarted_s),
        "weaver CPU until then": _s(row.restart_cpu_s),
        "cut off": f"{row.cut_off}{late}".strip(", ") or "no",
    }


def _s(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} s"


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f} ms"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value * 100:.0f} %"


def markdown(rows: list[dict[str, object]]) -> str:
    keys = list(rows[0])
    lines = [keys, ["---"] * len(keys), *([str(row[key]) for key in keys] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def bends(rows: list[Row]) -> list[str]:
    """Where it bends, by these figures, and what would have to be done about it."""
    found = []
    for row in rows:
        if row.weaver_cpu and row.messages_a_s:
            each_us = row.weaver_cpu / row.messages_a_s * 1e6
            found.append(
                f"{row.ranks} ranks: the weaver uses {row.weaver_cpu:.0%} of the one core that it "
                f"can use: {each_us:.0f} µs for each message, judging included"
            )
        if row.restart_cpu_s is not None:
            each_us = row.restart_cpu_s / row.ranks * 1e6
            found.append(
                f"{row.ranks} ranks: a restart costs the weaver {each_us:.0f} µs of CPU for each rank"
            )
    if found:
        first = "windows and judging in a process of their own"
        found.append(f"to be sharded: {first}; then jobs by weaver, each with a stream of its own")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", default="1000,4096,16384", help="sizes, comma-separated (%(default)s)")
    parser.add_argument("--budget", type=float, default=120.0, metavar="S", help="for each size")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    options = parser.parse_args()
    rows = []
    for size in options.ranks.split(","):
        rows.append(asyncio.run(measure(int(size), options.budget)))
        progress(f"{size} ranks: {shown(rows[-1])}")
    load = f"load {os.getloadavg()[0]:.1f} at the end"
    notes = [f"weaver, nats-server and all simulated agents on one machine; {load}", *bends(rows)]
    if options.json:
        emit("one weaver, many agents", [vars(row) for row in rows], notes, True)
        return
    print(markdown([shown(row) for row in rows]))
    for note in notes:
        print(f"* {note}")


if __name__ == "__main__":
    main()
