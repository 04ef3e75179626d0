"""Sends the states that ranks of this host ask for to their neighbour, beside the training.

One copy at a time for each job, within a bandwidth (LOOM_NEIGHBOUR_MB_S), in a process that gives way to the
training (copy_process.py), and rarely where the training needs every core. Whatever becomes of a copy is
reported to the rank (`copied-<rank>`), which never waits for it; why one failed is in the worker's pulse
until the next one succeeds.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from torchloom.agent.host import Host
from torchloom.agent.neighbour import plans
from torchloom.agent.neighbour.plans import JobFolder, KeptPlan
from torchloom.agent.neighbour.sending import REPLACED, CopyResult, SendOrder, send_state
from torchloom.checkpoint.memory import tier

log = logging.getLogger(__name__)

DEFAULT_MB_S = 500.0
_LOOK_EVERY_S = 0.1
_JOBS_AT_ONCE = 8
_SAY_EVERY_S = 60.0
_PAUSE_AFTER_FAILURE_S = 1.0
_SHARE = 0.02
"""Of a core, if the training needs all of them. With a low priority alone, copies are minutes old."""
_CONTENDED = 0.5


class Copier:
    """Looks for what ranks ask for, and copies it."""

    def __init__(self, host: Host, send: Callable[[SendOrder], CopyResult] = send_state) -> None:
        self._host, self._send = host, send
        self._stopped = threading.Event()
        self._threads = ThreadPoolExecutor(_JOBS_AT_ONCE, thread_name_prefix="loom-copy")
        self._copying: dict[str, asyncio.Future[None]] = {}
        self._said_s: dict[str, float] = {}
        self.rate = bandwidth(os.environ)

    async def run(self) -> None:
        """Until cancelled."""
        try:
            loop = asyncio.get_running_loop()
            while True:
                for folder, plan in plans.all_here(self._host.home):
                    task = self._copying.get(folder.job)
                    if task is None or task.done():
                        asked = self._asked(folder)
                        if asked:
                            work = loop.run_in_executor(self._threads, self._copy, folder, plan, asked)
                            self._copying[folder.job] = work
                await asyncio.sleep(_LOOK_EVERY_S)
        finally:
            self._stopped.set()
            self._threads.shutdown(wait=False)

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
        began_s, sent = time.monotonic(), []
        trouble = ""
        for rank, save, keep in asked:
            if not trouble:
                order = SendOrder(folder.job, str(folder.path), plan, rank, save, keep, self.rate)
                sent.append(self._send(order))
                trouble = sent[-1].trouble
            if self._stopped.is_set():
                return
            if trouble != REPLACED:
                self._note(folder.job, rank, trouble)
                self._say(folder.job, rank, trouble)
            _report(folder.path, rank, save, not trouble)
        if trouble:
            self._stopped.wait(_PAUSE_AFTER_FAILURE_S)
        ran_s, waited_s = sum(one.ran_s for one in sent), sum(one.waited_s for one in sent)
        self._stopped.wait(rest_s(ran_s, waited_s, time.monotonic() - began_s))

    def _note(self, job: str, rank: int, trouble: str) -> None:
        for worker in self._host.running():
            if worker.ref.job == job and worker.ref.rank == rank:
                worker.copy_trouble = trouble

    def _say(self, job: str, rank: int, trouble: str) -> None:
        """A neighbour that stays away is reported once a minute."""
        now_s = time.monotonic()
        if trouble and now_s - self._said_s.get(job, -_SAY_EVERY_S) >= _SAY_EVERY_S:
            self._said_s[job] = now_s
            log.warning("rank %d of %s: %s", rank, job, trouble)


def _reported(folder: Path, rank: int) -> str:
    with suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads(tier.copied(folder, rank).read_bytes())["save"])
    return ""


def _report(folder: Path, rank: int, save: str, done: bool) -> None:
    path = tier.copied(folder, rank)
    with suppress(OSError):  # the directory was released meanwhile
        path.with_suffix(".new").write_text(json.dumps({"save": save, "done": done}))
        os.replace(path.with_suffix(".new"), path)


def rest_s(ran_s: float, waited_s: float, took_s: float) -> float:
    """How long to wait after a copy that ran for so long, and waited so long for a core: where the training
    needs all cores, copies take a small share of one; where some are idle, they follow one another."""
    return max(0.0, ran_s / _SHARE - took_s) if waited_s > _CONTENDED * ran_s else 0.0


def bandwidth(env: Mapping[str, str]) -> float:
    """Bytes a second that copies of a job may take; 0: nothing is copied."""
    try:
        found = float(env.get("LOOM_NEIGHBOUR_MB_S", ""))
    except ValueError:
        found = DEFAULT_MB_S
    return 1e6 * (found if 0 <= found < math.inf else DEFAULT_MB_S)
