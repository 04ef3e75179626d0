"""Runs the sources of health: measurements leave as telemetry, changes of a class as events.

Each source has a task of its own. One that hangs is given up (a child is killed, a thread left behind) and
tried again later, less and less often; nothing else of the agent waits for it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterable
from contextlib import aclosing

from torchloom.agent.health.health_source import (
    HealthSource,
    SourceLook,
    checked_look,
    source_class,
    source_names,
)
from torchloom.agent.health.isolation import looks
from torchloom.agent.health.wear_reports import WearReports
from torchloom.agent.host import Host
from torchloom.agent.tasks import Tasks
from torchloom.core.devices.health_class import DeviceMemory, Judged, judge, xid_codes
from torchloom.core.devices.wear import WearMeter
from torchloom.model.devices import DeviceReading, HealthReport
from torchloom.model.events import DeviceHealthReported

log = logging.getLogger(__name__)

KERNEL = "kernel"
AGAIN_S, AGAIN_AT_MOST_S = 5.0, 300.0
MOST_SOURCES = 16
"""Whose measurements of one device are kept."""
DISAPPEARED_AFTER = 3
"""Complete looks in a row in which a GPU is missing."""


class HealthWatch:
    def __init__(self, host: Host) -> None:
        self._host = host
        self._memory: dict[tuple[str, str], DeviceMemory] = {}
        self._meter = WearMeter()
        self._missing: dict[str, int] = {}
        self._said = 0
        self._xids_seen = 0
        self.troubles: dict[str, str] = {}
        """Sources that do not answer, and why."""

    def start(self, tasks: Tasks) -> None:
        for name in source_names():
            try:
                source = source_class(name)(self._host.node, self._host.home.root)
                why = source.why_not()
            except Exception as error:  # noqa: BLE001  # a plugin may raise anything
                why = f"{type(error).__name__}: {error}"
            if why:
                log.info("no health from %s: %s", name, why)
                continue
            tasks.keep(lambda name=name, source=source: self._follow(name, source), f"health from {name}")  # type: ignore[misc]
        tasks.keep(self._follow_kernel_log, "health from the kernel's log")
        tasks.keep(WearReports(self._host, self._meter).run, "reports of what was counted on devices")

    async def _follow(self, name: str, source: HealthSource) -> None:
        wait_s = AGAIN_S
        while True:
            if source.isolated:
                answered = await self._follow_child(name, source)
            else:
                answered = await self._follow_thread(name, source)
            wait_s = AGAIN_S if answered else min(AGAIN_AT_MOST_S, 2 * wait_s)
            await asyncio.sleep(wait_s)

    async def _follow_child(self, name: str, source: HealthSource) -> bool:
        answered = False
        deadline_s = source.deadline_s + source.every_s
        async with aclosing(looks(name, self._host.node, self._host.home.root, deadline_s)) as lines:
            async for line in lines:
                if line.look is not None:
                    answered = True
                    self._take(name, checked_look(line.look))
                else:
                    self._trouble(name, line.why)
        return answered

    async def _follow_thread(self, name: str, source: HealthSource) -> bool:
        answered = False
        while True:
            loop, done = asyncio.get_running_loop(), asyncio.Event()
            result: list[SourceLook | str] = []

            def work(
                result: list[SourceLook | str] = result,
                done: asyncio.Event = done,
                loop: asyncio.AbstractEventLoop = loop,
            ) -> None:
                try:
                    result.append(checked_look(source.look()))
                except Exception as error:  # noqa: BLE001  # a plugin may raise anything
                    result.append(f"{type(error).__name__}: {error}"[:300])
                try:
                    loop.call_soon_threadsafe(done.set)
                except RuntimeError:
                    return  # the agent has ended meanwhile

            threading.Thread(target=work, name=f"health-{name}", daemon=True).start()
            try:
                async with asyncio.timeout(source.deadline_s):
                    await done.wait()
            except TimeoutError:
                self._trouble(name, f"it has not answered for {source.deadline_s:g} s")
                await done.wait()  # one thread is left behind, and never a second one
                return False
            if isinstance(result[0], str):
                self._trouble(name, result[0])
                return answered
            answered = True
            self._take(name, result[0])
            await asyncio.sleep(source.every_s)

    async def _follow_kernel_log(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            found = self._host.kernel_log.newest(self._xids_seen)
            self._xids_seen = self._host.kernel_log.count
            states: dict[str, list[str]] = {}
            for xid in found:
                device = next((g.uuid for g in self._host.devices.gpus if g.pci and g.pci == xid.pci), "")
                if device:
                    states.setdefault(device, []).append(f"xid: {xid.code}")
            for device, codes in states.items():
                kept = self._host.readings.get((device, KERNEL))
                said = (*(kept.states if kept is not None else ()), *codes)[-64:]
                reading = DeviceReading(device=device, source=KERNEL, states=said)
                self._take(KERNEL, SourceLook(readings=(reading,)))

    def _take(self, name: str, look: SourceLook) -> None:
        if self.troubles.pop(name, None) is not None:
            log.info("%s answers again", name)
        now_s = time.monotonic()
        reports = list(look.reports)
        for reading in look.readings:
            if not self._kept_here(reading):
                continue
            if name != KERNEL:
                self._keep_xids(reading)
            self._host.readings[(reading.device, reading.source)] = reading
            self._meter.take(reading, now_s)
            memory = self._memory.setdefault((reading.device, reading.source), DeviceMemory())
            judged = judge(memory, reading, now_s)
            if judged is not None:
                reports.append(_report(reading.device, reading.source, judged))
        if look.complete:
            reports += self._disappeared(name, {reading.device for reading in look.readings}, now_s)
        self._say(reports)

    def _kept_here(self, reading: DeviceReading) -> bool:
        """Whether it is about a device of this host, and not the latest of too many sources."""
        own = {use.device for use in self._host.devices.all()} | {f"host-{self._host.node}"}
        if reading.device not in own:
            return False
        known = (reading.device, reading.source) in self._host.readings
        return known or sum(device == reading.device for device, _ in self._host.readings) < MOST_SOURCES

    def _keep_xids(self, reading: DeviceReading) -> None:
        """New Xid errors of a source belong to the next crash or hang on that device. Sources list all they
        have seen since their start."""
        before = self._host.readings.get((reading.device, reading.source))
        if before is None and reading.source != "nvml":
            return  # an exporter shows the last error, however old; NVML's events begin with its process
        old, now = (xid_codes(one.states) if one is not None else [] for one in (before, reading))
        fresh = now[len(old) :] if now[: len(old)] == old else now[-1:]
        pci = reading.pci or next((g.pci for g in self._host.devices.gpus if g.uuid == reading.device), "")
        for code in fresh if pci else ():
            self._host.kernel_log.told(code, pci)

    def _disappeared(self, name: str, listed: set[str], now_s: float) -> Iterable[HealthReport]:
        """GPUs that this host had and the source no longer lists."""
        for gpu in self._host.devices.gpus:
            self._missing[gpu.uuid] = 0 if gpu.uuid in listed else self._missing.get(gpu.uuid, 0) + 1
            if self._missing[gpu.uuid] < DISAPPEARED_AFTER:
                continue
            reading = DeviceReading(device=gpu.uuid, source=name, error="the GPU is no longer listed")
            memory = self._memory.setdefault((gpu.uuid, name), DeviceMemory())
            self._host.readings[(gpu.uuid, name)] = reading
            judged = judge(memory, reading, now_s)
            if judged is not None:
                yield _report(gpu.uuid, name, judged)

    def _say(self, reports: list[HealthReport]) -> None:
        own = {use.device for use in self._host.devices.all()}
        told = tuple(report for report in reports if report.device in own)
        if not told:
            return
        self._said += 1
        for report in told:
            log.warning("%s is %s (%s): %s", report.device, report.level, report.source, report.why)
        event = DeviceHealthReported(node=self._host.node, health=told)
        self._host.reporter.say(event, f"{self._host.session}.health.{self._said}")

    def _trouble(self, name: str, why: str) -> None:
        if self.troubles.get(name) != why:
            log.warning("no health from %s: %s", name, why)
        self.troubles[name] = why


def _report(device: str, source: str, judged: Judged) -> HealthReport:
    return HealthReport(device=device, level=judged.level, why=judged.why, source=source)
