"""Carries out on this rank what the ranks have decided: settings, a save, going back, measuring links; and
takes back what can be.

Owns the kinds of change, which training step a step is, and what ends with `max_steps`. When anything of
this happens is control.py's affair; a change is never begun here.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping

from torchloom.errors import LoomError
from torchloom.model.transaction.messages import AttemptId, Changed, Kind, Proposal
from torchloom.probe.links.delay_matrix import Links
from torchloom.probe.steering.config import Before, Config
from torchloom.probe.steering.data_settings import DataSettings
from torchloom.probe.steering.saving import ScriptCheckpoint
from torchloom.probe.steering.stopping import Lost
from torchloom.wire.blackbox import MASK

NEVER = MASK


class Changes:
    """Of one worker."""

    def __init__(
        self, config: Config, checkpoints: ScriptCheckpoint, data: DataSettings, links: Links
    ) -> None:
        self.config = config
        self.checkpoints = checkpoints
        self._data = data
        self._links = links
        self.offset: int | None = None
        """Training step minus step; None until the script reports its training step."""
        self.dirty = True
        """What can be set, or what holds, has changed since it was written."""
        self._begun_after: int | None = -1
        """The training step that the schedule was begun after; -1: it was not."""
        self._before: tuple[AttemptId, Before] | None = None
        self.next_act: Callable[[], None] | None = None
        """To be done at the next boundary, once."""

    def count_steps_by(self, completed: Callable[[], int]) -> None:
        self._data.completed = completed

    @property
    def completed(self) -> int:
        return self._data.completed()

    # -- steps ----------------------------------------------------------------------------------
    def told_step(self, number: int, completed: int) -> bool:
        """The script reported its training step. Returns whether that changed anything."""
        offset = number - completed
        if offset == self.offset:
            return False
        self.offset = offset
        if completed == 0:
            self._begin(number)
        return True

    def at_boundary(self, completed: int) -> None:
        """Follow the schedule. Ends the worker if it cannot: the other ranks do."""
        self._data.look()
        if self._begun_after == -1:
            self._begin(None if self.offset is None else self.offset + completed)
        if self.config.next_step is not None:
            self._surely(lambda: self.config.follow(self._training_step(completed + 1)))
        if self.next_act is not None:
            act, self.next_act = self.next_act, None
            act()
        self.checkpoints.look()
        self.write()

    def is_over(self, completed: int) -> bool:
        """Whether the last step of this job is behind."""
        limit = self.config.max_steps
        return limit is not None and self._training_step(completed + 1) > limit

    def next_boundary(self, completed: int) -> int:
        """Completed steps from which on there is something to do without mail."""
        shift = self.offset or 0
        coming = [NEVER]
        if self.config.next_step is not None:
            coming.append(self.config.next_step - shift - 1)
        if self.config.max_steps is not None:
            coming.append(self.config.max_steps - shift)
        return max(completed + 1, min(coming))

    def write(self) -> None:
        if self.dirty:
            self.config.write()
            self.dirty = False

    def _training_step(self, step: int) -> int:
        return step + (self.offset or 0)

    def _begin(self, made: int | None) -> None:
        self._data.look()
        if made != self._begun_after:
            self._begun_after = made
            self._surely(lambda: self.config.begin(made))

    def _surely(self, act: Callable[[], None]) -> None:
        self.dirty = True
        try:
            act()
        except Exception as error:
            told = f"its config could not be applied: {_told(error)}"
            raise Lost(told) from error

    # -- what is proposed -----------------------------------------------------------------------
    def problem(self, proposal: Proposal, completed: int, *, held: bool = False) -> str:
        """Why this rank cannot carry it out; empty when it can. `held`: the job is paused."""
        match proposal.kind:
            case Kind.SET:
                return self.config.problem(proposal.values, two_phase=proposal.two_phase)
            case Kind.CHECKPOINT | Kind.RESTORE:
                going_back = proposal.kind is Kind.RESTORE
                return self.checkpoints.problem(completed, going_back=going_back, held=held)
            case Kind.PROBE:
                return self._links.problem()
            case _:
                return ""

    def run(
        self, proposal: Proposal, completed: int, *, held: bool = False
    ) -> tuple[str, tuple[Changed, ...]]:
        """Carry it out; a traceback if that failed, and what changed. `held`: the job is paused."""
        before = self.config.snapshot()
        self._before = (proposal.attempt, before)
        self.dirty = True
        try:
            changed = self._carry_out(proposal, before, completed, held)
        except Exception as error:  # noqa: BLE001 – the script's own code: all ranks learn of it and undo the change
            return _told(error), ()
        self.write()
        return "", changed

    def _carry_out(
        self, proposal: Proposal, before: Before, completed: int, held: bool
    ) -> tuple[Changed, ...]:
        version = proposal.attempt.version
        match proposal.kind:
            case Kind.SET:
                step = None if self.offset is None else self._training_step(completed + 1)
                return self.config.apply(before, version, proposal.values, step)
            case Kind.CHECKPOINT:
                self.checkpoints.save(self._training_step(completed), held=held)
                return ()
            case Kind.RESTORE:
                skip = self._data.without(proposal.values.get("skip"), self.offset)
                today = None if self.offset is None else self._training_step(completed)
                made = self.checkpoints.go_back(proposal.attempt, proposal.values)
                choice, used = str(proposal.values.get("config", "")), proposal.values.get("config_version")
                used = used if isinstance(used, int) else None
                changed = self.config.rebase(before, made, choice, today=today, version=used)
                # From the first step on, so that whatever is restored later leaves it out as well.
                return (*changed, *self.config.apply(before, version, skip, 0)) if skip else changed
            case Kind.PROBE:
                return self._links.measure(proposal.attempt, proposal.values)
            case _:
                raise AssertionError(f"{proposal.kind} is the rank's own affair")

    def take_shared(
        self, version: int, values: Mapping[str, object], step: int
    ) -> tuple[str, tuple[Changed, ...]]:
        """Apply a change that all replicas of a torchft job apply with the same commit."""
        if self.config.has(version):
            return "", ()  # this generation was started with it
        before = self.config.snapshot()
        self.dirty = True
        try:
            changed = self.config.apply(before, version, values, step)
        except Exception as error:  # noqa: BLE001 – the script's own code: the change is undone and reported
            self.config.undo(before)
            return _told(error), ()
        self.write()
        return "", changed

    def save_after_this_step(self) -> str:
        """Save the state of the step whose update is next. Why that cannot be asked for, or empty: how the
        save ends is reported like that of any other."""
        if problem := self.checkpoints.problem(0):
            return problem
        self.checkpoints.at_end(
            lambda: self.checkpoints.save(self._training_step(self.completed), held=False)
        )
        return ""

    def undo(self, attempt: AttemptId) -> str:
        """Put back what was there, also after a run that failed half-way; a traceback if that failed."""
        if self._before is None or self._before[0] != attempt:
            return "nothing is known of how it was before"
        self.dirty = True
        try:
            self.config.undo(self._before[1])
            self.checkpoints.undo()
        except Exception as error:  # noqa: BLE001 – the worker is ended with this reason
            return _told(error)
        self._before = None
        self.write()
        return ""

    def settled(self, attempt: AttemptId) -> bool:
        """It is in force on all ranks; whether that is news."""
        if self._before is None or self._before[0] != attempt:
            return False
        self._before = None
        self.checkpoints.keep()
        return True


def _told(error: BaseException) -> str:
    """The traceback, starting at the script's code; our frames above it are of no use. An error of ours is a
    sentence for a person and needs none."""
    if isinstance(error, LoomError):
        return str(error)
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None and _is_ours(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames)).strip()


def _is_ours(path: str) -> bool:
    return path.startswith(__file__.rpartition("/")[0])
