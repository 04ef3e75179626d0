"""Metrics that the script logged with loom.log, the newest value of each name, as the METRICS blob.

    {"step": 12, "at_ns": …, "values": {"loss": 0.5, "accuracy": null}, "broken": [1, 9, "loss", "NaN"],
     "peaks": {"loss": [11, 2.5]}, "parameters": true}

A number on a CUDA device is copied to the host without waiting and read at a later step; null until then.
Written at most every INTERVAL_NS (at once for NaN and infinities, which somebody waits for). `broken` is the
first NaN or infinity of the newest run of them in a loss or gradient norm (number of the run, completed
steps, name, value): it stays when the value is fine again, so that the agent, which looks twice a second,
sees it. `peaks` has the highest value of each of them within the last PEAK_NS or two, with its completed
steps, for the same reason: a gradient that explodes for one step is history when somebody looks. `parameters`
is false while a parameter is no finite number (replicas.py).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from torchloom.core.detect.watched_metrics import PARAMETERS, is_watched
from torchloom.probe.observe.from_device import fetch
from torchloom.probe.observe.values import UNREAD, is_tensor, plain
from torchloom.wire.blackbox import METRICS, View

INTERVAL_NS = 20_000_000
PEAK_NS = 1_000_000_000
NAMES = 128
NAME_CHARS = 100
_ALARMING = ("NaN", "Infinity", "-Infinity")


class Metrics:
    """Keeps the newest value of every metric of this worker."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._values: dict[str, Any] = {}
        self._coming: dict[str, tuple[Any, Any]] = {}
        """Values on their way from a device: (pinned host tensor, event)."""
        self._broken: list[Any] = []
        self._ill: set[str] = set()
        """Watched names that are no numbers now."""
        self._parameters = True
        self._peaks: dict[str, tuple[int, float]] = {}
        self._older_peaks: dict[str, tuple[int, float]] = {}
        self._peaks_until_ns = 0
        self._step = 0
        self._changed = False
        self._next_ns = 0

    def log(self, metrics: Mapping[str, object], step: int, now_ns: int) -> None:
        """Take new values over. `step` is the number of completed steps."""
        urgent = False
        for name, value in metrics.items():
            name = name[:NAME_CHARS]
            if name not in self._values and len(self._values) >= NAMES:
                continue
            taken = plain(value)
            if taken is UNREAD:
                taken = None
                if is_tensor(value):
                    self._fetch(name, value)
            else:
                self._coming.pop(name, None)
            urgent = self._note(name, taken, step, now_ns) or urgent
            self._values[name] = taken
        self._step = step
        self._changed = True
        self.write(now_ns, at_once=urgent)

    def parameters(self, finite: bool, step: int, now_ns: int) -> None:
        """Whether the parameters are finite numbers, after `step` completed steps."""
        self._parameters = finite
        if finite:
            self._ill.discard(PARAMETERS)
        else:
            self._begin_run(PARAMETERS, "NaN", step)
        self._changed = True
        self.write(now_ns, at_once=True)

    @property
    def is_finite(self) -> bool:
        """Whether loss, gradients and parameters are finite, as far as they were logged or checked."""
        return not self._ill

    def write(self, now_ns: int, *, at_once: bool = False) -> None:
        """Bring the blob up to date if it is time, with what has arrived from devices meanwhile."""
        if self._coming:
            self._take_arrived(now_ns)
        if self._changed and (at_once or now_ns >= self._next_ns):
            self._next_ns = now_ns + INTERVAL_NS
            self._changed = False
            self._view.write_blob(METRICS, self._fitting(now_ns))

    def _note(self, name: str, value: Any, step: int, now_ns: int) -> bool:
        """Whether somebody waits for this value."""
        alarming = value in _ALARMING
        if is_watched(name):
            if not alarming:
                self._ill.discard(name)
                self._keep_peak(name, value, step, now_ns)
            else:
                self._begin_run(name, value, step)
        return alarming

    def _begin_run(self, name: str, value: str, step: int) -> None:
        if not self._ill:
            run = self._broken[0] + 1 if self._broken else 1
            self._broken = [run, step, name, value]
        self._ill.add(name)

    def _keep_peak(self, name: str, value: Any, step: int, now_ns: int) -> None:
        if not isinstance(value, int | float):
            return
        if now_ns >= self._peaks_until_ns:
            self._older_peaks, self._peaks = self._peaks, {}
            self._peaks_until_ns = now_ns + PEAK_NS
        if name not in self._peaks or value > self._peaks[name][1]:
            self._peaks[name] = (step, value)

    def _highest(self) -> dict[str, tuple[int, float]]:
        found = dict(self._older_peaks)
        for name, peak in self._peaks.items():
            if name not in found or peak[1] > found[name][1]:
                found[name] = peak
        return found

    def _fetch(self, name: str, value: Any) -> None:
        """Start a copy to the host. `item()` would wait for everything queued on the device."""
        if value.device.type in ("cpu", "meta") or value.numel() != 1:
            return
        coming = fetch(sys.modules["torch"], value.detach().reshape(()))
        if coming is not None:
            self._coming[name] = coming

    def _take_arrived(self, now_ns: int) -> None:
        for name, (host, event) in list(self._coming.items()):
            if event.query():
                del self._coming[name]
                taken = plain(host)
                self._note(name, taken, self._step, now_ns)
                self._values[name] = None if taken is UNREAD else taken
                self._changed = True

    def _fitting(self, now_ns: int) -> bytes:
        values = dict(self._values)
        while True:
            told = {"step": self._step, "at_ns": now_ns, "values": values, "broken": self._broken}
            told |= {"peaks": self._highest(), PARAMETERS: self._parameters}
            text = json.dumps(told).encode()
            if len(text) <= METRICS.capacity:
                return text
            for name in list(values)[len(values) // 2 :]:
                del values[name]
