"""The collective recorder for machines without a compiler: the same kernel in Python, sampled.

A Python kernel costs some 80 µs a call, whether it records or not, so it must be possible not to call it. The
kernels are therefore registered on a dispatch key that is otherwise unused and falls through everywhere else,
and that key is switched on and off for the training thread (autograd's threads inherit it): off costs nothing
and the dispatcher's tables are never changed while operations run.

What it records is right but less than what the native recorder does:

* it records whole steps, one in every `period` (a power of two, so that ranks with different periods still
  record common steps), chosen so that it takes at most 0.5 % of the time;
* the number within the group is the backend's own (FLAG_BACKEND_SEQ), because between recorded steps nothing
  is counted; where the backend has none, and for sends and receives, it is 0: unknown;
* the reduction (SUM, MAX, …) only if this torch shows it to Python, as 2.13 does; ranks are compared by it in
  the steps that all of them have recorded, because the backend's numbers are not exact;
* no completion times (Source.NONE): a callback in Python would make gloo's thread wait for the GIL, which
  delays the collective and can deadlock. Only what has ended when the call returns has a time;
* threads the script starts itself are not seen.

Arguments are passed on exactly as they came: never unboxed and rebuilt (that turns MAX into SUM).
"""

from __future__ import annotations

import importlib
import itertools
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from torchloom.probe.observe.operators import OPERATIONS, OperatorReading
from torchloom.wire import blackbox as bb

KEY = "TESTING_ONLY_GenericMode"
"""A mode key of torch that nothing but its own tests uses."""
BUDGET = 0.005
HIDDEN_COST = 4.0
"""Cost of a call as a multiple of the part measured here: the dispatcher converts arguments on both sides."""
START_BUDGET_NS = 20_000_000
"""What may be spent before the budget counts, so that a script's set-up is recorded."""
LONGEST_PERIOD = 1024

_libraries: list[Any] = []
_active: Fallback | None = None


def is_loaded() -> bool:
    return bool(_libraries)


def load() -> None:
    """Register the kernels on a key that is off. Needs torch; starts no thread, runs no tensor operation."""
    torch = sys.modules["torch"]
    everywhere_else = torch.library.Library("_", "IMPL", KEY)
    everywhere_else.fallback(torch.library.fallthrough_kernel)
    library = torch.library.Library("c10d", "IMPL", KEY)
    for operation in OPERATIONS:
        packet = getattr(torch.ops.c10d, operation.name, None)
        if packet is not None:
            kernel = _kernel(operation, packet.default, torch._C)
            library.impl(operation.name, kernel, with_keyset=True)
    _libraries.extend((everywhere_else, library))
    os.register_at_fork(after_in_child=_forget)


def _forget() -> None:
    """A forked child shares the black box's pages and must not write there."""
    if _active is not None:
        _active.stop()


class _Reader(NamedTuple):
    """Positions of an operator's arguments; -1 where it has none."""

    operation: OperatorReading
    code: int
    group: int
    sized: int
    peer: int
    asynchronous: int
    reduction: int

    def is_async(self, arguments: tuple[Any, ...]) -> bool:
        # The dispatcher leaves out trailing arguments that have their default, which is True here.
        at = self.asynchronous
        return at >= 0 and (at >= len(arguments) or bool(arguments[at]))


def _kernel(operation: OperatorReading, overload: Any, c: Any) -> Callable[..., Any]:
    names = [argument.name for argument in overload._schema.arguments]

    def position(name: str) -> int:
        return names.index(name) if name in names else -1

    reader = _Reader(
        operation,
        operation.code,
        position("process_group"),
        position(operation.sized_by),
        position(operation.peer_from),
        position("async_op"),
        position("reduce_op"),
    )
    below = c._dispatch_keyset_full_after(c._parse_dispatch_key(KEY))
    python_key = c.DispatchKey.Python
    redispatch = overload._handle.redispatch_boxed  # lets go of the GIL while the operation runs
    returns_work = bool(overload._schema.returns)

    def kernel(keys: Any, *arguments: Any, **named: Any) -> Any:
        recorder = _active
        # Under a tracing mode nothing is sent, so nothing is recorded.
        if recorder is None or not recorder.on or keys.has(python_key):
            return redispatch(keys & below, *arguments, **named)
        slot = recorder.enter(reader, arguments)
        try:
            result = redispatch(keys & below, *arguments, **named)
        except BaseException:
            recorder.end(slot, failed=True)
            raise
        if not returns_work:
            recorder.end(slot, failed=False)
        return result

    return kernel


