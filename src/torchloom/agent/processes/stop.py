"""Carries out StopWorkers: asks at a step boundary, then SIGTERM, then SIGKILL, always to the process group.

Several stops of the same worker may run side by side: a later, harsher one does not wait for an earlier one.
The exits themselves are said by `watch`.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterable

from torchloom.agent.host import Host, LocalWorker
from torchloom.agent.observe import kernel
from torchloom.model.effects import StopWorkers
from torchloom.model.events import EffectDone, WorkerExited
from torchloom.model.worker import Exit, WorkerRef

_LOOK_EVERY_S = 0.02


async def stop_workers(host: Host, effect: StopWorkers) -> EffectDone:
    """End these workers. Returns when each of their exits has been said."""
    await _withdraw(host, effect.workers)
    known = [host.workers[ref] for ref in effect.workers if ref in host.workers]
    await _end(known, effect)
    for worker in known:
        await worker.told.wait()
    for ref in effect.workers:
        if ref not in {worker.ref for worker in known}:
            _say_absent(host, effect, ref)
    return EffectDone(node=host.node, effect=effect.id)


async def _withdraw(host: Host, refs: Iterable[WorkerRef]) -> None:
    """A start still in progress ends by itself when its workers are withdrawn: wait for that."""
    waiting = [(ref, host.starting[ref]) for ref in refs if ref in host.starting]
    host.withdrawn.update(ref for ref, _ in waiting)
    for ref, over in waiting:
        await over.wait()
        host.withdrawn.discard(ref)


async def _end(workers: list[LocalWorker], effect: StopWorkers) -> None:
    if effect.at_step is not None and effect.boundary_wait_s > 0:
        for worker in workers:
            if worker.box is not None and not worker.box.closed:
                worker.box.ask_to_stop(effect.at_step)
        await _wait(workers, effect.boundary_wait_s, effect.kill_in_collective)
    if effect.grace_s > 0:
        if effect.signal:
            _signal_themselves(workers, effect.signal)
        elif not effect.let_end:
            _signal(workers, signal.SIGTERM, but_in_collective=effect.kill_in_collective)
        await _wait(workers, effect.grace_s, effect.kill_in_collective)
    _signal(workers, signal.SIGKILL)


async def _wait(workers: list[LocalWorker], seconds: float, kill_in_collective: bool) -> None:
    """Wait until all have ended or time is up; meanwhile kill workers that cannot end by themselves."""
    give_up = time.monotonic() + seconds
    while (left := give_up - time.monotonic()) > 0:
        alive = [w for w in workers if not w.ending]
        if not alive:
            return
        if kill_in_collective:
            _signal([w for w in alive if _is_helpless(w)], signal.SIGKILL)
        ends = [asyncio.ensure_future(w.told.wait()) for w in alive]
        _, pending = await asyncio.wait(ends, timeout=min(left, _LOOK_EVERY_S))
        for task in pending:
            task.cancel()


def _signal(workers: Iterable[LocalWorker], number: signal.Signals, but_in_collective: bool = False) -> None:
    for worker in workers:
        if worker.process is None or worker.ending:
            continue
        chosen = signal.SIGKILL if but_in_collective and _is_helpless(worker) else number
        worker.signal_group(chosen)


def _signal_themselves(workers: Iterable[LocalWorker], name: str) -> None:
    """A signal that the script handles; its data loaders do not, and would die of it."""
    for worker in workers:
        if worker.process is not None and not worker.ending:
            worker.signal_alone(signal.Signals[name])


def _is_helpless(worker: LocalWorker) -> bool:
    """It sits in a collective that will not end, or it is stopped and no signal but SIGKILL reaches it."""
    return in_collective(worker) or kernel.state_of(worker.pid) == "T"


def in_collective(worker: LocalWorker) -> bool:
    """Whether the worker is recorded inside a collective, where it can only wait for its peers."""
    return worker.box is not None and not worker.box.closed and bool(worker.box.under_way())


def _say_absent(host: Host, effect: StopWorkers, ref: WorkerRef) -> None:
    """Nothing of this incarnation is here. If its exit was said before, this one has no effect."""
    event = WorkerExited(
        node=host.node,
        ref=ref,
        exit=Exit(None, None, "inventory"),
        at_ns=time.time_ns(),
        activity="not running on this host when it was to be stopped",
    )
    host.reporter.say(event, f"{effect.id}.absent.r{ref.rank}.i{ref.incarnation}")
