"""Sends what was counted on this host's devices: once an hour, or every six hours if nothing happened."""

from __future__ import annotations

import asyncio
import time

from torchloom.agent.host import Host
from torchloom.core.devices.wear import WearMeter
from torchloom.model.events import DeviceWearReported

EVENTFUL_S, QUIET_S = 3600.0, 6 * 3600.0
LOOKS_EVERY_S = 60.0


class WearReports:
    def __init__(self, host: Host, meter: WearMeter) -> None:
        self._host, self._meter = host, meter
        self._sent = 0
        self._last_s = time.monotonic()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOKS_EVERY_S)
            self.look(time.monotonic())

    def look(self, now_s: float) -> None:
        """Send a report if it is time for one."""
        if now_s - self._last_s < (EVENTFUL_S if self._meter.eventful else QUIET_S):
            return
        self._last_s = now_s
        own = {use.device for use in self._host.devices.all()}
        wear = tuple(one for one in self._meter.report() if one.device in own)
        if wear:
            self._sent += 1
            event = DeviceWearReported(node=self._host.node, wear=wear)
            self._host.reporter.say(event, f"{self._host.session}.wear.{self._sent}")
