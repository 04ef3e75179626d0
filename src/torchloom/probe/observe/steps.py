"""Counts and times optimizer steps, and finds the boundary, through torch's global optimizer hooks.

The *anchor* is the first optimizer that stepped (the next one that steps, should it be collected). A *step*
is one outermost `step()` of the anchor that came to its end; the *boundary* is the moment before it. So:

* a step within a step (ZeroRedundancyOptimizer, `super().step()`) is part of the outer one;
* gradient accumulation counts updates, not batches; LBFGS counts calls of `step`, not of its closure;
* a GradScaler that skips an update skips the step (a fused optimizer is still called, so its step counts);
* other optimizers (GANs) have a counter of their own, whichever thread they run on;
* a step that raises is not counted, nor one that only makes an optimizer's state for a checkpoint;
* a compiled `optimizer.step` of torch.optim counts; inside a compiled step() of another class the hooks
  vanish, so that it may stay one graph, and it is not counted.

Nothing here is done per parameter.
"""

from __future__ import annotations

import functools
import os
import sys
import types
import weakref
from collections.abc import Callable
from signal import SIGKILL
from threading import get_ident
from time import CLOCK_BOOTTIME, clock_gettime_ns, monotonic_ns
from typing import Any

from torchloom.probe.guard import Guard
from torchloom.probe.observe.data_wait import DataWait
from torchloom.probe.observe.parameter_hashes import NEVER
from torchloom.probe.steering.mailbox import Inbox
from torchloom.probe.steering.overrides import Overrides
from torchloom.wire.blackbox import FENCE, PROGRESS_AT, Progress, View

_AT = PROGRESS_AT // 8
_STEPS = _AT + Progress.STEPS
_ENTERED = _AT + Progress.STEP_ENTERED_NS
_ENDED = _AT + Progress.STEP_ENDED_NS
_STEP_NS = _AT + Progress.STEP_NS
_OTHER_STEPS = _AT + Progress.OTHER_STEPS
_ACTIVITY = _AT + Progress.LAST_ACTIVITY_NS
_FIRST = _AT + Progress.FIRST_STEP_NS
_COLLECTIVES = _AT + Progress.COLLECTIVES_ENTERED
_FENCE = FENCE.at // 8
_COUNT = _AT + Progress.OPTIMIZERS
MOST = 64
"""Numbers given out before those of optimizers that are gone are given again."""


class Optimizers:
    """The optimizers of the script that have stepped, by number; number 0 is the anchor."""

    def __init__(self, view: View) -> None:
        self._words = view.words
        self.anchor: Callable[[], Any] = _nobody
        self._others: list[Callable[[], Any]] = []
        self.arrived: Callable[[Any], None] = _ignored
        """Called with an optimizer that is not the anchor when it gets its number."""

    def by_number(self) -> list[Any]:
        """Each at the place of its number, None where it is gone."""
        return [self.anchor(), *(other() for other in self._others)]

    def numbered(self) -> list[tuple[int, Any]]:
        """Numbers and optimizers of those that still exist."""
        known = enumerate(self.by_number())
        return [(number, optimizer) for number, optimizer in known if optimizer is not None]

    def number_of(self, optimizer: Any) -> int | None:
        """None before its first step."""
        return next((number for number, one in self.numbered() if one is optimizer), None)

    def living(self) -> list[Any]:
        """Those that still exist, the anchor first."""
        return [optimizer for optimizer in self.by_number() if optimizer is not None]

    def anchor_name(self) -> str:
        return type(self.anchor()).__name__

    def drop_anchor(self, optimizer: Any) -> None:
        """From now on this one is number 0."""
        if self._others and self._others[-1]() is optimizer:
            self._others.pop()
        self._others = [_nobody if other() is optimizer else other for other in self._others]
        self.anchor = weakref.ref(optimizer)
        self._words[_COUNT] = len(self.living())

    def enrol(self, optimizer: Any) -> int:
        """The number of one that is not the anchor: it keeps it for life, because changes name it so."""
        for place, other in enumerate(self._others):
            if other() is optimizer:
                return place + 1
        if len(self._others) >= MOST:
            self._others = [other for other in self._others if other() is not None]
        self._others.append(weakref.ref(optimizer))
        self._words[_COUNT] = len(self.living())
        self.arrived(optimizer)
        return len(self._others)


