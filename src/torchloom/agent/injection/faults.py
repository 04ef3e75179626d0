"""Carries out InjectFault: signals and load from outside, the rest as a note in the worker's black box.

What lasts is ended by the agent when its time is over; should the agent die meanwhile, a stopped worker stays
stopped, as it would with any SIGSTOP, and load ends by itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys

from torchloom.agent.host import Host, LocalWorker
from torchloom.agent.injection import control_plane
from torchloom.agent.injection.quota import Quota, hold
from torchloom.agent.tasks import Tasks
from torchloom.bus.protocol import Bus
from torchloom.errors import Conflict
from torchloom.model.effects import InjectFault
from torchloom.model.events import EffectDone
from torchloom.model.faults import Fault
from torchloom.wire import blackbox
from torchloom.wire.blackbox import Mailbox

_LOAD = (
    "import sys, time\nend = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end:\n    pass\n"
)
_LONG_S = 3600.0
"""How long load lasts if the request gives no duration."""
_NOTES_KEPT = 8
_ANSWER_WITHIN_S = 0.2


def inject(host: Host, bus: Bus, effect: InjectFault, tasks: Tasks) -> EffectDone:
    """Do it to every worker that is still the one that was meant."""
    if effect.fault.kind == "partition":
        tasks.start(_cut(bus, effect.fault.duration_s), f"partition {effect.id}")
        return EffectDone(node=host.node, effect=effect.id)
    if effect.fault.kind in ("agent-kill", "weaver-kill", "nats-kill"):
        pid = control_plane.pid_of(host.home, effect.fault.kind.removesuffix("-kill"))
        tasks.start(control_plane.kill(pid), f"{effect.fault.kind} {effect.id}")
        return EffectDone(node=host.node, effect=effect.id)
    for ref in effect.workers:
        worker = host.workers.get(ref)
        if worker is None or worker.process is None or worker.ending:
            raise Conflict(f"rank {ref.rank} does not run any more")
        match effect.fault.kind:
            case "kill":
                worker.process.signal_group(signal.SIGKILL)
            case "stop":
                worker.process.signal_group(signal.SIGSTOP)
                if effect.fault.duration_s:
                    tasks.start(_continue(worker, effect.fault.duration_s), f"continue {effect.id}")
            case "contention":
                tasks.start(_contend(worker, effect.fault), f"contention {effect.id}")
            case "cpu-quota":
                quota = Quota(worker.pid, effect.fault.amount or 100, f"{effect.name}-{ref.rank}")
                lasting_s = effect.fault.duration_s or _LONG_S
                tasks.start(hold(worker, quota, lasting_s), f"quota {effect.id}")
            case _:
                _leave_note(worker, effect)
    return EffectDone(node=host.node, effect=effect.id)


async def _cut(bus: Bus, lasting_s: float) -> None:
    """Once the answer to the command is out: what is cut is everything after it."""
    await asyncio.sleep(_ANSWER_WITHIN_S)
    await bus.cut(lasting_s)


async def _continue(worker: LocalWorker, after_s: float) -> None:
    await asyncio.sleep(after_s)
    if worker.process is not None and not worker.ending:
        worker.process.signal_group(signal.SIGCONT)


async def _contend(worker: LocalWorker, fault: Fault) -> None:
    """Keep the worker on one core and let others work there."""
    lasting_s = fault.duration_s or _LONG_S
    before = os.sched_getaffinity(worker.pid)
    core = {sorted(before)[worker.ref.rank % len(before)]}
    _pin(worker.pid, core)
    load = [
        subprocess.Popen(
            [sys.executable, "-c", _LOAD, str(lasting_s)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(int(fault.amount or 1))
    ]
    try:
        for process in load:
            _pin(process.pid, core)
        for _ in range(int(lasting_s / 0.1)):
            if worker.ending:
                return
            await asyncio.sleep(0.1)
    finally:
        for process in load:
            process.kill()
            process.wait()
        if not worker.ending:
            _pin(worker.pid, before)


def _pin(pid: int, cores: set[int]) -> None:
    """All threads of a process; one that ends meanwhile is no loss."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return
    for thread in threads:
        try:
            os.sched_setaffinity(int(thread), cores)
        except OSError:
            continue


def _leave_note(worker: LocalWorker, effect: InjectFault) -> None:
    """Into the black box, and make the worker look: it reads notes at its step boundary."""
    box, fault = worker.box, effect.fault
    if box is None or box.closed:
        raise Conflict(f"rank {worker.ref.rank} has no black box, so only kill, stop and contention reach it")
    found = box.json(blackbox.FAULT)
    notes = [note for note in found if isinstance(note, dict)] if isinstance(found, list) else []
    if any(note.get("name") == effect.name for note in notes):
        return  # the same effect, sent again to an agent that has restarted
    note = {
        "name": effect.name,
        "kind": fault.kind,
        "amount": fault.amount,
        "duration_s": fault.duration_s,
        "at_step": fault.at_step,
        "where": fault.where,
        "seed": fault.seed,
        "peers": effect.peers,
    }
    box.view.write_blob(blackbox.FAULT, json.dumps([*notes, note][-_NOTES_KEPT:]).encode())
    words, at = box.view.words, blackbox.MAILBOX_AT // 8
    words[at + Mailbox.VERSION] = words[at + Mailbox.VERSION] + 1 & blackbox.MASK
