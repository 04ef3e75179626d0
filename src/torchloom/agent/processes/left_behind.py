"""Ends what a worker started in a session of its own (`start_new_session`, a daemon) and left behind.

A worker's process group is killed with it; these are not in it. A program that the worker started has the
path of the worker's black box in its environment (LOOM_BOX); a process that was only forked has the box
mapped. Both name one incarnation of one worker, so nothing of another job is ever taken for it. A child that
is to survive is started without LOOM_BOX.

Such children may still be sending what the worker logged, so they have time to end by themselves; the
recovery of the job does not wait for them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from pathlib import Path

from torchloom.agent.host import LocalWorker
from torchloom.agent.journal import EndedNote, Journal
from torchloom.agent.processes.process import Process, boot_id, start_ticks

log = logging.getLogger(__name__)

MARK = "LOOM_BOX"
FIRST_LOOK_AFTER_S = 1.0
"""Looking at every process of the host takes tens of milliseconds, in which the agent's loop gets little of
the interpreter. A job whose worker has just died is being restarted then; its children can wait."""
BY_ITSELF_WITHIN_S = 5.0
AFTER_SIGTERM_WITHIN_S = 5.0
AT_THE_END_WITHIN_S = 2.0
"""When the agent itself ends."""
_LOOK_EVERY_S = 0.1
_SPAWNER = b"torchloom.spawner"
_PARTS = (b"torchloom.cli", b"torchloom.agent")
"""A service that a script started is nobody's child."""


def box_of(worker: LocalWorker) -> Path | None:
    return worker.box.path if worker.box is not None else worker.damaged_box


def find(box: Path, since_ticks: int) -> list[Process]:
    """Living processes of this user that belong to the worker with this box. The caller closes them."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid() and _is_of(name, box, since_ticks):
            held = Process.open(int(name), start_ticks(int(name)))
            # Examined again: now the number cannot become another's.
            if held is not None and held.alive and _is_of(name, box, since_ticks):
                found.append(held)
            elif held is not None:
                held.close()
    return found


def _is_of(pid: str, box: Path, since_ticks: int) -> bool:
    entry = Path("/proc") / pid
    try:
        if entry.stat().st_uid != os.getuid() or start_ticks(int(pid)) < since_ticks:
            return False
        command = (entry / "cmdline").read_bytes()
        if _SPAWNER in command:  # a fork of a worker that was itself forked: its environment is the spawner's
            return os.fsencode(box) in (entry / "maps").read_bytes()
        if any(part in command for part in _PARTS):
            return False
        return os.fsencode(f"{MARK}={box}") in (entry / "environ").read_bytes().split(b"\0")
    except OSError:  # it ended, or it is none of our business
        return False


class LeftBehind:
    """What workers that have ended left behind on this host. Each is noted in the journal until its children
    are gone, so that the next agent looks for them should this one be killed."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._ended: set[EndedNote] = set()

    def note(self, worker: LocalWorker) -> EndedNote | None:
        """Its children are to be looked for. Called before its box is removed: one of both must be there."""
        box = box_of(worker)
        if box is None:
            return None
        note = EndedNote(str(box), f"{boot_id():x}", worker.start_ticks)
        self._journal.keep_left(note)
        return note

    def from_before(self) -> list[EndedNote]:
        """The workers whose children an earlier agent could not look for to the end."""
        here, found = f"{boot_id():x}", self._journal.left()
        for note in found:
            if note.boot_id != here:  # the host was started anew, so nothing is left
                self._journal.drop_left(note)
        return [note for note in found if note.boot_id == here]

    async def end(self, note: EndedNote) -> None:
        """End what this worker left behind."""
        self._ended.add(note)
        await _end(Path(note.box), note.start_ticks, BY_ITSELF_WITHIN_S, AFTER_SIGTERM_WITHIN_S)
        self._done(note)

    async def end_all_now(self) -> None:
        """The agent ends, so nobody is there to wait any longer."""
        await asyncio.gather(*(self._end_now(note) for note in list(self._ended)))

    async def _end_now(self, note: EndedNote) -> None:
        await _end(Path(note.box), note.start_ticks, 0.0, AT_THE_END_WITHIN_S)
        self._done(note)

    def _done(self, note: EndedNote) -> None:
        self._ended.discard(note)
        self._journal.drop_left(note)


async def _end(box: Path, since_ticks: int, by_itself_s: float, after_sigterm_s: float) -> None:
    first_look_s = min(FIRST_LOOK_AFTER_S, by_itself_s)
    await asyncio.sleep(first_look_s)
    if not await _any_left(box, since_ticks, by_itself_s - first_look_s):
        return
    await asyncio.to_thread(_signal, box, since_ticks, signal.SIGTERM)
    if await _any_left(box, since_ticks, after_sigterm_s):
        await asyncio.to_thread(_signal, box, since_ticks, signal.SIGKILL)


async def _any_left(box: Path, since_ticks: int, within_s: float) -> bool:
    """Wait until nothing is left, or until the time is up."""
    give_up = time.monotonic() + within_s
    while await asyncio.to_thread(_count, box, since_ticks):
        if time.monotonic() >= give_up:
            return True
        await asyncio.sleep(_LOOK_EVERY_S)
    return False


def _count(box: Path, since_ticks: int) -> int:
    found = find(box, since_ticks)
    for process in found:
        process.close()
    return len(found)


def _signal(box: Path, since_ticks: int, number: signal.Signals) -> None:
    for process in find(box, since_ticks):
        log.info("%s to process %d, which a worker left behind", number.name, process.pid)
        process.signal_alone(number)
        process.close()
