"""Sends the states that ranks of this host ask for to their neighbour, beside the training.

One copy at a time for each job, within a bandwidth (LOOM_NEIGHBOUR_MB_S), on a thread that gives way to the
training. Whatever becomes of a copy is reported to the rank (`copied-<rank>`), which never waits for it; why
one failed is in the worker's pulse until the next one succeeds.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from torchloom.agent.host import Host
from torchloom.agent.neighbour import plans, slot_transfer
from torchloom.agent.neighbour.channel import NeighbourFailed, call
from torchloom.agent.neighbour.door import give_way
from torchloom.agent.neighbour.plans import JobFolder, KeptPlan
from torchloom.agent.neighbour.slot_transfer import SendingPace
from torchloom.checkpoint.memory import tier

log = logging.getLogger(__name__)

DEFAULT_MB_S = 500.0
_LOOK_EVERY_S = 0.1
_SAY_EVERY_S = 60.0
_PAUSE_AFTER_FAILURE_S = 1.0
_REPLACED = "its state in memory was replaced before it could be copied"
"""No trouble: a newer one is copied in a moment."""


class Copier:
    """Looks for what ranks ask for, and copies it."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._stopped = threading.Event()
        self._copying: dict[str, asyncio.Task[None]] = {}
        self._said_s: dict[str, float] = {}
        self.rate = bandwidth(os.environ)

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                for folder, plan in plans.all_here(self._host.home):
                    task = self._copying.get(folder.job)
                    if task is None or task.done():
                        asked = self._asked(folder)
                        if asked:
                            work = asyncio.to_thread(self._copy, folder, plan, asked)
                            self._copying[folder.job] = asyncio.create_task(work)
                await asyncio.sleep(_LOOK_EVERY_S)
        finally:
            self._stopped.set()

    def _asked(self, folder: JobFolder) -> list[tuple[int, str, str]]:
        """(rank, save, what to keep) of the copies to be made."""
        ranks = sorted({worker.ref.rank for worker in self._host.running() if worker.ref.job == folder.job})
        found = []
        for rank in ranks:
            with suppress(OSError, ValueError, KeyError, TypeError):
                asked = json.loads(tier.wanted(folder.path, rank).read_bytes())
                if asked["save"] != _reported(folder.path, rank):
                    found.append((rank, str(asked["save"]), str(asked["keep"])))
        return found

    def _copy(self, folder: JobFolder, plan: KeptPlan, asked: list[tuple[int, str, str]]) -> None:
        give_way()
        trouble = ""
        for rank, save, keep in asked:
            trouble = trouble or self._copy_one(folder, plan, rank, save, keep)
            if self._stopped.is_set():
                return
            if trouble != _REPLACED:
                self._note(folder.job, rank, trouble)
            _report(folder.path, rank, save, not trouble)
        if trouble:
            self._stopped.wait(_PAUSE_AFTER_FAILURE_S)

    def _note(self, job: str, rank: int, trouble: str) -> None:
        for worker in self._host.running():
            if worker.ref.job == job and worker.ref.rank == rank:
                worker.copy_trouble = trouble

    def _copy_one(self, folder: JobFolder, plan: KeptPlan, rank: int, save: str, keep: str) -> str:
        """Why there is no copy; empty if there is."""
        peer = plan.copy_to
        found = [slot for slot in slot_transfer.own_slots(folder.path, rank) if slot.header.save == save]
        if not found:
            return _REPLACED
        size = found[0].header.whole
        try:
            with call(peer.host, peer.port, folder.job, plan.secret) as channel:
                asked = {"rank": rank, "generation": plan.generation, "save": save, "keep": keep}
                channel.say(ask="put", size=size, **asked)
                if why := channel.hear().get("why"):
                    raise NeighbourFailed(str(why))
                slot_transfer.send(
                    channel, found[0], SendingPace(self.rate), lambda: not self._stopped.is_set()
                )
                if channel.hear().get("done") is True:
                    return ""
            return f"{peer.node} did not keep it"
        except NeighbourFailed as error:
            self._say(folder.job, f"{peer.node} has no copy of {folder.job} rank {rank}: {error.message}")
            return f"{peer.node} has no copy: {error.message}"

    def _say(self, job: str, text: str) -> None:
        """A neighbour that stays away is reported once a minute."""
        now_s = time.monotonic()
        if now_s - self._said_s.get(job, -_SAY_EVERY_S) >= _SAY_EVERY_S:
            self._said_s[job] = now_s
            log.warning("%s", text)


def _reported(folder: Path, rank: int) -> str:
    with suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads(tier.copied(folder, rank).read_bytes())["save"])
    return ""


def _report(folder: Path, rank: int, save: str, done: bool) -> None:
    path = tier.copied(folder, rank)
    with suppress(OSError):  # the directory was released meanwhile
        path.with_suffix(".new").write_text(json.dumps({"save": save, "done": done}))
        os.replace(path.with_suffix(".new"), path)


def bandwidth(env: Mapping[str, str]) -> float:
    """Bytes a second that copies of a job may take; 0: nothing is copied."""
    try:
        found = float(env.get("LOOM_NEIGHBOUR_MB_S", ""))
    except ValueError:
        found = DEFAULT_MB_S
    return 1e6 * (found if 0 <= found < math.inf else DEFAULT_MB_S)
