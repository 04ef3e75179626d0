"""Which steps are saved, agreed by all ranks without stopping any.

Owns the schedule. Rank 0 alone decides, from its own clocks and from whether the last save is still being
written; it posts each decision, together with the step of the next one, and the others read it when they
come to that step. Between those steps there is nothing to ask. If a save is due while one is being written,
the two are merged: it is taken up as soon as the first is done. The same holds while memory for it is made.

A rank that finds something else in place of a decision (anyone who reaches the store can write there) does
not know which step comes next. It trains on without saving, and looks at every step, without waiting, for a
later decision that it can read. The save it missed fails on rank 0 and is reported.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torchloom.checkpoint.group import Board
from torchloom.checkpoint.saving.interval import SavePace

LOOK_AGAIN_S = 0.25
"""While a save is due and the last one not done, look again about so often."""
_REMEMBER = 16
"""Decisions kept for ranks that come late."""


@dataclass(frozen=True, slots=True)
class SaveDecision:
    """What to do at a step."""

    memory: bool
    disk: bool
    next_step: int
    """Ask again then."""


def _read(text: str | None) -> tuple[SaveDecision, int] | None:
    """A decision as rank 0 posts it, and the step it is of."""
    try:
        memory, disk, next_step, step = map(int, (text or "").split())
    except ValueError:
        return None
    return SaveDecision(bool(memory), bool(disk), next_step), step


class Agenda:
    """The schedule as one rank sees it."""

    def __init__(self, disk: SavePace, memory: SavePace, leads: bool, board: Board | None) -> None:
        self.disk, self.memory = disk, memory
        self.leads, self._board = leads, board
        self.asked = False
        """Somebody wants a save that was not taken yet."""
        self._number = 0
        self._next_step: int | None = None
        self._next_disk = 0
        self._next_memory = 0
        self._lost = False
        """A decision of rank 0 was replaced by something else."""

    def decide(
        self, step: int, step_s: float, busy: bool, memory_on: bool, making: bool = False
    ) -> SaveDecision | None:
        """What to do at the end of this step; None: nothing. `making`: the memory for it is not there yet."""
        if self._next_step is None:
            self._begin(step)
        assert self._next_step is not None
        if self._lost:
            dealt_with, decision = self._find_again(step)
            if dealt_with:
                return decision
        if step < self._next_step:
            return None
        self._number += 1
        key = f"plan/{self._number}"
        if self.leads:
            decision = self._lead(step, step_s, busy, memory_on, making)
            if self._board is not None:
                chosen = f"{int(decision.memory)} {int(decision.disk)} {decision.next_step}"
                self._board.post(key, f"{chosen} {step}")
                if self._number > _REMEMBER:
                    self._board.forget(f"plan/{self._number - _REMEMBER}")
        else:
            assert self._board is not None, "ranks that cannot talk follow a fixed interval"
            read = _read(self._board.read(key))
            if read is None:
                self._lost = True
                return None
            decision = read[0]
            self.asked = self.asked and not decision.disk
        self._next_step = decision.next_step
        return decision

    def _find_again(self, step: int) -> tuple[bool, SaveDecision | None]:
        """Look for a later decision of rank 0: whether this step has been dealt with, and what to do at
        it."""
        assert self._board is not None
        number = self._number
        while number < self._number + _REMEMBER:
            number += 1
            read = _read(self._board.peek(f"plan/{number}"))
            if read is None or read[1] > step:
                continue
            (decision, at), self._number = read, number
            if at == step or decision.next_step >= step:
                self._lost, self._next_step = False, decision.next_step
                if at != step:
                    return False, None
                self.asked = self.asked and not decision.disk
                return True, decision
        return True, None

    def ask(self, step: int) -> None:
        """Somebody wants a save: it is due at this step, on all ranks, and until it is taken."""
        if self._next_step is None:
            self._begin(step)
        self._next_step, self.asked = step, True

    def withdraw(self) -> None:
        self.asked = False

    def saved(self, step: int) -> None:
        """A state was saved on request: count from here."""
        self._next_disk = max(self._next_disk, self.disk.due_after(step))

    def begin_branch(self) -> None:
        """Steps were counted back: plan anew from the next one."""
        self._next_step = None

    def _begin(self, step: int) -> None:
        """The first step is never in a hurry, and what it takes says nothing about the others."""
        self._next_step = self.disk.due_after(step - 1) if self.disk.every.steps else step + 1
        self._next_step = min(self._next_step, step + 1)
        self._next_disk = self.disk.due_after(step - 1) if self.disk.every.steps else step + 1
        if self.disk.every.seconds:
            self._next_disk = -1
        self._next_memory = step

    def _lead(self, step: int, step_s: float, busy: bool, memory_on: bool, making: bool) -> SaveDecision:
        if self._next_disk < 0:
            self._next_disk = self.disk.due_after(step)
        due = self.asked or step >= self._next_disk
        disk = due and not busy and not making
        memory = memory_on and not making and (disk or step >= self._next_memory)
        if disk:
            self.asked = False
            self._next_disk = self.disk.due_after(step)
        if memory:
            self._next_memory = self.memory.due_after(step)
        again = step + max(1, math.ceil(LOOK_AGAIN_S / step_s))
        if making:
            return SaveDecision(False, False, again)
        coming = [again if due and busy else self._next_disk]
        if memory_on:
            coming.append(self._next_memory)
        return SaveDecision(memory, disk, max(step + 1, min(coming)))
