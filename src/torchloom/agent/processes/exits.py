"""Watches workers and stores end, and reports who ended, how, when, and doing what.

A pidfd is readable the moment its process ends, so nothing is polled. The status comes from the spawner's
word, else from the kernel, else from the end record the probe wrote; else it is unknown. What follows from
an exit is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from torchloom.agent.checkpoints.save_reports import look_at_saves
from torchloom.agent.host import Host, LocalWorker, Store
from torchloom.agent.journal import EndedNote
from torchloom.agent.logs import files, times
from torchloom.agent.mail import answers_text
from torchloom.agent.observe import boxes, cgroups, pulse, words
from torchloom.agent.observe.boxes import ReadableBox
from torchloom.agent.observe.collectives import last_collectives
from torchloom.agent.observe.guarded import guarded
from torchloom.agent.processes.left_behind import LeftBehind
from torchloom.agent.processes.process import Process
from torchloom.agent.tasks import Tasks
from torchloom.core.config.box_codec import unwritten
from torchloom.model.events import RendezvousLost, WorkerExited
from torchloom.model.worker import EndRecord, Exit
from torchloom.wire import blackbox, codec
from torchloom.wire.blackbox import Progress

log = logging.getLogger(__name__)

T = TypeVar("T")

_LOOK_EVERY_S = 0.01
_STATUS_WITHIN_S = 0.05
"""How long to look for the status if the end record suffices, or if no spawner is left to report it."""
_WORD_WITHIN_S = 1.0
"""How long to wait for a living spawner if nothing else shows how the process ended: on a busy host it may
reap late, and the report could only say "unknown"."""


class ExitWatch:
    """Holds the readers of all pidfds."""

    def __init__(self, host: Host, tasks: Tasks) -> None:
        self._host = host
        self._tasks = tasks
        self.left_behind = LeftBehind(host.journal)

    # -- workers --------------------------------------------------------------------------------
    def add(self, worker: LocalWorker) -> None:
        """From now on this worker's end is seen; one that is gone already has just ended."""
        self._host.workers[worker.ref] = worker
        if worker.process is None:
            self._ended(worker)
        else:
            self._call_at_end(worker.process, self._ended, worker)

    def _ended(self, worker: LocalWorker) -> None:
        at_ns = time.time_ns()
        worker.ending = True
        self._host.lighthouses.gone(worker.ref.job, worker.ref.generation)
        self._tasks.start(self._report(worker, at_ns), f"exit of {worker.ref.job}/{worker.ref.rank}")

    async def _report(self, worker: LocalWorker, at_ns: int) -> None:
        """Put the exit into words, and clean up behind it once the world knows."""
        host = self._host
        if worker.process is not None:
            # Data loaders and other children must not outlive their worker.
            worker.process.signal_group(signal.SIGKILL)
        guarded(worker, partial(self._look, worker), None)
        end = guarded(worker, worker.box.end_record, None) if worker.box else None
        found, told_at_ns = await self._status(
            worker.process, worker.pid, worker.start_ticks, end, worker.spawner
        )
        if not found.ok and cgroups.killed_since(worker.oom_kills):
            found = replace(found, out_of_memory=True)
        if found.signal is not None and not worker.signalled:
            found = replace(found, foreign=True)
        # While there was no agent only the spawner saw when it ended.
        at_ns = min(at_ns, told_at_ns or at_ns)
        event = last_words(host.node, worker, found, at_ns, end)
        if not found.ok:
            event = replace(event, xids=host.kernel_log.of(worker.pid, host.devices.pci_of(worker.devices)))
        stored = host.reporter.say(event, f"{worker.event_stem}.exit")
        worker.told.set()
        self.end_children(self.left_behind.note(worker))
        host.log_watch.forget(worker.log)
        times.note(worker.log)
        files.bound(worker.log, host.log_limit)
        log.info("%s rank %d %s", worker.ref.job, worker.ref.rank, found.describe())
        await stored
        await self.forget(worker)

    def end_children(self, ended: EndedNote | None) -> None:
        """End what a worker that has ended left behind, if anything can be."""
        if ended is not None:
            self._tasks.start(self.left_behind.end(ended), f"children of {ended.box}")

    def _look(self, worker: LocalWorker) -> None:
        """It may have stepped or saved and died between two looks."""
        if worker.box is not None:
            pulse.look_at_start(self._host, worker, worker.box)
            look_at_saves(self._host, worker, worker.box, time.monotonic_ns(), last=True)
            pulse.look_at_store_values(self._host, worker, worker.box)
            if held := unwritten(worker.box.view.read_blob(blackbox.SETTINGS) or b""):
                self._host.unwritten[worker.ref.job, worker.ref.rank] = held

    async def forget(self, worker: LocalWorker) -> None:
        """The exit is in the stream: nothing of this incarnation is needed here now."""
        host = self._host
        host.journal.keep_ended(worker.ref, worker.order)  # before its box goes: one of both must be there
        if worker.box is not None:
            worker.box.close()
            boxes.remove(worker.box.path)
        if worker.damaged_box is not None:
            boxes.remove(worker.damaged_box)
        if worker.note is not None:
            host.journal.drop(worker.note)
        if worker.process is not None:
            worker.process.close()
        if host.workers.get(worker.ref) is worker:
            del host.workers[worker.ref]
        await host.spawners.forget(worker.spawner, worker.pid, worker.start_ticks)

    async def _status(
        self, process: Process | None, pid: int, ticks: int, end: EndRecord | None, spawner: str
    ) -> tuple[Exit, int]:
        """How it ended, and when the spawner saw it (0: it did not)."""
        exits = self._host.spawners.exits
        held = process is not None
        known = end is not None and end.code is not None
        waits = self._host.spawners.connected(spawner) and not (held and known)
        give_up = time.monotonic() + (_WORD_WITHIN_S if waits else _STATUS_WITHIN_S)
        while True:
            word = exits.get((pid, ticks))
            if word is not None:
                return Exit(word.code, word.signal, "spawner"), word.at_ns
            status = process.status() if process is not None else None
            if status is not None:
                return Exit(status.code, status.signal, "pidfd"), 0
            if time.monotonic() > give_up or not (held or self._host.spawners.connected(spawner)):
                break
            await asyncio.sleep(0.001)
        if end is not None and end.code is not None:
            return Exit(end.code, None, "end-record"), end.at_ns
        return Exit(None, None, "unknown"), 0

    # -- stores ---------------------------------------------------------------------------------
    def add_store(self, store: Store) -> None:
        self._host.stores[store.ref] = store
        self._call_at_end(store.process, self._store_ended, store)

    def _store_ended(self, store: Store) -> None:
        self._tasks.start(self._report_store(store), f"end of the store of {store.ref.job}")

    async def _report_store(self, store: Store) -> None:
        host, note = self._host, store.note
        found, _ = await self._status(store.process, note.pid, note.start_ticks, None, note.spawner)
        store.gone.set()
        store.process.close()
        if host.stores.get(store.ref) is store:
            del host.stores[store.ref]
        if not store.stopping:
            stem = f"{note.job}.g{note.generation}.{note.pid}-{note.start_ticks}"
            await host.reporter.say(
                RendezvousLost(node=host.node, store=store.ref, exit=found), f"{stem}.store-lost"
            )
        host.journal.drop(note)
        await host.spawners.forget(note.spawner, note.pid, note.start_ticks)

    # -- processes ------------------------------------------------------------------------------
    def _call_at_end(self, process: Process, call: Callable[[T], None], about: T) -> None:
        """Call once when the process has ended: signalled by its pidfd, otherwise found by polling."""
        loop = asyncio.get_running_loop()

        def ended() -> None:
            loop.remove_reader(process.fd)
            call(about)

        async def look() -> None:
            while process.alive:
                await asyncio.sleep(_LOOK_EVERY_S)
            call(about)

        if process.fd >= 0:
            loop.add_reader(process.fd, ended)
        else:
            self._tasks.start(look(), f"end of process {process.pid}")

    def look_away(self) -> None:
        """Stop watching for exits: the next agent reports them."""
        loop = asyncio.get_running_loop()
        for process in self._processes():
            if process.fd >= 0:
                loop.remove_reader(process.fd)

    def close(self) -> None:
        """Release all processes; they keep running."""
        self.look_away()
        for process in self._processes():
            process.close()
        for worker in self._host.workers.values():
            if worker.box is not None:
                worker.box.close()

    def _processes(self) -> list[Process]:
        held = [w.process for w in self._host.workers.values()]
        return [p for p in held if p is not None] + [s.process for s in self._host.stores.values()]


