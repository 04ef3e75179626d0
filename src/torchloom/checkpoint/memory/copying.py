"""Which states in memory are copied to a neighbour, as the ranks of a job agree on it.

A state is worth something after a lost node only if every rank has it: the lost ranks at their neighbours,
the others in their own memory. So the ranks copy the same states, one after another. Rank 0 posts the next
one, the newest that all have sealed, when all ranks have reported on the one before. Each rank asks its agent
for the copy (`wanted-<rank>`), the agent reports (`copied-<rank>`), and the rank notes it for the others.
Until then no rank overwrites the state being copied, nor the last one that was copied everywhere.

Owns that agreement. It is looked at when a state is due, never in between, and waits for no agent: a slow
neighbour means older copies and, with all slots in use, fewer states in memory.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from torchloom.checkpoint.group import Board, SaveGroup
from torchloom.checkpoint.memory import tier

_POSTED = "copy"
_REPORTED = "copied"
_GIVE_UP_S = 600.0
"""An agent that has not reported on a copy for so long is not waited for: the slots are needed."""


class CopyAgreement:
    """One rank's part in it."""

    def __init__(self, group: SaveGroup, folder: Path) -> None:
        self._group, self._folder = group, folder
        self._board: Board | None = None
        self._series = ""
        self._origin = ""
        """The save that this life of the job resumed from, if it was in memory."""
        self._target = 0
        """The event whose state is being copied."""
        self._everywhere = 0
        """The newest event whose state was copied on all ranks."""
        self._reported = 0
        self._asked = ""
        self._asked_s = 0.0

    @property
    def spans_nodes(self) -> bool:
        return self._group.local_world < self._group.world

    @property
    def everywhere(self) -> int:
        return self._everywhere

    def connect(self, board: Board | None, series: str, origin: str) -> None:
        """Saves begin, under names that begin with `series`. All ranks call it."""
        self._board, self._series, self._origin = (board if self.spans_nodes else None), series, origin
        self._target = self._everywhere = self._reported = 0
        if self._board is not None:
            self._board.note_mine(_REPORTED, 0)  # the others wait for our first word

    def restart_from(self, origin: str) -> None:
        """Training was rolled back: nothing of the abandoned branch is worth a copy."""
        self._origin, self._everywhere = origin, 0

    def protected(self, sealed_by_all: int, held: Callable[[int], bool]) -> set[int] | None:
        """Events whose states must not be overwritten now; None: nothing is copied from this host.

        `sealed_by_all` was read from the board before; `held`: is the state of this event in our memory?
        """
        if self._board is None:
            return None
        self._report(held)
        self._post(sealed_by_all)
        here = tier.neighbour(self._folder).exists()
        if here:
            self._ask(held)
        return {self._target, self._everywhere} - {0} if here else None

    def _report(self, held: Callable[[int], bool]) -> None:
        """Note for the others how our copy of the target ended."""
        assert self._board is not None
        if self._reported == self._target:
            return
        if not tier.neighbour(self._folder).exists() or not held(self._target):
            done: bool | None = False
        else:
            done = self._agents_report()
        if done is not None:
            self._reported = self._target
            self._board.note_mine(_REPORTED, 2 * self._target + done)

    def _agents_report(self) -> bool | None:
        """Whether the target was copied; None: not known yet."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            found = json.loads(tier.copied(self._folder, self._group.rank).read_bytes())
            if found["save"] == self._save(self._target):
                return bool(found["done"])
        return False if time.monotonic() - self._asked_s > _GIVE_UP_S else None

    def _post(self, sealed_by_all: int) -> None:
        """Rank 0 posts the next target; the others read it."""
        assert self._board is not None
        if self._group.rank != 0:
            note = self._board.peek(_POSTED)
            if note is not None:
                self._target, self._everywhere = (int(number) for number in note.split())
            return
        if sealed_by_all <= self._target:
            return
        lowest = self._board.lowest(_REPORTED)
        if lowest is None or lowest < 2 * self._target:
            return
        if self._target and lowest == 2 * self._target + 1:
            self._everywhere = self._target
        self._target = sealed_by_all
        self._board.post(_POSTED, f"{self._target} {self._everywhere}")

    def _ask(self, held: Callable[[int], bool]) -> None:
        """Ask the agent for the target's copy, and say which earlier one must stay."""
        if not self._target or not held(self._target):
            return
        keep = self._save(self._everywhere) if self._everywhere else self._origin
        wanted = json.dumps({"save": self._save(self._target), "keep": keep})
        if wanted == self._asked:
            return
        path = tier.wanted(self._folder, self._group.rank)
        with suppress(OSError):  # without room there is no copy, as without a neighbour
            path.with_suffix(".new").write_text(wanted)
            os.replace(path.with_suffix(".new"), path)
            self._asked, self._asked_s = wanted, time.monotonic()

    def _save(self, event: int) -> str:
        return f"{self._series}.{event}"
