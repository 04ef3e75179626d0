"""Start-up: find what runs on this host from an earlier agent, and what ended while there was none.

Black boxes and the journal name processes by boot id, pid and start time; nothing is believed by its pid
alone. Boxes of another home are in other directories and are never looked at. Nothing here ends a process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from pathlib import Path

from torchloom.agent.host import Host, LocalWorker, Store
from torchloom.agent.journal import ProcessNote
from torchloom.agent.observe import boxes
from torchloom.agent.observe.boxes import ReadableBox
from torchloom.agent.processes.process import Process, boot_id, pid_namespace, start_ticks
from torchloom.errors import BlackBoxDamaged
from torchloom.model.events import RendezvousLost
from torchloom.model.node import RendezvousAddress, RendezvousRef
from torchloom.model.worker import Exit, WorkerRef
from torchloom.wire import blackbox
from torchloom.wire.blackbox import Header

log = logging.getLogger(__name__)

_SIGN_IN_WITHIN_S = 0.5


async def find_workers(host: Host) -> list[LocalWorker]:
    """Every worker with a box or a note, alive or dead. Those seen to be dead are marked as ending."""
    found: dict[WorkerRef, LocalWorker] = {}
    for path in boxes.found_in(host.home):
        worker = await _from_file(host, path)
        if worker is not None:
            found[worker.ref] = worker
    for note in host.journal.notes():
        if note.kind == "worker":
            worker = _from_note(host, note)
            found.setdefault(worker.ref, worker)
    for worker in found.values():
        worker.ending = worker.process is None or not worker.process.alive
    return list(found.values())


async def _from_file(host: Host, path: Path) -> LocalWorker | None:
    named = boxes.parse_name(path)
    if named is None:
        log.warning("%s is not named like a black box of ours and is left alone", path)
        return None
    try:
        box = ReadableBox.open(path)
    except BlackBoxDamaged as error:
        return _from_damaged(host, path, named, str(error))
    if box.pid_namespace and box.pid_namespace != pid_namespace():
        log.info("%s belongs to a process of another pid namespace and is left alone", path)
        box.close()
        return None
    if not await _signed_in(box):
        log.info("%s was made but no process followed; it is removed", path)
        box.close()
        boxes.remove(path)
        return None
    ref, order = named
    identity = box.identity()
    process = Process.open(box.pid, box.start_ticks) if box.boot_id == boot_id() else None
    cores = identity.get("cpus")
    return LocalWorker(
        ref=ref,
        order=order,
        pid=box.pid,
        start_ticks=box.start_ticks,
        process=process,
        box=box,
        log=host.log_file(ref.job, ref.rank),  # not what the box says: its worker writes there
        spawner=str(identity.get("key") or ""),
        devices=host.devices.told(box.json(blackbox.DEVICE))
        or host.devices.expected(
            box.view.header(Header.LOCAL_RANK), {}, cores if isinstance(cores, list) else None
        ),
    )


async def _signed_in(box: ReadableBox) -> bool:
    """Whether a process belongs to the box; a newborn may be about to sign it."""
    give_up = time.monotonic() + _SIGN_IN_WITHIN_S
    while box.pid == 0:
        if time.monotonic() > give_up:
            return False
        await asyncio.sleep(0.01)
    return True


def _from_damaged(host: Host, path: Path, named: tuple[WorkerRef, str], why: str) -> LocalWorker | None:
    """A worker survives the loss of its box: the process that has the box mapped is that worker."""
    pid = mapped_by(path)
    if pid is None:
        log.warning("%s; no process uses it, it is removed", why)
        boxes.remove(path)
        return None
    log.warning("%s; process %d uses it and is watched without it", why, pid)
    ref, order = named
    ticks = start_ticks(pid)
    return LocalWorker(
        ref=ref,
        order=order,
        pid=pid,
        start_ticks=ticks,
        process=Process.open(pid, ticks),
        box=None,
        log=host.log_file(ref.job, ref.rank),
        spawner="",
        blind=why,
        damaged_box=path,
    )


def mapped_by(path: Path) -> int | None:
    """The session leader that has this file mapped; its forked children have it too and do not count."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        pid = int(entry.name)
        try:
            if pid != os.getpid() and os.getsid(pid) == pid and str(path) in (entry / "maps").read_text():
                return pid
        except OSError:
            continue
    return None


def _from_note(host: Host, note: ProcessNote) -> LocalWorker:
    ref = WorkerRef(note.job, note.rank, note.generation, note.incarnation)
    same_boot = note.boot_id == f"{boot_id():x}"
    return LocalWorker(
        ref=ref,
        order=note.order,
        pid=note.pid,
        start_ticks=note.start_ticks,
        process=Process.open(note.pid, note.start_ticks) if same_boot else None,
        box=None,
        log=host.log_file(ref.job, ref.rank),
        spawner=note.spawner,
        blind="there was no room for a black box",
        note=note,
    )


def find_stores(host: Host) -> tuple[list[Store], list[ProcessNote]]:
    """Stores that run, and the notes of those that ended while no agent was there."""
    living, lost = [], []
    for note in host.journal.notes():
        if note.kind != "store":
            continue
        same_boot = note.boot_id == f"{boot_id():x}"
        process = Process.open(note.pid, note.start_ticks) if same_boot else None
        if process is not None and process.alive:
            ref, address = RendezvousRef(note.job, note.generation), _address(note)
            living.append(Store(ref=ref, address=address, process=process, note=note))
        else:
            if process is not None:
                process.close()
            lost.append(note)
    return living, lost


def _address(note: ProcessNote) -> RendezvousAddress:
    return RendezvousAddress(note.host, note.port, note.lighthouse, note.news)


def say_lost_store(host: Host, note: ProcessNote) -> None:
    ended = host.spawners.exits.get((note.pid, note.start_ticks))
    seen = Exit(ended.code, ended.signal, "spawner") if ended else Exit(None, None, "unknown")
    event = RendezvousLost(node=host.node, store=RendezvousRef(note.job, note.generation), exit=seen)
    host.reporter.say(event, f"{note.job}.g{note.generation}.{note.pid}-{note.start_ticks}.store-lost")
    host.journal.drop(note)