class Fallback:
    """Records into one black box; made in the training thread, which is the one it sees."""

    kind = bb.RecorderKind.PYTHON

    def __init__(self, view: bb.View) -> None:
        global _active
        torch = sys.modules["torch"]
        self._switch: Callable[[str, bool], None] = torch._C._dispatch_tls_set_dispatch_key_included
        self._unbox: Callable[[Any], Any] = importlib.import_module("torch.distributed").ProcessGroup.unbox
        self._view = view
        self._seqs = itertools.count(view.progress(bb.Progress.COLLECTIVES_ENTERED) + 1)
        self._groups: dict[str, _Group] = {}
        self._sampler = Sampler(time.monotonic_ns())
        self.on = False
        _active = self
        self._turn(True)

    def step_ended(self) -> None:
        wanted = self._sampler.after_step(time.monotonic_ns())
        if wanted != self.on:
            self._turn(wanted)

    def stop(self) -> None:
        global _active
        _active = None
        self._turn(False)

    def _turn(self, on: bool) -> None:
        self.on = on
        self._switch(KEY, on)

    def enter(self, reader: _Reader, arguments: tuple[Any, ...]) -> tuple[int, int]:
        """Write the record of an operation that begins; gives back its slot and number for `end`."""
        try:
            # CPU time: on a busy machine a record would sometimes seem to cost a whole time slice.
            began = time.thread_time_ns()
            now = time.monotonic_ns()
            slot = self._write(reader, arguments, now)
            if not self._sampler.spend(time.thread_time_ns() - began, now):
                self._turn(False)
            return slot
        except Exception:  # noqa: BLE001  # the host program is sacred: less telemetry, never a failure
            self._view.set_progress(bb.Progress.GUARD_TRIPS, self._view.progress(bb.Progress.GUARD_TRIPS) + 1)
            self._turn(False)
            return 0, 0

    def end(self, slot: tuple[int, int], *, failed: bool) -> None:
        """Write the completion of an operation that was over when its call came back."""
        at, seq = slot
        if seq and self._view.words[at] == seq:
            now = time.monotonic_ns()
            word = now << bb.TIME_SHIFT | bb.Source.HOST_WAIT << 1 | failed
            self._view.words[at + bb.CollectiveWord.COMPLETION] = word
            self._add(bb.Progress.COLLECTIVES_FINISHED, 1)

    def _write(self, reader: _Reader, arguments: tuple[Any, ...], now: int) -> tuple[int, int]:
        words = self._view.words
        operation = reader.operation
        process_group = self._unbox(arguments[reader.group])
        group = self._group(process_group)
        size, dtype = _payload(arguments[reader.sized]) if reader.sized >= 0 else (0, 0)
        peer = arguments[reader.peer] if reader.peer >= 0 else bb.NO_PEER
        flags = bb.FLAG_COALESCED if operation.coalesced else 0
        if reader.is_async(arguments):
            flags |= bb.FLAG_ASYNC
        number = 0
        if operation.paired:
            group.paired += 1
        else:
            number, skipped = group.next_number(process_group)
            flags |= bb.FLAG_BACKEND_SEQ if number else 0
            if skipped:
                self._add(bb.Progress.COLLECTIVES_SKIPPED, skipped)
        seq = next(self._seqs)
        reduction = _reduction(arguments[reader.reduction]) if reader.reduction >= 0 else 0
        packed = dtype | reduction << bb.REDUCTION_SHIFT | flags << 16 | group.size << 32
        body = (seq, reader.code, group.key, number, size, packed, peer, now)
        at = bb.COLLECTIVES_AT // 8 + (seq - 1) % bb.COLLECTIVE_SLOTS * bb.COLLECTIVE_WORDS
        words[at] = 0
        for i in range(1, 8):
            words[at + i] = body[i]
        words[at + 8] = bb.checksum(body)
        words[at + 9] = bb.IN_FLIGHT | seq << bb.TIME_SHIFT | bb.Source.NONE << 1
        words[at] = seq
        if number and group.at:
            words[group.at + bb.GroupWord.ENTERED] = number
        progress = bb.PROGRESS_AT // 8
        words[progress + bb.Progress.COLLECTIVES_ENTERED] = seq
        words[progress + bb.Progress.LAST_ACTIVITY_NS] = now
        return at, seq

    def _add(self, index: bb.Progress, amount: int) -> None:
        self._view.set_progress(index, self._view.progress(index) + amount)

    def _group(self, process_group: Any) -> _Group:
        name = process_group.group_name
        group = self._groups.get(name)
        if group is None:
            used = len(self._groups)
            at = bb.GROUPS_AT // 8 + used * bb.GROUP_WORDS if used < bb.GROUP_SLOTS else 0
            group = self._groups[name] = _Group(name, process_group.size(), at)
            group.show(self._view, process_group.rank(), _timeout_ms(process_group))
        return group


