"""`loom.Checkpoint`: save and restore a training with three lines.

    ckpt = loom.Checkpoint(model=model, optimizer=optimizer, data=loader, every=100)
    first = ckpt.restore()
    for step in range(first + 1, steps + 1):
        ...
        ckpt.step(step, loss=loss)

Owns the order of things in the training process: when a save is due (agenda.py), the state is copied once
into memory that is kept (staging.py); that copy is all the loop waits for. It is the memory tier's newest
state and, if the store is due, what a thread writes there (saver.py). Chooses nothing about formats,
storage, restoring or going back (restore.py, rollback.py).
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from types import TracebackType
from typing import Any

from torchloom.checkpoint import live, reporting
from torchloom.checkpoint.group import SaveGroup, generation_of, here, job_name, new_series, store_uri
from torchloom.checkpoint.memory.slots import MemoryTier
from torchloom.checkpoint.report_text import Told
from torchloom.checkpoint.restoring import rollback
from torchloom.checkpoint.restoring.deciding import Decider
from torchloom.checkpoint.restoring.restore import Restored, Restorer
from torchloom.checkpoint.saving.counting import StepCount
from torchloom.checkpoint.saving.interval import parse_every
from torchloom.checkpoint.saving.saver import Saver
from torchloom.checkpoint.state.staging import Staging
from torchloom.checkpoint.state.training_parts import State
from torchloom.checkpoint.store.names import check_job, parse_name
from torchloom.checkpoint.store.runs import run_of
from torchloom.checkpoint.store.storage import open_storage
from torchloom.core.retention import KeepRules
from torchloom.errors import CheckpointError, UsageError

STORE_WAIT = "store-wait"
"""The phase in which a script waits for its store; hang detection knows it (core/detect/thresholds.py)."""
CLOSING_WITHIN_S = 120.0
"""How long the end of the process waits for a save in flight."""
WAITING_WITHIN_S = 600.0
"""How long a script that waits for a save waits at most, while the save moves; …"""
STALLED_S = 120.0
"""… and for how long it may not move meanwhile: longer than a store's requests, or a disk's sync, take."""
CRASHING_WITHIN_S = 3.0
"""The same when the process ends with an exception: the sooner it is gone, the sooner it is replaced."""


class Checkpoint:
    """Everything a script gives here is saved and restored together."""

    def __init__(
        self,
        *,
        every: int | str = "auto",
        keep: int | KeepRules | None = None,
        dir: str | os.PathLike[str] | None = None,
        name: str | None = None,
        memory: bool = True,
        replicated: Collection[str] | None = None,
        **parts: Any,
    ) -> None:
        """`parts`: model, optimizer, scheduler, data, … anything with state_dict() and load_state_dict().

        `every` is a number of steps, a time ("10s", "5min") or "auto": as often as costs 1 % of the time.
        `keep` limits how many are kept. `dir` is a directory or s3://bucket/prefix; without it
        CHECKPOINT_DIR counts. `replicated` names the parts that are equal on all ranks and saved once;
        without it models under DDP and their optimizers are.
        """
        env = os.environ
        self._state = State(parts, replicated)
        self._every = parse_every(every)
        self._keep = KeepRules(last=keep) if isinstance(keep, int) else keep
        self._job = check_job(name or job_name(env))
        self._storage = open_storage(store_uri(env, dir), env)
        self._told = Told(self._storage.where, self._job)
        self._generation = generation_of(env)
        self._run = run_of(env) if self._generation is not None else ""
        self._life = self._generation if self._run else None  # _generation becomes the store's number for it
        self._memory = memory and env.get("LOOM_MEMORY_DIR", "")
        self._count = StepCount()
        self._at_end: list[Callable[[int], object]] = []
        self._requests: list[tuple[live.Request, int]] = []
        self._rollbacks = 0
        self._step_ended = time.perf_counter()
        self._step_s = 0.0
        self.restored: Restored | None = None
        """What `restore` found."""
        self._group: SaveGroup | None = None
        self._closed = False
        atexit.register(self._end)

    # -- what a script calls -------------------------------------------------------------------------

    def restore(self, step: int | None = None) -> int:
        """Bring everything back to the newest state, or to that of a step; its step, 0 if there is none.
        If it raises, model and optimizer may hold parts of a state: do not train on."""
        if step is None and os.environ.get("LOOM_RESTORE_STEP", "").isdecimal():
            step = int(os.environ["LOOM_RESTORE_STEP"])
        with reporting.ports.phase("restore"):
            group = self._begin()
            self._saver.writer.wait_moving(WAITING_WITHIN_S, STALLED_S)
            tier = self._staging.tier
            restorer = Restorer(self._state, self._storage, self._job, group, tier, self._run)
            try:
                self.restored = restored = restorer.run(self._life or self._generation, step)
            except CheckpointError:
                if restorer.rejected:
                    self._told.opened("", "", restorer.rejected)
                raise
        self._generation = restored.generation
        self._count.begin(restored.step)
        if group.rank == 0:
            self._told.opened(restored.name, restored.where or "the store", restorer.rejected)
        if restored.differs:
            self._told.differs(restored.name, restored.differs)
        registered = restored.where != "memory"
        self._saver.connect(
            restored.generation,
            parse_name(restored.name),
            restored.owed,
            self._every,
            registered,
            restored.series,
        )
        if restored.name and group.rank == 0:
            reporting.say(
                f"resumed after step {restored.step} from {restored.where} "
                f"({restored.name}) in {restored.took_s:.3f} s"
            )
        reporting.ports.step(restored.step)
        reporting.ports.log(restored_step=restored.step, restore_s=restored.took_s)
        self._step_ended = time.perf_counter()
        return restored.step

    def step(self, step: int, **metrics: object) -> int:
        """The end of a step: saves if it is time. Call it on all ranks, after the optimizer's step.

        Returns the training step that was reached: the same number, or after a live rollback the step that
        the training was brought back to. A loop that counts by itself may ignore it.
        """
        began = time.perf_counter()
        self._ready()
        step = self._count.took(step)
        reporting.ports.step(step)
        if metrics:
            reporting.ports.log(**metrics)
        self._took_step(began - self._step_ended)
        if self._at_end and self._do_at_end(step):
            return self._count.at
        self._staging.look()
        self._collect()
        reporting.say(self._staging.begin())
        if not self._can_agree and step % max(1, self._every.steps) == 0:
            # Ranks that cannot agree must not skip different steps: they wait, but for no store that hangs.
            with reporting.ports.phase(STORE_WAIT):
                self._saver.wait(WAITING_WITHIN_S, STALLED_S)
            self._collect()
            self._staging.finish_making()
        self._saver.decide(step, self._step_s, metrics)
        self._step_ended = time.perf_counter()
        return step

    def save(self, step: int, *, wait: bool = False, **metrics: object) -> None:
        """Save now, on all ranks; a save in flight is finished first. `wait` until it is in the store.

        A store that hangs is waited for within bounds: then the save counts as failed and training continues.
        """
        self.wait()
        step = self._count.of(step)
        assert self._saver.agenda is not None
        self._saver.agenda.saved(step)
        self._saver.take(step, metrics, to_store=True)
        if wait:
            self.wait()
        self._step_ended = time.perf_counter()

    def save_soon(self, step: int, *, held: bool = False) -> None:
        """Save the state of this step, or of the first one after the save in flight is done; waits for no
        store. For whoever steers from outside, at the end of the step, on all ranks. Raises CheckpointError,
        after which all ranks call `withdraw_save`. `held`: the training is paused."""
        self._ready()
        self._staging.look()
        reporting.say(self._staging.begin())
        self._saver.ask(step, self._step_s, held=held)

    def withdraw_save(self) -> None:
        """Withdraw the request of `save_soon`, unless the state has already been taken."""
        self._saver.withdraw()

    def look(self) -> None:
        """Report how the save in flight ended, if it did. For a process that is paused and makes no step."""
        if self._group is not None and self._saver.agenda is not None:
            self._staging.look()
            self._collect()

    def request(self, reason: str, then: Callable[[live.Request], None] | None = None) -> live.Request:
        """Save at the end of the current step, or as soon as the save in flight is done; the training waits
        for neither.

        All ranks must ask during the same step. `then` is called, at the end of a later step, when it is in
        the store or has failed.
        """
        request = live.Request(reason, then=then)
        self._at_end.append(lambda step: self._serve(request, step))
        return request

    def at_end(self, work: Callable[[int], object]) -> None:
        """Call `work(step)` once, at the end of the step in progress: the place to save and to roll back."""
        self._at_end.append(work)

    def prepare_roll_back(self, which: int | str, key: str = "") -> rollback.Prepared:
        """Load the state of a step, or by its name, and change nothing yet (rollback.py). Raises LoomError.

        All ranks must call it at the end of the same step (`at_end`), with one `key`, new for every try.
        """
        self._ready()
        self.wait()
        if self._saver.writer.busy:
            raise CheckpointError(
                "a save is still being written and does not move: the store does not answer"
            )
        assert self._generation is not None
        self._rollbacks += 1
        with reporting.ports.phase("restore"):
            self._staging.look(wait=True)
            told = (self._state, self._storage, self._job, self._generation, self._begin())
            site = rollback.Site(*told, self._saver.board, self._staging.tier, self._run)
            return rollback.prepare(site, which, key or f"{self._rollbacks}", self._rolled_back)

    def roll_back(self, which: int | str) -> int:
        """Go back to a step, or to a name, on all ranks or on none; its step. Call it on all ranks after the
        same step. Raises CheckpointError, with nothing changed."""
        return rollback.together(self._begin(), lambda: self.prepare_roll_back(which)).step

    def wait(self) -> None:
        """Wait until the save in flight, if any, is in the store or has failed; for no store that hangs."""
        self._ready()
        with reporting.ports.phase(STORE_WAIT):
            if not self._saver.wait(WAITING_WITHIN_S, STALLED_S):
                reporting.say(f"the save of {self._job} in flight does not move, so it is not waited for")
        self._collect()

    def close(self) -> None:
        """Wait for the save in flight. Called at the end of the process by itself."""
        self._close(CLOSING_WITHIN_S)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(CLOSING_WITHIN_S if error is None else CRASHING_WITHIN_S)

    # -- how saving goes -----------------------------------------------------------------------------

    @property
    def failures(self) -> int:
        """Saves that did not succeed."""
        return self._saver.failures if self._group is not None else 0

    @property
    def why_failed(self) -> str:
        """Why the last save that failed did."""
        return self._saver.why_failed if self._group is not None else ""

    @property
    def interval(self) -> int:
        """Steps between saves to the store, as chosen last."""
        return self._saver.interval if self._group is not None else 0

    @property
    def memory_interval(self) -> int:
        """Steps between states in memory, as chosen last; 0: the tier is off."""
        return self._saver.memory_interval if self._group is not None else 0

    @property
    def _staging(self) -> Staging:
        return self._saver.staging

    def _took_step(self, seconds: float) -> None:
        assert self._saver.agenda is not None
        self._saver.agenda.disk.took_step(seconds)
        self._saver.agenda.memory.took_step(seconds)
        self._step_s = seconds

    # -- ending --------------------------------------------------------------------------------------

    def _end(self) -> None:
        """The process ends, cleanly or with an uncaught exception."""
        self._close(CRASHING_WITHIN_S if hasattr(sys, "last_type") else CLOSING_WITHIN_S)

    def _close(self, within_s: float) -> None:
        if self._closed or self._group is None:
            return
        self._closed = True
        live.forget(self)
        atexit.unregister(self._end)
        with reporting.ports.phase(STORE_WAIT):
            self._staging.look(wait=True, tell=False)  # the process group may be gone
            if within_s == CRASHING_WITHIN_S:
                self._saver.writer.give_up_peers()
            if not self._saver.writer.wait(within_s):
                reporting.say(f"the last save of {self._job} was not done within {within_s:g} s")
        self._collect()

    # -- beginning -----------------------------------------------------------------------------------

    def _begin(self) -> SaveGroup:
        """Look around once, as late as possible: the process group may be made after the Checkpoint."""
        if self._group is not None:
            return self._group
        group = here(os.environ)
        talks = group.connected or group.world == 1
        tier = None
        if self._memory and talks:
            tier = MemoryTier(Path(str(self._memory)), group.rank, group.world, group.keeps_shared)
        if not talks and not self._every.steps:
            raise UsageError(
                f"every={self._every} needs a process group, because ranks must agree when to save",
                hint="call init_process_group before, or give a number of steps",
            )
        self._can_agree = talks
        parts = (self._job, self._run, self._state, self._storage, self._keep, self._told)
        self._saver = Saver(*parts, group, tier)
        self._group = group
        live.register(self)
        return group

    def _ready(self) -> None:
        group = self._begin()
        if self._saver.agenda is None:  # the script never restored
            decider = Decider(self._storage, self._job, self._run, self._staging.folder)
            leads = group.rank == 0 or not group.connected
            begun = (decider.number(self._generation), new_series(group)) if leads else (0, "")
            self._generation, series = group.share(begun)
            if group.rank == 0:
                self._told.opened("", "", {})
            self._saver.connect(self._generation, None, {}, self._every, registered=False, series=series)

    # -- requests from outside -----------------------------------------------------------------------

    def _do_at_end(self, step: int) -> bool:
        """Perform the request; True if training is at another step afterwards."""
        work, self._at_end = self._at_end, []
        branch = self._saver.branch
        for each in work:
            each(step)
        return self._saver.branch != branch

    def _serve(self, request: live.Request, step: int) -> None:
        try:
            self.save_soon(step)
        except CheckpointError as error:
            self.withdraw_save()
            request.finish(step, "", str(error))
        else:
            self._requests.append((request, step))

    def _collect(self) -> None:
        self._saver.collect()
        for request, step in list(self._requests):
            name, problem = self._saver.stored(step)
            if name or problem:
                self._requests.remove((request, step))
                request.finish(step, name, problem)

    def _rolled_back(self, done: rollback.Prepared) -> None:
        """All ranks are at that state: later saves descend from it."""
        self._count.roll_back(done.step)
        if done.differs:
            self._told.differs(done.name, done.differs)
        self._saver.begin_branch(done.goal.branch, done.goal.kept)
        reporting.ports.step(done.step)
        reporting.ports.log(restored_step=done.step)
        self._step_ended = time.perf_counter()
