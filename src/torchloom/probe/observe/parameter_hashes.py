"""Hashes of this rank's parameters, so that replicas which should be equal can be compared from outside.

Owns what is hashed, when, and at what cost. Compares nothing: ranks that hold other parameters by design
(shards, stages, local updates) hash them all the same, and core/detect/replicas.py learns who agrees with
whom.

The parameters of the anchor optimizer, in its order, are cut into parts. At the boundary before step s + 1,
for some s, a few parts are summed as integers (one flipped bit always changes the sum) and written as "after
step s". Which s and which parts depends on s and on powers of two only, so that ranks choose alike without
talking: a rank that looks half as often as another looks at half of the other's steps. On CUDA the sums are
queued and read at a later boundary. What is not an ordinary dense tensor (DTensor, flat shards) is left out.

The same parts are looked at for NaN and infinities, because a script that does not log its loss can train
on with them for days. Only parts that were finite once count: a mask may have infinities for good reasons.
A job of one worker has nothing to compare with, so only this check runs there.
"""

from __future__ import annotations

import sys
import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from math import isfinite
from statistics import median
from typing import Any, NamedTuple

from torchloom.probe.observe.from_device import fetch, is_capturing
from torchloom.wire.blackbox import MASK, Hash, Progress, View

SHARE = 0.002
"""Of the time that may be spent on it, at most."""
APART_NS = 250_000_000
"""Least time between two looks: the box keeps the newest few, and windows are read twice a second."""
AT_ONCE = 4
"""Parts of one look."""
FIRST = 8
MOST_APART = 1 << 20
SMALL = 1 << 19
"""Elements of a model whose parts need not be small."""
LARGEST_PART = 1 << 20
MOST_SEGMENTS = 16
"""Tensors in one part: each costs a few microseconds however small it is."""
ALONE = 30_000
"""Elements below which torch uses one thread."""
NEVER = MASK
_GOLDEN = 0x9E3779B97F4A7C15


class Segment(NamedTuple):
    parameter: int
    start: int
    stop: int


class ParameterHashes:
    """The hashing of one worker."""

    def __init__(self, view: View, tell_finite: Callable[[bool, int], None], *, compare: bool = True) -> None:
        """Calls `tell_finite` with whether all parameters are finite, and the step, whenever that changes.
        `compare` says that there are other ranks whose hashes these can be compared with."""
        self._view = view
        self._compare = compare
        self._tell_finite = tell_finite
        self._were_finite: set[int] = set()
        """Parts that were seen so."""
        self._ill: set[int] = set()
        """The parameters that are no longer finite."""
        self._every = FIRST
        self._written = 0
        self._identities: list[int] = []
        self._parameters: list[Any] = []
        self._on_cpu = True
        self._parts: list[list[Segment]] = []
        self._table = 0
        self._cost_ns: deque[int] = deque(maxlen=8)
        self._coming: list[tuple[int, list[int], Any, Any]] = []
        """Sums and then what is finite, on their way from a device: (step, parts, pinned tensor, event)."""

    def look(self, completed: int, optimizer: Any) -> int:
        """At the boundary after `completed` steps; when to look again."""
        if self._coming:
            self._take_arrived()
        if completed % self._every == 0:
            # In CPU time: on a busy host a look that had to wait for a core would seem expensive, and hardly
            # any be made. What is queued for a device is short, and may wait for it.
            spent_ns = time.thread_time_ns if self._on_cpu else time.monotonic_ns
            began_ns = spent_ns()
            known = self._identities
            self._hash(completed, optimizer)
            if known is self._identities:  # the first look takes longer: it makes tables and loads code
                self._cost_ns.append(spent_ns() - began_ns)
            self._every = self._apart()
        following = completed - completed % self._every + self._every
        return completed + 1 if self._coming else following

    def _apart(self) -> int:
        """Steps between two looks: a power of two, so that ranks which choose differently still meet."""
        step_ns = max(1, self._view.progress(Progress.STEP_NS))
        cost_ns = median(self._cost_ns) if self._cost_ns else 0
        least = max(APART_NS, cost_ns / SHARE) / step_ns
        apart = 1
        while apart < least and apart < MOST_APART:
            apart *= 2
        return apart

    # -- what -----------------------------------------------------------------------------------
    def _hash(self, step: int, optimizer: Any) -> None:
        torch = sys.modules["torch"]
        self._look_at_parameters(torch, optimizer, step)
        if not self._parts:
            return
        device = self._parameters[0].device
        if is_capturing(torch, device):
            return  # whatever is queued now would become part of the script's graph
        try:
            self._hash_parts(torch, step, device)
        except (RuntimeError, NotImplementedError):
            if device.type in ("cpu", "cuda"):
                raise
            self._parts = []  # not every device has the operators

    def _hash_parts(self, torch: Any, step: int, device: Any) -> None:
        chosen = parts_at(step, len(self._parts))
        with torch.no_grad():
            flats = [self._flats(torch, self._parts[part]) for part in chosen]
            sums = [_sum(torch, part) for part in flats] if self._compare else []
            finite = [_is_finite(torch, part) for part in flats]
            if device.type == "cpu":
                self._write(step, chosen, sums, finite)
                return
            coming = fetch(torch, torch.stack([*sums, *finite]))
        if coming is not None:
            self._coming.append((step, chosen, *coming))

    def _flats(self, torch: Any, segments: Sequence[Segment]) -> list[Any]:
        return [_flat(torch, self._parameters[index].detach())[start:stop] for index, start, stop in segments]

    def _look_at_parameters(self, torch: Any, optimizer: Any, step: int) -> None:
        present = [p for group in optimizer.param_groups for p in group["params"]]
        identities = [id(p) for p in present]
        if identities == self._identities:
            return
        self._identities = identities
        if self._ill:
            self._tell_finite(True, step)  # earlier reports were about other parameters
        self._were_finite, self._ill = set(), set()
        self._coming.clear()
        kinds = (torch.Tensor, torch.nn.Parameter)
        ordinary = [p for p in present if type(p) in kinds and p.numel() and _is_dense(torch, p)]
        devices = {p.device for p in ordinary}
        if len(devices) != 1 or next(iter(devices)).type == "meta":
            ordinary = []
        self._parameters = ordinary
        self._on_cpu = not ordinary or ordinary[0].device.type == "cpu"
        self._parts = cut([p.numel() for p in ordinary])
        told = repr([(tuple(p.shape), str(p.dtype)) for p in ordinary])
        self._table = zlib.crc32(told.encode())

    # -- reporting ------------------------------------------------------------------------------
    def _take_arrived(self) -> None:
        while self._coming and self._coming[0][3].query():
            step, chosen, host, _ = self._coming.pop(0)
            told = host.tolist()
            self._write(step, chosen, told[: -len(chosen)], told[-len(chosen) :])

    def _write(
        self, step: int, chosen: Sequence[int], sums: Sequence[int], finite: Sequence[bool | int]
    ) -> None:
        for part, value in zip(chosen, sums, strict=self._compare):
            where = self._table << 32 | part << 16 | len(self._parts)
            self._view.write_hash(self._written, Hash(step, where, value & MASK))
            self._written += 1
        was_ill = bool(self._ill)
        for part, is_finite in zip(chosen, finite, strict=True):
            if is_finite:
                self._were_finite.add(part)
                self._ill.discard(part)
            elif part in self._were_finite:
                self._ill.add(part)
        if bool(self._ill) != was_ill:
            self._tell_finite(not self._ill, step)