class Steps:
    """The step counters of one worker.

    `inbox` is asked at every boundary and may end the script; `began(now_ns)` is called at the first one, and
    `housekeeping(completed, now_ns)`, which says when it wants to be called next, after a step when due.
    The hot path makes few calls on purpose: cold, each costs a microsecond of the user's step.
    """

    def __init__(
        self,
        view: View,
        *,
        optimizers: Optimizers,
        inbox: Inbox,
        data: DataWait,
        overrides: Overrides,
        began: Callable[[int], None],
        housekeeping: Callable[[int, int], int],
    ) -> None:
        self._view = view
        self._words = view.words
        self._optimizers = optimizers
        self.inbox = inbox
        self._aside = 0
        """Steps that are none of the training's are being made."""
        self._data = data
        self.overrides = overrides
        self._began = began
        self._housekeeping = housekeeping
        self._housekeeping_ns = 0
        self.hash_due = NEVER
        """Completed steps from which on `look_at_replicas` is called; it says when it is due again."""
        self.look_at_replicas: Callable[[int, Any], int] = lambda completed, optimizer: NEVER
        self.step_ended: Callable[[], None] | None = None
        """Also called after every step: a recorder that samples chooses by it."""
        self._open: Any = None
        """The argument tuple of the outermost step() in progress: a new one for every call."""
        self._open_is_anchor = False
        self._ended_ns = 0
        self._waited_ns = 0
        self._controlled_ns = 0
        """Time that steering has taken so far: a pause makes no step slow."""
        self._collectives = 0
        self._other_steps = 0
        self._step_code: types.CodeType | None = None
        self._handles: list[Any] = []
        self.completed = 0
        self._thread = get_ident()
        """The thread the anchor steps on."""

    def install(self, optim: Any, is_compiling: Callable[[], bool], guard: Guard) -> None:
        """Register with torch.optim.optimizer, given as a module."""
        self._step_code = _code_of_step_wrapper(optim)
        self._handles = [
            optim.register_optimizer_step_pre_hook(guard.optimizer_hook(self.before, is_compiling)),
            optim.register_optimizer_step_post_hook(guard.optimizer_hook(self.after, is_compiling)),
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def ignore_initial_steps(self, module: Any) -> None:
        """torch.distributed.checkpoint makes the state of a fresh optimizer by a step with zero gradients and
        learning rate. It is no step of the training, and nothing must be held over it."""
        theirs = module._init_optim_state

        @functools.wraps(theirs)
        def aside(*args: Any, **kwargs: Any) -> Any:
            self._aside += 1
            try:
                return theirs(*args, **kwargs)
            finally:
                self._aside -= 1

        module._init_optim_state = aside

    def before(self, optimizer: Any, args: Any) -> None:
        """The global pre-hook."""
        if self._aside:
            return
        thread = get_ident()
        anchor = self._optimizers.anchor()
        if thread != self._thread:
            if anchor is not None and anchor is not optimizer:
                if self.overrides.busy and not self._is_nested():
                    self.overrides.before(self._optimizers.enrol(optimizer), optimizer)
                return  # counted when it ends; `_open` belongs to the anchor's thread
            self._thread = self._data.thread = thread
        # Something is open: either this is a step within a step, or the one before raised and never ended.
        if self._open is not None and self._is_nested():
            return
        if anchor is None:
            self._optimizers.drop_anchor(optimizer)
        elif anchor is not optimizer:
            self._open_is_anchor = False
            self._open = args
            if self.overrides.busy:
                self.overrides.before(self._optimizers.enrol(optimizer), optimizer)
            return
        self._words[_ENTERED] = now_ns = monotonic_ns()
        if self.completed == 0:
            self._began(now_ns)
        if self._words[_FENCE] and 0 < self._words[_FENCE + 1] < clock_gettime_ns(CLOCK_BOOTTIME):
            os.kill(os.getpid(), SIGKILL)  # this worker counts as dead, and another may have taken its place
        self._open_is_anchor = True
        self._open = None
        if self.completed >= self.hash_due:
            self.hash_due = self.look_at_replicas(self.completed, optimizer)
        self.inbox.check(self.completed)
        self._open = args
        if self.overrides.busy:
            self.overrides.before(0, optimizer)

    def after(self, optimizer: Any, args: Any) -> None:
        """The global post-hook."""
        if self._aside:
            return
        if get_ident() != self._thread:
            if not self._is_nested():
                self._count_other(optimizer)
            return
        # Another pre-hook may have replaced the arguments: then the call stack shows which step this ends.
        if args is not self._open and (self._open is None or self._is_nested()):
            return
        self._open = None
        if not self._open_is_anchor:
            self._count_other(optimizer)
            return
        if self.overrides.busy:
            self.overrides.after(0)
        now_ns = monotonic_ns()
        words = self._words
        self.completed = completed = self.completed + 1
        waited_ns = self.inbox.control.waited_ns
        step_ns = now_ns - self._ended_ns - waited_ns + self._controlled_ns if self._ended_ns else 0
        self._controlled_ns = waited_ns
        waited_ns, collectives = self._data.total_ns, words[_COLLECTIVES]
        self._view.write_step(
            completed, now_ns, step_ns, waited_ns - self._waited_ns, collectives - self._collectives
        )
        self._ended_ns, self._waited_ns, self._collectives = now_ns, waited_ns, collectives
        words[_STEP_NS] = step_ns
        words[_ENDED] = now_ns
        words[_ACTIVITY] = now_ns
        words[_STEPS] = completed
        if completed == 1:
            words[_FIRST] = now_ns
            self.overrides.meet(optimizer)
        if self.step_ended is not None:
            self.step_ended()
        if now_ns >= self._housekeeping_ns:
            self._housekeeping_ns = self._housekeeping(completed, now_ns)

    def _count_other(self, optimizer: Any) -> None:
        if self.overrides.busy:
            self.overrides.after(self._optimizers.enrol(optimizer))
        self._other_steps += 1
        self._words[_OTHER_STEPS] = self._other_steps
        self._words[_ACTIVITY] = monotonic_ns()
        self._optimizers.enrol(optimizer)

    def _is_nested(self) -> bool:
        """Whether the step() that calls us is within another one on this thread's stack."""
        found = 0
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code is self._step_code:
                found += 1
                if found == 2:
                    return True
            frame = frame.f_back
        return False


def _code_of_step_wrapper(optim: Any) -> types.CodeType | None:
    """The code all hooked step() methods run in, to recognise their frames."""
    constants = optim.Optimizer.profile_hook_step.__code__.co_consts
    for constant in constants:
        if isinstance(constant, types.CodeType):
            return constant
    return None


def _nobody() -> None:
    """The anchor before there is one."""


def _ignored(optimizer: Any) -> None:
    """Nobody wants to know."""
