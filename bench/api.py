"""The API under load: reading with 200 jobs and 1,000 workers, 200 followers of events, one fast log.

    python bench/api.py [--json]

A real `loom up` with real NATS. The jobs' workers are played by an agent in this process that answers at
once, because 1,000 real processes would measure the machine; the log is that of a real worker.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from support.launchers import BIN
from support.player import NODE, Player
from support.table import emit, progress
from torchloom.bus.embedded import EmbeddedNats
from torchloom.bus.nats import NatsBus
from torchloom.cli.service.plan import node_name
from torchloom.home import Home
from torchloom.model.events import (
    WorkerRegistered,
)
from torchloom.model.worker import DeviceUse

JOBS, WORKERS = 200, 5
FOLLOWERS, EVENTS, EVENTS_PER_S = 200, 1000, 100
STEP_BYTES, STEPS = 500_000, 100
TALKER = Path(__file__).parent / "workloads" / "talker.py"


class Client:
    def __init__(self, port: int, token: str) -> None:
        self.port, self.headers = port, {"Authorization": f"Bearer {token}"}
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def call(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        self._connection.request(method, path, data, self.headers | {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        text = answer.read()
        assert answer.status < 400, text
        is_json = text and answer.getheader("Content-Type") == "application/json"
        return json.loads(text) if is_json else text


def latency(client: Client, what: str, path: str, calls: int) -> dict[str, object]:
    took = []
    for _ in range(calls):
        start = time.perf_counter()
        client.call("GET", path)
        took.append(time.perf_counter() - start)
    took.sort()
    p50, p99 = took[len(took) // 2], took[int(len(took) * 0.99)]
    return {"what": what, "n": calls, "p50_ms": round(p50 * 1e3, 2), "p99_ms": round(p99 * 1e3, 2)}


async def follower(client: Client, after: int, expected: int) -> int:
    """How many of the expected events came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", client.port, limit=1 << 20)
    head = f"GET /events?topic=device&after={after} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    writer.write((head + f"Authorization: {client.headers['Authorization']}\r\n\r\n").encode())
    seen = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(60):
            while seen < expected:
                seen += (await reader.readuntil(b"\n")).startswith(b"id: ")
    writer.close()
    return seen


async def fan_out(client: Client, player: Player) -> dict[str, object]:
    after = (await asyncio.to_thread(client.call, "GET", "/jobs/bench-0"))["seq"]
    followers = [asyncio.create_task(follower(client, after, EVENTS)) for _ in range(FOLLOWERS)]
    await asyncio.sleep(2.0)
    start = time.perf_counter()
    for number in range(EVENTS):
        use = (DeviceUse(f"gpu-{number}", "gpu"),)
        await player.say(WorkerRegistered(node=NODE, ref=player.live[number], devices=use))
        await asyncio.sleep(max(0.0, start + number / EVENTS_PER_S - time.perf_counter()))
    said = time.perf_counter() - start
    seen = await asyncio.gather(*followers)
    return {
        "what": f"{FOLLOWERS} followers, {EVENTS} events at {EVENTS / said:.0f}/s",
        "n": sum(seen),
        "lost": FOLLOWERS * EVENTS - sum(seen),
        "all_had_it_after_s": round(time.perf_counter() - start - said, 2),
    }


def log_stream(client: Client, root: Path) -> dict[str, object]:
    """How fast 50 MB that a worker has printed come through."""
    name, notes = "talker", root / "talker"
    command = ["python3", str(TALKER), str(notes), str(STEPS), str(STEP_BYTES)]
    client.call("POST", "/jobs", {"name": name, "command": command, "spawn": "cold", "env": dict(os.environ)})
    while not notes.exists():
        time.sleep(0.05)
    connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=60)
    connection.request("GET", f"/jobs/{name}/logs/stream", headers=client.headers)
    answer, start, got = connection.getresponse(), time.perf_counter(), 0
    while got < STEP_BYTES * STEPS:
        got += len(answer.read1(1 << 20))
    rate = got / (time.perf_counter() - start) / 1e6
    connection.close()
    client.call("DELETE", f"/jobs/{name}?force=true")
    return {"what": "log stream of one worker", "MB_per_s": round(rate)}


