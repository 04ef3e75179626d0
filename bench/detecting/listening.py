"""Listens to the windows of all jobs and asks the rules of peers once a second. Tells nobody."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import BinaryIO

from msgspec.structs import replace

from support.peers import PEERS
from torchloom.bus.embedded import EmbeddedNats
from torchloom.bus.nats import NatsBus
from torchloom.bus.protocol import Message
from torchloom.cli.service.plan import node_name
from torchloom.core.detect.window_blocks import Unpacking
from torchloom.home import Home
from torchloom.model.windows import RankWindow
from torchloom.wire import codec, subjects

_STEPS_KEPT = 64
_CALM_S = 10.0
"""A rule that was silent for this long says something new."""


class Heard:
    """One job: its newest windows, and what the rules of peers said about it."""

    def __init__(self) -> None:
        self.windows: dict[int, RankWindow] = {}
        self.first: dict[str, tuple[float, tuple[int, ...]]] = {}
        self.alarms: dict[str, int] = {}
        self._last: dict[str, float] = {}

    def hear(self, window: RankWindow) -> None:
        before = self.windows.get(window.rank)
        if before is not None and before.started_ns == window.started_ns:
            # A window carries what is new.
            first = window.steps[0].step if window.steps else 2**63
            steps = (*(s for s in before.steps if s.step < first), *window.steps)[-_STEPS_KEPT:]
            window = replace(window, steps=steps)
        self.windows[window.rank] = window

    def ask_peers(self, now: float) -> None:
        windows = [self.windows[rank] for rank in sorted(self.windows)]
        for name, rule in PEERS.items():
            said = rule(windows) if windows else None
            if said is None:
                continue
            self.first.setdefault(name, (now, said[1]))
            if now - self._last.get(name, 0.0) > _CALM_S:
                self.alarms[name] = self.alarms.get(name, 0) + 1
            self._last[name] = now


class Listener:
    """All jobs of one stack. `record` gets every batch of windows after 8 bytes of time and 4 of length."""

    def __init__(self, home: Home, record: Path | None = None) -> None:
        self._home = home
        self._record_to = record
        self._file: BinaryIO | None = None
        self._jobs: dict[str, Heard] = {}
        self._unpacking = Unpacking()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._follow()), daemon=True)

    def __enter__(self) -> Listener:
        self._file = self._record_to.open("ab") if self._record_to else None
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)
        if self._file is not None:
            self._file.close()

    def begin(self, job: str) -> Heard:
        """Forget the incidents of a job."""
        self._jobs[job] = Heard()
        return self._jobs[job]

    def forget(self, job: str) -> None:
        self._jobs.pop(job, None)

    async def _follow(self) -> None:
        nats = EmbeddedNats(self._home.nats_dir, node_name())
        bus = await NatsBus.connect(nats.address("weaver"), name="bench-detect")
        await bus.subscribe(subjects.WINDOWS, self._hear)
        while not self._stop.is_set():
            await asyncio.sleep(1.0)
            for heard in list(self._jobs.values()):
                heard.ask_peers(time.time())
        await bus.close()

    async def _hear(self, message: Message) -> None:
        if self._file is not None:
            self._file.write(time.time_ns().to_bytes(8, "little"))
            self._file.write(len(message.data).to_bytes(4, "little") + message.data)
        batch = codec.decode_window_batch(message.data)
        for found in (*batch.windows, *self._unpacking.windows(batch.blocks)):
            heard = self._jobs.get(found.ref.job)
            if heard is not None:
                heard.hear(found.window)