class _Group:
    """A process group seen by this recorder, and its place in the group table (0: the table is full).

    It holds no reference to torch's group, which would otherwise outlive destroy_process_group.
    """

    def __init__(self, name: str, size: int, at: int) -> None:
        self.name, self.size, self.at = name, size, at
        self.key = bb.group_key(name)
        self.paired = 0
        """Sends and receives recorded since the last collective: gloo counts them too."""
        self._known = 0
        self._numbered = True

    def show(self, view: bb.View, rank: int, timeout_ms: int) -> None:
        if not self.at:
            return
        name = self.name.encode()[: bb.GROUP_NAME_BYTES]
        words = view.words
        start = (self.at + bb.GroupWord.NAME) * 8
        view.raw[start : start + len(name)] = name
        words[self.at + bb.GroupWord.NAME_LENGTH] = len(name) | timeout_ms << bb.TIMEOUT_SHIFT
        words[self.at + bb.GroupWord.SIZE] = self.size | rank << 32
        words[self.at + bb.GroupWord.ENTERED] = 0
        words[self.at + bb.GroupWord.FINISHED] = 0
        words[self.at] = self.key

    def next_number(self, process_group: Any) -> tuple[int, int]:
        """The backend's number for the operation that begins, and how many before it went unseen."""
        if not self._numbered:
            return 0, 0
        try:
            number = process_group._get_sequence_number_for_group() + 1
        except RuntimeError:  # this backend keeps no count
            self._numbered = False
            return 0, 0
        skipped = max(0, number - self._known - 1 - self.paired)
        self._known, self.paired = number, 0
        return number, skipped


def _timeout_ms(process_group: Any) -> int:
    """How long its backend waits before it gives up by itself; 0 when it does not say."""
    try:
        device = (process_group._device_types or [None])[0]
        timeout = process_group._get_backend(device).options._timeout
        return min(int(timeout.total_seconds() * 1000), (1 << 47) - 1)
    except (AttributeError, RuntimeError, TypeError, IndexError):
        return 0


class Sampler:
    """Which steps to record so that the cost stays within the budget. Pure: time is an argument."""

    def __init__(self, now_ns: int) -> None:
        self._started_ns = self._recorded_ns = now_ns
        self._spent_ns = self._step_spent_ns = 0.0
        self._steps = 0
        self._since_recorded = 0
        self.period = 1

    def spend(self, measured_ns: int, now_ns: int) -> bool:
        """Count the cost of one record; False when the rest of this step is not to be recorded."""
        cost = measured_ns * HIDDEN_COST
        self._spent_ns += cost
        self._step_spent_ns += cost
        return self._spent_ns <= START_BUDGET_NS + BUDGET * (now_ns - self._started_ns)

    def after_step(self, now_ns: int) -> bool:
        """Whether to record the step that begins now."""
        self._steps += 1
        self._since_recorded += 1
        if self._step_spent_ns and self._steps > 1:
            step_ns = max(1.0, (now_ns - self._recorded_ns) / self._since_recorded)
            self.period = _power_of_two(self._step_spent_ns / (BUDGET * step_ns))
        if self._step_spent_ns:
            self._since_recorded, self._recorded_ns, self._step_spent_ns = 0, now_ns, 0.0
        return self._steps % self.period == 0


def _power_of_two(at_least: float) -> int:
    period = 1
    while period < at_least and period < LONGEST_PERIOD:
        period *= 2
    return period


def _reduction(value: Any) -> int:
    """As in the black box; 0 where this torch keeps it to itself."""
    try:
        number = int(value.op()) + 1
    except (AttributeError, RuntimeError, TypeError):
        return 0
    return number if 0 < number < len(bb.REDUCTIONS) else 0


def _payload(value: Any) -> tuple[int, int]:
    """Bytes of all tensors in an argument and the dtype field of the first."""
    if isinstance(value, (list, tuple)):
        parts = [_payload(element) for element in value]
        return sum(size for size, _ in parts), next((dtype for _, dtype in parts if dtype), 0)
    return value.numel() * value.element_size(), _DTYPES.get(str(value.dtype).removeprefix("torch."), 0)


_DTYPES = {name: number for number, name in bb.DTYPES.items()}
