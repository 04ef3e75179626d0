"""Faults injected into this worker on purpose (`loom inject`), read from the FAULT blob at a step boundary.

Nothing here runs unless the agent left a note. A fault is meant to hurt, so what it raises or breaks is not
guarded; what it cannot do (no process group, no gradients) it leaves undone. Frames are named after the
fault, so that a stack shows at once that it was no accident.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import json
import random
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from torchloom.probe.links.pacing import Pacing
from torchloom.wire.blackbox import FAULT, Header, View

_MIB = 1 << 20


class Faults:
    """Those of one worker. `optimizers` gives the script's optimizers, the anchor first."""

    def __init__(self, view: View, optimizers: Callable[[], list[Any]], pacing: Pacing) -> None:
        self._view = view
        self._optimizers = optimizers
        self._pacing = pacing
        self._known: set[str] = set()
        self._waiting: list[dict[str, Any]] = []
        self._slow = 0.0
        self._slow_until_ns = 0
        self._ended_ns = 0
        self._own_ns = 0
        self._undo: list[tuple[int, Callable[[], None]]] = []
        self._hoard: list[Any] = []
        self.busy = False
        """Whether `at_boundary` has anything to do: read at every step, so a plain attribute."""

    def look(self) -> None:
        """Read the notes; each is followed once."""
        data = self._view.read_blob(FAULT)
        if not data:
            return
        for note in json.loads(data):
            if note["name"] not in self._known:
                self._known.add(note["name"])
                self._waiting.append(note)
                self.busy = True

    def at_boundary(self, completed: int) -> None:
        """At the boundary before step `completed` + 1."""
        now_ns = time.monotonic_ns()
        for until_ns, undo in [u for u in self._undo if u[0] <= now_ns]:
            self._undo.remove((until_ns, undo))
            undo()
        self._burn(now_ns)
        due = [note for note in self._waiting if (note["at_step"] or 0) <= completed + 1]
        self._waiting = [note for note in self._waiting if note not in due]
        for note in due:
            self._begin(note, _until(note))
        if self._pacing.busy:
            self._pacing.look()
        self.busy = bool(self._waiting or self._slow or self._undo or self._pacing.busy)

    # -- slow computation -------------------------------------------------------------------------
    def _burn(self, now_ns: int) -> None:
        """Take as long as asked, in proportion to what the script itself needs between two boundaries."""
        if not self._slow:
            return
        if now_ns >= self._slow_until_ns:
            self._slow = 0.0
            return
        if self._ended_ns:
            own_ns = now_ns - self._ended_ns
            # The fastest of late: a step in which the others were waited for says nothing about this rank.
            self._own_ns = min(own_ns, int(self._own_ns * 1.01) or own_ns)
            injected_slow_computation(now_ns + int(self._own_ns * (self._slow - 1)))
        self._ended_ns = time.monotonic_ns()

    # -- everything else --------------------------------------------------------------------------
    def _begin(self, note: dict[str, Any], until_ns: int) -> None:
        amount = note["amount"]
        match note["kind"]:
            case "exit":
                raise SystemExit(int(amount))
            case "hang":
                self._hang(note["where"], until_ns)
            case "gil-hold":
                injected_gil_hold(until_ns)
            case "slow":
                self._slow, self._slow_until_ns, self._ended_ns, self._own_ns = amount, until_ns, 0, 0
            case "data-slow":
                self._in_data(lambda: time.sleep(amount / 1e3), until_ns)
            case "nan":
                self._on_gradients(lambda gradient: gradient.fill_(float("nan")), first=True)
            case "gradient":
                self._multiply_gradients(amount)
            case "bit-flip":
                self._flip_a_bit(note["seed"])
            case "mismatch":
                injected_mismatch()
            case "skip":
                self._skip_one_reduction()
            case "deadlock":
                injected_deadlock()
            case "memory":
                self._hoard.append(b"\x01" * (int(amount) * _MIB))
                self._undo.append((until_ns, self._hoard.clear))
            case "disk-full":
                self._fill_disk(until_ns)
            case "device-error":
                self._in_backward(injected_device_error)
            case "slow-link" | "slow-sender" | "slow-receiver":
                self._pace(note, until_ns)
            case _:
                return

    def _hang(self, where: str, until_ns: int) -> None:
        if where == "data":
            self._in_data(lambda: injected_hang(until_ns), until_ns)
        elif where == "backward":
            self._in_backward(lambda gradient: injected_hang(until_ns))
        else:
            injected_hang(until_ns)

    def _in_backward(self, do: Callable[[Any], None]) -> None:
        for parameter in self._parameters():
            if parameter.requires_grad:
                parameter.register_hook(do)
                return

    def _in_data(self, do: Callable[[], None], until_ns: int) -> None:
        """Before every batch of torch's loaders, inside of what is timed as waiting for data."""
        loaders = sys.modules.get("torch.utils.data.dataloader")
        if loaders is None:
            return
        for owner in (loaders._SingleProcessDataLoaderIter, loaders._MultiProcessingDataLoaderIter):
            original = owner._next_data
            owner._next_data = _late(original, do, until_ns)
            self._undo.append((until_ns, partial(setattr, owner, "_next_data", original)))

    def _parameters(self) -> list[Any]:
        return [
            parameter
            for optimizer in self._optimizers()
            for group in optimizer.param_groups
            for parameter in group["params"]
        ]

    def _on_gradients(self, do: Callable[[Any], Any], first: bool = False) -> None:
        for parameter in self._parameters():
            if parameter.grad is not None:
                do(parameter.grad)
                if first:
                    return

    def _multiply_gradients(self, factor: float) -> None:
        """In the next backward pass, so that code that clips or logs the norm sees it."""
        for parameter in self._parameters():
            if parameter.requires_grad:
                hook = parameter.register_hook(lambda gradient: gradient * factor)
                self._undo.append((time.monotonic_ns() + 1, hook.remove))

    def _flip_a_bit(self, seed: int) -> None:
        """The highest bit of an exponent that is not set: the value becomes very large, and stays finite."""
        import torch

        chance = random.Random(seed)
        parameters = [p for p in self._parameters() if p.dtype == torch.float32 and p.numel()]
        if not parameters:
            return
        with torch.no_grad():
            values = chance.choice(parameters).view(-1)
            place = chance.randrange(values.numel())
            word = values[place : place + 1].view(torch.int32)
            word ^= 1 << 26

    def _skip_one_reduction(self) -> None:
        """Until the next boundary the model does not reduce its gradients here; the others wait for it."""
        from torch.nn.parallel import DistributedDataParallel

        for found in gc.get_objects():
            if isinstance(found, DistributedDataParallel):
                found.require_backward_grad_sync = False
                self._undo.append((0, partial(setattr, found, "require_backward_grad_sync", True)))

    def _pace(self, note: dict[str, Any], until_ns: int) -> None:
        """Send slowly to the ranks named, or be one of them and say which connections are meant."""
        if self._view.header(Header.RANK) in note["peers"]:
            self._pacing.tell_ends(note["name"])
        else:
            peers = frozenset(note["peers"]) or None
            self._pacing.begin(note["name"], max(1, int(note["amount"] * 1e6)), until_ns, peers)

    def _fill_disk(self, until_ns: int) -> None:
        from torchloom.checkpoint.store import points

        def injected_full_disk(name: str) -> None:
            if time.monotonic_ns() < until_ns:
                raise OSError(errno.ENOSPC, "No space left on device (injected)")

        points.set_hook(injected_full_disk)
        self._undo.append((until_ns, lambda: points.set_hook(None)))


