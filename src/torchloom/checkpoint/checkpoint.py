"""`loom.Checkpoint`: save and restore a training with three lines.

    ckpt = loom.Checkpoint(model=model, optimizer=optimizer, data=loader, every=100)
    first = ckpt.restore()
    for step in range(first + 1, steps + 1):
        ...
        ckpt.step(step, loss=loss)

Owns the order of things in the training process: when a save is due (agenda.py), the state is copied once
into memory that is kept (staging.py); that copy is all the loop waits for. It is the memory tier's newest
state and, if the store is due, what a thread writes there (writer.py). Chooses nothing about formats,
storage, restoring or going back (restore.py, rollback.py).
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from torchloom.checkpoint import live, reporting
from torchloom.checkpoint.group import Board, Group, generation_of, here, job_name, store_uri
from torchloom.checkpoint.lineage import about_state, facts_of
from torchloom.checkpoint.memory.slots import MemoryTier
from torchloom.checkpoint.report_text import Told
from torchloom.checkpoint.restoring import rollback
from torchloom.checkpoint.restoring.deciding import Decider
from torchloom.checkpoint.restoring.restore import Restored, Restorer
from torchloom.checkpoint.saving.agenda import Agenda
from torchloom.checkpoint.saving.counting import StepCount
from torchloom.checkpoint.saving.interval import SHARE, Every, Pace, parse_every
from torchloom.checkpoint.saving.writer import PEER_FAILED, Outcome, Save, Writer
from torchloom.checkpoint.state.parts import State
from torchloom.checkpoint.state.staging import Staging
from torchloom.checkpoint.store.commit import Target
from torchloom.checkpoint.store.manifest import Facts
from torchloom.checkpoint.store.names import Branch, CheckpointName, check_job
from torchloom.checkpoint.store.runs import run_of
from torchloom.checkpoint.store.storage import open_storage
from torchloom.core.retention import KeepRules
from torchloom.errors import CheckpointError, UsageError

CLOSING_WITHIN_S = 120.0
"""How long the end of the process waits for a save in flight."""
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
        self._parent = ""
        self._branch = 0
        self._owed: Mapping[Branch, CheckpointName | None] = {}
        self._count = StepCount()
        self._at_end: list[Callable[[int], object]] = []
        self._rollbacks = 0
        self._attempt = 0
        self._event = 0
        self._step_ended = time.perf_counter()
        self._step_s = 0.0
        self._blocked_s = 0.0
        self.why_failed = ""
        """Why the last save that failed did."""
        self.interval = 0
        """Steps between saves to the store, as chosen last."""
        self.memory_interval = 0
        """Steps between states in memory, as chosen last; 0: the tier is off."""
        self.failures = 0
        """Saves that did not succeed."""
        self.restored: Restored | None = None
        """What `restore` found."""
        self._group: Group | None = None
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
            self._writer.wait()
            tier = self._staging.tier
            restorer = Restorer(self._state, self._storage, self._job, group, tier, self._run)
            try:
                self.restored = restored = restorer.run(self._life or self._generation, step)
            except CheckpointError:
                if restorer.rejected:
                    self._told.opened("", "", restorer.rejected)
                raise
        self._generation, self._parent = restored.generation, restored.name
        self._owed = restored.owed
        self._count.begin(restored.step)
        if group.rank == 0:
            self._told.opened(restored.name, restored.where, restorer.rejected)
        self._connect()
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
        if self._at_end and self._do_at_end(step):
            return self._count.at
        self._took_step(began - self._step_ended)
        self._staging.look()
        self._collect()
        reporting.say(self._staging.begin())
        if not self._can_agree and step % max(1, self._every.steps) == 0:
            self._writer.wait()
            self._staging.finish_making()
        on, making = self._staging.tier is not None, self._staging.making
        decision = self._agenda.decide(step, max(self._step_s, 1e-6), self._writer.busy, on, making)
        if decision is not None and (decision.memory or decision.disk):
            self._take(step, metrics, to_store=decision.disk)
        self._step_ended = time.perf_counter()
        return step

    def save(self, step: int, *, wait: bool = False, **metrics: object) -> None:
        """Save now, on all ranks; a save in flight is finished first. `wait` until it is in the store."""
        self.wait()
        step = self._count.of(step)
        self._agenda.saved(step)
        self._take(step, metrics, to_store=True)
        if wait:
            self.wait()
        self._step_ended = time.perf_counter()

    def request(self, reason: str, then: Callable[[live.Request], None] | None = None) -> live.Request:
        """Save at the end of the step under way and wait until it is in the store.

        All ranks must ask during the same step. `then` is called when it is done.
        """
        request = live.Request(reason, then=then)
        self._at_end.append(lambda step: self._serve(request, step))
        return request

    def at_end(self, work: Callable[[int], object]) -> None:
        """Call `work(step)` once, at the end of the step under way: the place to save and to go back."""
        self._at_end.append(work)

    def prepare_roll_back(self, which: int | str, key: str = "") -> rollback.Prepared:
        """Load the state of a step, or by its name, and change nothing yet (rollback.py). Raises LoomError.

        All ranks must call it at the end of the same step (`at_end`), with one `key`, new for every try.
        """
        self.wait()
        assert self._generation is not None
        self._rollbacks += 1
        with reporting.ports.phase("restore"):
            self._staging.look(wait=True)
            told = (self._state, self._storage, self._job, self._generation, self._begin())
            site = rollback.Site(*told, self._board, self._staging.tier, self._run)
            return rollback.prepare(site, which, key or f"{self._rollbacks}", self._rolled_back)

    def roll_back(self, which: int | str) -> int:
        """Go back to a step, or to a name, on all ranks or on none; its step. Call it on all ranks after the
        same step. Raises CheckpointError, with nothing changed."""
        return rollback.together(self._begin(), lambda: self.prepare_roll_back(which)).step

    def wait(self) -> None:
        """Wait until the save in flight, if any, is in the store or has failed."""
        self._ready()
        with reporting.ports.phase("checkpoint"):
            self._writer.wait()
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

    # -- ending --------------------------------------------------------------------------------------

    def _end(self) -> None:
        """The process ends, well or with an exception that nobody caught."""
        self._close(CRASHING_WITHIN_S if hasattr(sys, "last_type") else CLOSING_WITHIN_S)

    def _close(self, within_s: float) -> None:
        if self._closed or self._group is None:
            return
        self._closed = True
        live.forget(self)
        atexit.unregister(self._end)
        with reporting.ports.phase("checkpoint"):
            self._staging.look(wait=True, tell=False)  # the process group may be gone
            if within_s == CRASHING_WITHIN_S:
                self._writer.give_up_peers()
            if not self._writer.wait(within_s):
                reporting.say(f"the last save of {self._job} was not done within {within_s:g} s")
        self._collect()

    # -- beginning -----------------------------------------------------------------------------------

    def _begin(self) -> Group:
        """Look around once, as late as possible: the process group may be made after the Checkpoint."""
        if self._group is not None:
            return self._group
        self._group = group = here(os.environ)
        live.register(self)
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
        self._staging = Staging(self._state, group, tier)
        self._board: Board | None = None
        self._writer = Writer(self._storage, self._gave_up)
        return group

    def _connect(self) -> None:
        """What needs the generation."""
        group = self._begin()
        assert self._generation is not None
        if group.connected and group.world > 1:
            self._board = Board(group, f"{self._job}/{self._generation}")
        self._staging.board = self._board
        leads = group.rank == 0 or self._board is None
        self._agenda = Agenda(Pace(self._every), Pace(Every(share=SHARE)), leads, self._board)

    def _ready(self) -> None:
        group = self._begin()
        if not hasattr(self, "_agenda"):  # the script never restored
            decider = Decider(self._storage, self._job, self._run, self._staging.folder)
            leads = group.rank == 0 or not group.connected
            self._generation = int(group.share(decider.number(self._generation) if leads else 0))
            if group.rank == 0:
                self._told.opened("", "", {})
            self._connect()

    def _gave_up(self, attempt: int) -> bool:
        return self._board is not None and self._board.has(f"failed/{attempt}")

    # -- asked for from outside ----------------------------------------------------------------------

    def _do_at_end(self, step: int) -> bool:
        """Do what was asked for; True if the training stands elsewhere afterwards."""
        work, self._at_end = self._at_end, []
        branch = self._branch
        for each in work:
            each(step)
        return self._branch != branch

    def _serve(self, request: live.Request, step: int) -> None:
        failures = self.failures
        self.save(step, wait=True)
        name = CheckpointName(self._generation or 0, step, self._branch)
        request.finish(step, str(name), self.why_failed if self.failures > failures else "")

    def _rolled_back(self, done: rollback.Prepared) -> None:
        """All ranks stand at that state: what is saved from here on descends from it."""
        self._branch, self._parent = done.goal.branch.number, done.name
        self._count.roll_back(done.step)
        self._agenda.begin_branch()
        self._staging.begin_branch(done.goal.name)
        reporting.ports.step(done.step)
        reporting.ports.log(restored_step=done.step)
        self._step_ended = time.perf_counter()

    # -- saving --------------------------------------------------------------------------------------

    def _took_step(self, seconds: float) -> None:
        self._agenda.disk.took_step(seconds)
        self._agenda.memory.took_step(seconds)
        self._step_s = seconds

    def _take(self, step: int, metrics: Mapping[str, object], *, to_store: bool) -> None:
        """Stage the state, which is all that the loop waits for, and let the rest happen beside it."""
        group = self._begin()
        assert self._generation is not None
        began = time.perf_counter()
        name = CheckpointName(self._generation, step, self._branch)
        self._event += 1
        self._attempt += to_store
        with reporting.ports.phase("checkpoint"):
            about = about_state(self._state, name)
            staged = self._staging.take(name, about, self._event, to_store=to_store and not self._writer.busy)
        reporting.say(staged.note)
        save = None
        if to_store and staged.files is None:
            self._failed(step, "this rank is still writing the one before", self._attempt)
        elif to_store and staged.files is not None:
            target = Target(self._job, name, group.world, self._attempt, self._run)
            save = Save(
                target=target,
                rank=group.rank,
                files=staged.files,
                facts=facts_of(self._state, self._parent, metrics) if group.rank == 0 else Facts(),
                keep=self._keep,
                commits=group.rank == 0,
                owed=self._owed,
            )
        self._blocked_s = time.perf_counter() - began - staged.growth_s
        # Sealing beside the training takes about as long as the copy did.
        self._agenda.memory.took_save(self._blocked_s, self._blocked_s)
        self.interval = self._agenda.disk.steps
        self.memory_interval = self._agenda.memory.steps if self._staging.tier is not None else 0
        told = {"checkpoint_interval": self.interval, "memory_interval": self.memory_interval}
        self._told.paces(self.interval, self.memory_interval)
        reporting.ports.log(checkpoint_blocked_s=self._blocked_s, checkpoint_staged=step, **told)
        if save is not None:  # threads come last: on a busy host they take the processor from this one
            self._writer.start(save, self._staging.seal_first())
        self._staging.go_on()

    def _collect(self) -> None:
        outcome = self._writer.collect()
        if outcome is None:
            return
        self._staging.written()
        self._agenda.disk.took_save(self._blocked_s, outcome.cpu_s)
        step = outcome.save.target.name.step
        if outcome.problem:
            self._failed(step, outcome.problem, outcome.save.target.attempt)
        elif outcome.save.commits:
            self._saved(step, outcome)
        else:
            self._told.wrote()

    def _saved(self, step: int, outcome: Outcome) -> None:
        self._parent = str(outcome.save.target.name)
        if outcome.warning:
            reporting.say(outcome.warning)
        self._told.saved(self._parent, step, time.time(), outcome.size, outcome.took_s)
        reporting.ports.log(checkpoint_step=step, checkpoint_s=outcome.took_s)

    def _failed(self, step: int, why: str, attempt: int) -> None:
        self.failures += 1
        self.why_failed = why
        reporting.say(f"the checkpoint of step {step} failed: {why}; training continues")
        reporting.ports.log(checkpoint_failures=self.failures, checkpoint_error=f"step {step}: {why}")
        if why != PEER_FAILED:
            self._told.failed(step, why)
        if self._board is not None:
            self._board.post(f"failed/{attempt}", "1")