def parts_at(step: int, parts: int) -> list[int]:
    """The parts that are hashed after a step: over time all of them, whichever steps are looked at."""
    first = (step * _GOLDEN & MASK) * parts >> 64
    count = min(AT_ONCE, parts)
    return sorted({(first + n * parts // count) % parts for n in range(count)})


def cut(sizes: Sequence[int]) -> list[list[Segment]]:
    """Parameters of these sizes as parts of about equal size, none of which has very many tensors."""
    total = sum(sizes)
    largest = max(32, -(-total // 8)) if total <= SMALL else min(LARGEST_PART, -(-total // 64))
    largest += -largest % 64  # a part begins at a whole number of words within its tensor
    largest = max(largest, -(-total // 60_000))
    parts: list[list[Segment]] = []
    room = 0
    for index, size in enumerate(sizes):
        start = 0
        while start < size:
            if room <= 0 or len(parts[-1]) >= MOST_SEGMENTS or (start == 0 and size > room):
                parts.append([])
                room = largest
            stop = min(size, start + room)
            parts[-1].append(Segment(index, start, stop))
            room -= stop - start
            start = stop
    return parts


def _is_dense(torch: Any, tensor: Any) -> bool:
    if tensor.layout is not torch.strided:
        return False
    return bool(
        tensor.is_contiguous()
        or (tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last))
    )


def _flat(torch: Any, tensor: Any) -> Any:
    if tensor.is_contiguous():
        return tensor.view(-1)
    return torch.as_strided(tensor, (tensor.numel(),), (1,), tensor.storage_offset())


def _sum(torch: Any, flats: Sequence[Any]) -> Any:
    total: Any = None
    for flat in flats:
        summed = _added(torch, _as_integers(torch, flat))
        # The place counts: two tensors that change places are not the same model.
        total = summed if total is None else total * 31 + summed
    return total


def _is_finite(torch: Any, flats: Sequence[Any]) -> Any:
    """A truth on the CPU, else a number on the device."""
    if flats[0].device.type == "cpu":
        return all(_all_finite(torch, flat) for flat in flats)
    return torch.stack([torch.isfinite(flat).all() for flat in flats]).all().to(torch.int64)


def _added(torch: Any, integers: Any) -> Any:
    """On a CPU in pieces that torch adds without its other threads: on busy cores those cost milliseconds."""
    if integers.device.type != "cpu":
        return integers.sum(dtype=torch.int64)
    return sum(int(piece.sum(dtype=torch.int64)) for piece in integers.split(ALONE)) & MASK


def _all_finite(torch: Any, flat: Any) -> bool:
    """By sums, in pieces as above; only where a sum is not finite, as of large numbers, each is looked at."""
    if not (flat.is_floating_point() or flat.is_complex()):
        return True
    wide = torch.float32 if flat.element_size() < 4 else None
    return all(
        isfinite(abs(piece.sum(dtype=wide).item())) or bool(torch.isfinite(piece).all())
        for piece in flat.split(ALONE)
    )


def _as_integers(torch: Any, flat: Any) -> Any:
    """The same bits as the widest integers that fit: fewer numbers to add."""
    if flat.is_complex():
        flat = torch.view_as_real(flat).view(-1)
    size = flat.element_size()
    whole = flat.numel() * size % 8 == 0 and flat.storage_offset() * size % 8 == 0
    integer = torch.int64 if whole else {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
    return flat.view(integer)