def last_words(
    node: str, worker: LocalWorker, found: Exit, at_ns: int, end: EndRecord | None
) -> WorkerExited:
    """The exit with all that its box says; if that cannot be read or sent, the exit alone."""

    def whole() -> WorkerExited | None:
        event = exit_event(node, worker, found, at_ns, end)
        codec.encode(event)
        return event

    event = guarded(worker, whole, None)
    if event is None:
        tail = files.tail(worker.log)
        event = WorkerExited(node=node, ref=worker.ref, exit=found, at_ns=at_ns, log_tail=tail)
    return event


def exit_event(
    node: str, worker: LocalWorker, found: Exit, at_ns: int, end: EndRecord | None
) -> WorkerExited:
    """Everything that is known about an end, while the box and the log are still there."""
    box = worker.box
    ended_ns = time.monotonic_ns() - (time.time_ns() - at_ns)
    return WorkerExited(
        node=node,
        ref=worker.ref,
        exit=found,
        at_ns=at_ns,
        steps=box.progress(Progress.STEPS) if box else 0,
        training_step=box.training_step if box else None,
        ran_s=max(0.0, (ended_ns - worker.began_ns) / 1e9),
        end=end,
        activity=activity(box, ended_ns) if box else "",
        log_tail=files.tail(worker.log),
        answers=answers_text(box) if box else "",
        collectives=last_collectives(box) if box and not found.ok else (),
        log_lost=pulse.log_lost(box) if box else None,
    )


def activity(box: ReadableBox, now_ns: int) -> str:
    """What the worker was doing at `now_ns`, in words."""
    under_way = box.under_way()
    name = box.view.read_blob(blackbox.PHASE_NAME) or b""
    return words.activity(
        now_ns=now_ns,
        phase=box.progress(Progress.PHASE),
        phase_since_ns=box.progress(Progress.PHASE_SINCE_NS),
        user_phase=name.decode("utf-8", "replace"),
        steps=box.progress(Progress.STEPS),
        step_ended_ns=box.progress(Progress.STEP_ENDED_NS),
        under_way=under_way[0] if under_way else None,
        groups=box.view.groups(),
        offset=box.offset or 0,
    )