def live_log(client: Client, root: Path, readers: int) -> dict[str, object]:
    """CPU time of a step while the log is followed as it is written."""
    name, notes = f"live-{readers}", root / f"live-{readers}"
    command = ["python3", str(TALKER), str(notes), str(STEPS), str(STEP_BYTES)]
    client.call("POST", "/jobs", {"name": name, "command": command, "spawn": "cold", "env": dict(os.environ)})
    connections = []
    for _ in range(readers):
        connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=60)
        connection.request("GET", f"/jobs/{name}/logs/stream", headers=client.headers)
        connections.append((connection, connection.getresponse()))
    while not notes.exists():
        for _, answer in connections:
            answer.read1(1 << 20)
        time.sleep(0 if connections else 0.05)
    _, step_s = map(float, notes.read_text().split())
    for connection, _ in connections:
        connection.close()
    client.call("DELETE", f"/jobs/{name}?force=true")
    return {"what": f"CPU time of a step, {readers} live reader(s)", "step_cpu_ms": round(step_s * 1e3, 3)}


async def measure(home: Home, client: Client, root: Path) -> list[dict[str, object]]:
    rows = []
    progress("log of one worker")
    rows.append(await asyncio.to_thread(log_stream, client, root))
    for readers in (0, 1):
        rows.append(await asyncio.to_thread(live_log, client, root, readers))
    address = EmbeddedNats(home.nats_dir, node_name()).address("weaver")
    bus = await NatsBus.connect(address, name="bench")
    player = Player(bus)
    beating = asyncio.create_task(player.beat())
    try:
        await player.join()
        progress(f"{JOBS} jobs")
        for number in range(JOBS):
            body = {"name": f"bench-{number}", "command": ["true"], "world_size": WORKERS}
            await asyncio.to_thread(client.call, "POST", "/jobs", body)
        while len(player.live) < JOBS * WORKERS:
            await asyncio.sleep(0.05)
        await asyncio.sleep(1.5)
        progress("latency")
        for what, path, calls in (
            ("list of 200 jobs", "/jobs", 60),
            ("first page of 20", "/jobs?limit=20", 200),
            ("one job", "/jobs/bench-7", 300),
            ("summary", "/jobs/bench-7/summary", 300),
            ("metrics", "/metrics", 60),
        ):
            rows.append(await asyncio.to_thread(latency, client, what, path, calls))
        progress("fan-out")
        rows.append(await fan_out(client, player))
    finally:
        for number in range(JOBS):  # while there is somebody who ends them
            with contextlib.suppress(AssertionError):
                await asyncio.to_thread(client.call, "POST", f"/jobs/bench-{number}/stop", {"kill": True})
        beating.cancel()
        await bus.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="loom-bench-") as root:
        home = Home(Path(root) / "home")
        env = {k: v for k, v in os.environ.items() if not k.startswith("LOOM_")}
        env |= {"LOOM_HOME": str(home.root), "LOOM_PREWARM": "0"}
        subprocess.run([BIN / "loom", "up", "--port", "0"], env=env, check=True, stdout=subprocess.DEVNULL)
        try:
            port = json.loads((home.parts_dir / "plan.json").read_bytes())["port"]
            client = Client(port, home.token_file.read_text().strip())
            rows = asyncio.run(measure(home, client, Path(root)))
        finally:
            subprocess.run(
                [BIN / "loom", "down", "--stop-jobs"], env=env, check=False, stdout=subprocess.DEVNULL
            )
    notes = ["one client at a time for latency; everything, the clients too, shares this machine's cores"]
    emit("The API under load", rows, notes, options.json)


if __name__ == "__main__":
    main()
