"""Sources of health that flood, hang, lie or send garbage, on a real bus and a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from msgspec.structs import replace
from plain_nats import plain_nats
from weaver_story import SPEC, ObedientAgent, until

from torchloom.agent.health import dcgm_scrape
from torchloom.agent.health.dcgm_scrape import ScrapeSource
from torchloom.bus.address import BusAddress
from torchloom.bus.nats import NatsBus
from torchloom.errors import BusUnavailable, TimedOut
from torchloom.model.devices import HealthReport
from torchloom.model.events import NodeJoined
from torchloom.model.fleet import JobState
from torchloom.model.messages import Telemetry
from torchloom.model.node import Inventory
from torchloom.model.worker import DeviceUse
from torchloom.weaver.service import Weaver
from torchloom.wire import codec, subjects

FLOOD = """
import asyncio, sys, nats
GOOD = b'{"device": "GPU-0", "level": "%s", "values": {"x": 1}}'
BAD = [b"", b"\\xff\\xfe", b"[" * 50000, b"{}", b'{"device": "GPU-9", "level": "failed"}', b"z" * 500000]

async def flood():
    client = await nats.connect(sys.argv[1], flush_timeout=120)
    sent = 0
    while True:
        for index in range(500):
            level = (b"ok", b"degraded")[index % 2]
            await client.publish("loom.v1.health.flood", GOOD % level)
        await client.publish("loom.v1.health.garbage", BAD[sent // 500 % len(BAD)])
        await client.flush()
        sent += 501
        print(sent, flush=True)

asyncio.run(flood())
"""


class GpuAgent(ObedientAgent):
    """An agent of a host with two GPUs."""

    async def join(self) -> None:
        await self.bus.subscribe(subjects.command(self.node), self._obey)
        gpus = tuple(DeviceUse(f"GPU-{index}", "gpu", "H100") for index in range(2))
        inventory = Inventory(hostname="h", address="127.0.0.1", boot_id="b", max_workers=2, devices=gpus)
        await self.say(NodeJoined(node=self.node, session="s", inventory=inventory))

    async def beat(self) -> None:
        while True:
            beat = Telemetry(node=self.node, session="s", at_ns=time.time_ns(), epoch=0)
            await self.bus.publish(subjects.telemetry(self.node), codec.encode(beat))
            await asyncio.sleep(0.25)


@contextlib.asynccontextmanager
async def scene(tmp_path: Path) -> AsyncIterator[tuple[str, NatsBus, Weaver]]:
    """A real NATS server, a weaver that leads, and a job of one worker on the first of two GPUs."""
    (tmp_path / "nats").mkdir()
    with plain_nats(tmp_path / "nats", tmp_path / "js") as port:
        address = BusAddress((f"nats://127.0.0.1:{port}",))
        bus = await NatsBus.connect(address, name="weaver", wait_s=120)
        other = await NatsBus.connect(address, name="n1", wait_s=120)
        weaver, stop = Weaver(bus, "w1"), asyncio.Event()
        task = asyncio.create_task(weaver.run(stop))
        agent = GpuAgent(other, "n1")
        beating = asyncio.create_task(agent.beat())
        try:
            await until(weaver, lambda: weaver.active, "leads")
            await agent.join()
            await weaver.submit("j", replace(SPEC, workers_per_node=1), {}, "me")
            await until(weaver, lambda: weaver.fleet.jobs["j"].state is JobState.RUNNING, "runs")
            yield address.servers[0], other, weaver
        finally:
            beating.cancel()
            await other.close()
            stop.set()
            await task
            await bus.close()


def test_a_monitor_that_floods_the_bus_keeps_nobody_from_reporting_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchloom.weaver.monitors.CLOSED_S", 2.0)
    monkeypatch.setattr("torchloom.weaver.monitors.LONGEST_CLOSED_S", 4.0)

    async def play() -> None:
        async with scene(tmp_path) as (url, bus, weaver):
            job = weaver.fleet.jobs["j"]
            used = job.workers[0].devices[0].device
            flood = subprocess.Popen([sys.executable, "-c", FLOOD, url], stdout=subprocess.DEVNULL)
            try:
                await until(weaver, lambda: weaver.monitors.closed, "nothing is read for a while")
                assert job.generation == 1 and job.state is JobState.RUNNING, "nothing happened to the job"
                report = HealthReport(device=used, level="failed", why="water", source="rack")
                await recorded(weaver, report)
                await until(weaver, lambda: job.generation == 2, "the failure is acted on during the flood")
            finally:
                flood.kill()
                flood.wait()
            await until(weaver, lambda: job.state is JobState.RUNNING, "it runs on the other GPU")
            other = job.workers[0].devices[0].device
            assert other != used
            body = json.dumps({"device": other, "level": "degraded", "why": "warm"}).encode()

            def heard() -> bool:
                return "rack" in weaver.fleet.devices[other].health

            async with asyncio.timeout(240):
                while not heard():
                    await bus.publish("loom.v1.health.rack", body)
                    await asyncio.sleep(0.2)
            assert weaver.devices.health_dropped() >= weaver.monitors.dropped > 0
            assert weaver.fleet.seq < 5_000, "the stream is not flooded"

    asyncio.run(play())


async def recorded(weaver: Weaver, report: HealthReport) -> None:
    """As over HTTP, where a monitor asks again while the service is busy."""
    async with asyncio.timeout(240):
        while weaver.fleet.devices[report.device].out is None:
            with contextlib.suppress(BusUnavailable, TimedOut):
                await weaver.devices.health(report.device, report, None, "rack")
            await asyncio.sleep(0.1)


class Exporter:
    """An HTTP server that answers a scrape as badly as it is told to."""

    def __init__(self) -> None:
        self.mode = "good"
        self.end = threading.Event()
        exporter = self

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with contextlib.suppress(OSError):
                    exporter.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/metrics"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        if self.mode == "hang":
            self.end.wait()
            return
        request.send_response(500 if self.mode == "error" else 200)
        request.end_headers()
        line = b'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-0"} 45\n'
        match self.mode:
            case "good":
                request.wfile.write(line)
            case "garbage":
                request.wfile.write(bytes(range(256)) * 1024 + b"\n" + line)
            case "endless":
                while not self.end.is_set():
                    request.wfile.write(line * 10_000)
            case "strange":
                request.wfile.write(
                    b'DCGM_FI_DEV_GPU_TEMP{UUID="GPU-0"} NaN\n'
                    b'DCGM_FI_DEV_XID_ERRORS{UUID="GPU-0"} 1e30\n'
                    b'DCGM_FI_DEV_CLOCKS_EVENT_REASONS{UUID="GPU-0"} -7\n'
                    b'DCGM_FI_DEV_GPU_TEMP{UUID="GPU-0"} 46\n'
                )

    def close(self) -> None:
        self.end.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Exporter]:
    made = Exporter()
    monkeypatch.setenv("LOOM_SCRAPE", made.url)
    monkeypatch.setattr(dcgm_scrape, "_MOST_BYTES", 1 << 20)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize(
    ("mode", "celsius"), [("good", 45), ("garbage", 45), ("endless", 45), ("strange", 46)]
)
def test_whatever_an_exporter_sends_is_read_up_to_a_limit(
    exporter: Exporter, tmp_path: Path, mode: str, celsius: float
) -> None:
    exporter.mode = mode
    (reading,) = ScrapeSource("n", tmp_path).look().readings
    assert reading.device == "GPU-0" and reading.values["temperature_celsius"] == celsius


@pytest.mark.parametrize("mode", ["hang", "error"])
def test_an_exporter_that_does_not_answer_costs_this_look_and_nothing_else(
    exporter: Exporter, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dcgm_scrape, "_WITHIN_S", 0.5)
    source = ScrapeSource("n", tmp_path)
    exporter.mode = mode
    with pytest.raises(OSError):
        source.look()
    exporter.mode = "good"
    assert source.look().readings
