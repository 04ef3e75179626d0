"""One rank's saves: takes the state at the end of a step and has it written to the store beside the training.

Owns what a save is called, what it descends from, how it ended, and what is reported of it. The loop waits
for one copy into memory and for nothing else: a store that hangs keeps at most one save busy (writer.py), and
what becomes due or is asked for meanwhile is deferred, refused or reported as failed. When to save is
agenda.py's choice.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from torchloom.checkpoint import reporting
from torchloom.checkpoint.group import Board, SaveGroup
from torchloom.checkpoint.lineage import about_state, facts_of
from torchloom.checkpoint.memory.slots import KeptState, MemoryTier
from torchloom.checkpoint.report_text import Told
from torchloom.checkpoint.saving.agenda import Agenda
from torchloom.checkpoint.saving.interval import SHARE, Every, SavePace
from torchloom.checkpoint.saving.writer import PEER_FAILED, Save, SaveOutcome, Writer
from torchloom.checkpoint.state.staging import Staging
from torchloom.checkpoint.state.threads import BriefPause
from torchloom.checkpoint.state.training_parts import State
from torchloom.checkpoint.store.commit import Target
from torchloom.checkpoint.store.manifest import Facts
from torchloom.checkpoint.store.names import Branch, CheckpointName
from torchloom.checkpoint.store.storage import Storage
from torchloom.core.retention import KeepRules
from torchloom.errors import CheckpointError

REPORT_STALLED_S = 60.0
"""A save that has not moved for so long is reported as failing, though it may still succeed."""
REFUSE_STALLED_S = 10.0
"""A requested save is refused if the previous one has made no progress for this long."""
HELD_WITHIN_S = 10.0
"""How long a paused rank, which trains nothing, waits for the save in flight before it refuses another."""
DELIVERED_WITHIN_S = 1.0
"""How long the loop waits for the last small writes of the save before, when the next is due."""
OTHERS_COPY_WITHIN_S = 0.5
"""Ranks of one host copy at the same time and wait for the slowest. One that has its copy leaves the cores to
the others for as long as its own copy took, but no longer than this, before it begins to write."""
BUSY = "this rank is still writing the one before"


class Saver:
    """Takes states and has them written."""

    def __init__(
        self,
        job: str,
        run: str,
        state: State,
        storage: Storage,
        keep: KeepRules | None,
        told: Told,
        group: SaveGroup,
        tier: MemoryTier | None,
    ) -> None:
        self._job, self._run, self._state, self._keep = job, run, state, keep
        self._told, self._group = told, group
        self.staging = Staging(state, group, tier)
        self.writer = Writer(storage, self._gave_up)
        self.board: Board | None = None
        self.agenda: Agenda | None = None
        self._generation, self._branch, self._parent = 0, 0, ""
        self._series = ""  # which saver this is, the same on all ranks: so that no two saves are ever mixed
        self._owed: dict[Branch, CheckpointName | None] = {}
        self._registered = False  # the store knows of this generation
        self._attempt = 0
        self._event = 0
        self._blocked_s = 0.0
        self._stalled = 0  # the attempt that was reported as stalled
        self._stored: CheckpointName | None = None
        self._failed_step = -1
        self._asked = 0  # the requested attempt
        self.failures = 0
        self.why_failed = ""
        self.interval = 0
        self.memory_interval = 0

    @property
    def branch(self) -> int:
        return self._branch

    def name(self, step: int) -> CheckpointName:
        return CheckpointName(self._generation, step, self._branch)

    # -- where the states belong -----------------------------------------------------------------

    def connect(
        self,
        generation: int,
        origin: CheckpointName | None,
        owed: Mapping[Branch, CheckpointName | None],
        every: Every,
        registered: bool,
        series: str,
    ) -> None:
        """This generation has begun, from `origin`. `registered`: the store is known to know of it.
        `series`: a name that all ranks have agreed on; empty if they cannot agree on anything."""
        self._generation, self._parent = generation, "" if origin is None else str(origin)
        self._owed = {**owed, Branch(generation): origin}
        self._registered = registered
        if self._group.connected and self._group.world > 1:
            self.board = Board(self._group, f"{self._job}/{generation}/{series}")
        self._series = series
        self.staging.connect(self.board, series)
        leads = self._group.rank == 0 or self.board is None
        self.agenda = Agenda(SavePace(every), SavePace(Every(share=SHARE)), leads, self.board)

    def begin_branch(self, branch: Branch, origin: KeptState) -> None:
        """The training was rolled back: what is saved from here on descends from that state."""
        assert self.agenda is not None
        self._branch, self._parent = branch.number, str(origin.name)
        self._owed[branch] = origin.name
        self.agenda.begin_branch()
        self.staging.begin_branch(origin)

    # -- when ------------------------------------------------------------------------------------

    def decide(self, step: int, step_s: float, metrics: Mapping[str, object]) -> bool:
        """Save what is due at the end of this step; whether a state was taken for the store."""
        assert self.agenda is not None
        on, making, asked = self.staging.tier is not None, self.staging.making, self.agenda.asked
        decision = self.agenda.decide(step, max(step_s, 1e-6), self.writer.busy, on, making)
        if decision is None or not (decision.memory or decision.disk):
            return False
        self.take(step, metrics, to_store=decision.disk)
        if decision.disk and asked:
            self._asked = self._attempt
        return decision.disk

    def ask(self, step: int, step_s: float, *, held: bool) -> None:
        """Somebody asked for a save: take the state now, or as soon as the save in flight is done. Waits for
        no store. Raises CheckpointError if that one does not move; the caller withdraws then, on all ranks.

        `held`: the training is paused, so that there is no later step, and nothing is lost by a short wait.
        """
        assert self.agenda is not None
        if held and not self.writer.wait_moving(HELD_WITHIN_S, REFUSE_STALLED_S):
            raise CheckpointError(f"{self._in_flight()}, so no other can be saved while the job is paused")
        self.collect()
        if held:
            self.staging.finish_making()
        self.agenda.ask(step)
        if self.decide(step, step_s, {}) or not self.agenda.leads:
            return
        if self.writer.stalled_s > REFUSE_STALLED_S:
            raise CheckpointError(f"{self._in_flight()}: the store does not answer; training continues")

    def withdraw(self) -> None:
        """Withdraw the requested save."""
        if self.agenda is not None:
            self.agenda.withdraw()

    def _in_flight(self) -> str:
        save, stalled_s = self.writer.save, self.writer.stalled_s
        step = save.target.name.step if save is not None else 0
        return f"the checkpoint of step {step} is still being written and has not moved for {stalled_s:.0f} s"

    # -- taking ----------------------------------------------------------------------------------

    def take(self, step: int, metrics: Mapping[str, object], *, to_store: bool) -> None:
        """Stage the state, which is all that the loop waits for, and let the rest happen beside it."""
        assert self.agenda is not None
        if to_store and self.writer.delivered:
            # The rank that commits sees our part before our thread has ended, and may begin the next save.
            self.writer.wait(DELIVERED_WITHIN_S)
            self.collect()
        began = time.perf_counter()
        name = self.name(step)
        self._event += 1
        self._attempt += to_store
        with reporting.ports.phase("checkpoint"):
            about = about_state(self._state, name)
            staged = self.staging.take(name, about, self._event, to_store=to_store and not self.writer.busy)
        reporting.say(staged.note)
        save = None
        if to_store and staged.files is None:
            self._failed(step, BUSY, self._attempt)
        elif to_store and staged.files is not None:
            rank, world = self._group.rank, self._group.world
            save = Save(
                target=Target(self._job, name, world, self._attempt, self._run, self._series),
                rank=rank,
                files=staged.files,
                facts=facts_of(self._state, self._parent, metrics) if rank == 0 else Facts(),
                keep=self._keep,
                commits=rank == 0,
                owed=dict(self._owed),
            )
        self._blocked_s = time.perf_counter() - began - staged.growth_s
        # Sealing beside the training takes about as long as the copy did.
        self.agenda.memory.took_save(self._blocked_s, self._blocked_s)
        self.interval = self.agenda.disk.steps
        self.memory_interval = self.agenda.memory.steps if self.staging.tier is not None else 0
        told = {"checkpoint_interval": self.interval, "memory_interval": self.memory_interval}
        self._told.paces(self.interval, self.memory_interval)
        reporting.ports.log(checkpoint_blocked_s=self._blocked_s, checkpoint_staged=step, **told)
        alone = self._group.local_world == 1
        pause = BriefPause(0.0 if alone else min(self._blocked_s, OTHERS_COPY_WITHIN_S))
        if save is not None:  # threads come last: on a busy host they take the processor from this one
            self.writer.start(save, self.staging.seal_first(pause), pause)
        self.staging.go_on(pause)

    # -- how it ended ----------------------------------------------------------------------------

    def collect(self) -> None:
        """Report how the last save ended, or that it does not move. Never waits."""
        outcome = self.writer.collect()
        if outcome is None:
            self._look_at_stalled()
            return
        assert self.agenda is not None
        self.staging.written()
        self.agenda.disk.took_save(self._blocked_s, outcome.cpu_s)
        step = outcome.save.target.name.step
        if not outcome.problem:
            self._stored = outcome.save.target.name
        if outcome.problem:
            self._failed(step, outcome.problem, outcome.save.target.attempt)
        elif outcome.save.commits:
            self._saved(step, outcome)
        else:
            self._told.wrote()

    def wait(self, within_s: float, stalled_s: float) -> bool:
        """Wait for the save in flight while it moves; False if it is still not done. One that does not move
        is reported meanwhile."""
        return self.writer.wait_moving(within_s, stalled_s, self._look_at_stalled)

    def stored(self, step: int) -> tuple[str, str]:
        """The state of this step or a later one, once this rank's part is in the store; or why it is not."""
        if self._stored is not None and self._stored.on == self.name(step).on and self._stored.step >= step:
            return str(self._stored), ""
        return "", self.why_failed if self._failed_step >= step else ""

    def _look_at_stalled(self) -> None:
        save, stalled_s = self.writer.save, self.writer.stalled_s
        if save is None or stalled_s < REPORT_STALLED_S or self._stalled == save.target.attempt:
            return
        self._stalled = save.target.attempt
        self._told.failed(save.target.name.step, f"the store has not answered for {stalled_s:.0f} s")

    def _saved(self, step: int, outcome: SaveOutcome) -> None:
        if outcome.renewed and self._registered:
            self._told.deleted(self._parent)
        self._registered = True
        self._parent = str(outcome.save.target.name)
        if outcome.warning:
            reporting.say(outcome.warning)
        asked = outcome.save.target.attempt == self._asked
        self._told.saved(self._parent, step, time.time(), outcome.size, outcome.took_s, asked=asked)
        reporting.ports.log(checkpoint_step=step, checkpoint_s=outcome.took_s)

    def _failed(self, step: int, why: str, attempt: int) -> None:
        self.failures += 1
        self.why_failed, self._failed_step = why, step
        reporting.say(f"the checkpoint of step {step} failed: {why}; training continues")
        reporting.ports.log(checkpoint_failures=self.failures, checkpoint_error=f"step {step}: {why}")
        if why != PEER_FAILED:
            self._told.failed(step, why)
        if self.board is not None:
            self.board.post(f"failed/{attempt}", "1")

    def _gave_up(self, attempt: int) -> bool:
        return self.board is not None and self.board.has(f"failed/{attempt}")