def _until(note: dict[str, Any]) -> int:
    lasting_s = note["duration_s"]
    return time.monotonic_ns() + int(lasting_s * 1e9) if lasting_s else 2**63 - 1


def _late(original: Callable[[Any], Any], do: Callable[[], None], until_ns: int) -> Callable[[Any], Any]:
    def injected_late_batch(self: Any) -> Any:
        if time.monotonic_ns() < until_ns:
            do()
        return original(self)

    return injected_late_batch


def injected_slow_computation(until_ns: int) -> None:
    """Compute nothing of use."""
    while time.monotonic_ns() < until_ns:
        pass


def injected_hang(until_ns: int) -> None:
    """Wait for what never comes."""
    never = threading.Event()
    while (left_ns := until_ns - time.monotonic_ns()) > 0:
        never.wait(min(left_ns / 1e9, 86400.0))


def injected_gil_hold(until_ns: int) -> None:
    """Sleep in C without giving up the interpreter's lock: no thread of this process can run Python."""
    sleep = ctypes.PyDLL(None).sleep
    while (left_ns := until_ns - time.monotonic_ns()) > 0:
        sleep(ctypes.c_uint(max(1, min(left_ns // 10**9, 3600))))


def injected_mismatch() -> None:
    """One collective more than the others, of an odd size: it meets their next one."""
    import torch
    import torch.distributed as dist

    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(torch.zeros(12347))


def injected_device_error(gradient: Any) -> None:
    """The error torch raises for a device that failed in the middle of a computation."""
    raise RuntimeError("CUDA error: uncorrectable ECC error encountered (injected)")


def injected_deadlock() -> None:
    """All ranks do two collectives in two groups, every second one in the other order."""
    import torch
    import torch.distributed as dist

    if not dist.is_initialized() or dist.get_world_size() < 2:
        return
    groups = [dist.new_group(), dist.new_group()]
    if dist.get_rank() % 2:
        groups.reverse()
    for group in groups:
        dist.all_reduce(torch.zeros(1), group=group)
