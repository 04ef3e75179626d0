"""Reads the agent's commands at the step boundary and answers them; says when there is mail (control.py).

STOP with at_step = N ends the script at the boundary before step N, so after N - 1 completed steps; when that
is past (or N is 0) at the next boundary. The answer is written when the command is carried out, not when it
is read, and says how many steps were completed. NOTHING withdraws a STOP that has not been carried out and is
answered at once. A script that swallows the stop meets it again at every boundary.
"""

from __future__ import annotations

from collections.abc import Callable

from torchloom.probe.injected_faults import Faults
from torchloom.probe.steering.control import BoundaryControl
from torchloom.probe.steering.stopping import StopAtBoundary
from torchloom.wire.blackbox import ANSWER_AT, MAILBOX_AT, MASK, AnswerWord, Mailbox, MailboxCommand, View

_VERSION = MAILBOX_AT // 8 + Mailbox.VERSION
_COMMAND = MAILBOX_AT // 8 + Mailbox.COMMAND
_AT_STEP = MAILBOX_AT // 8 + Mailbox.AT_STEP
_ANSWER_VERSION = ANSWER_AT // 8 + AnswerWord.VERSION
_ANSWER_STEP = ANSWER_AT // 8 + AnswerWord.STEP
_NEVER = MASK


class Inbox:
    """This worker's mailbox. `check` is on the path of every step: one read of a word when nothing is new."""

    def __init__(
        self, view: View, faults: Faults, control: BoundaryControl, steer: Callable[[int], None] | None = None
    ) -> None:
        """`steer` is the control's `boundary`, guarded."""
        self._words = view.words
        self.control = control
        self._steer = steer or control.boundary
        self._faults = faults
        self._seen = 0
        self._stop_after = _NEVER
        """Completed steps at which the script ends."""

    def check(self, completed: int) -> None:
        """Called at the boundary after `completed` steps. Raises StopAtBoundary if asked to stop here."""
        if self._words[_VERSION] != self._seen:
            self._read(completed)
        if completed >= self.control.due:
            self._steer(completed)
        if self._faults.busy:
            self._faults.at_boundary(completed)
        if completed >= self._stop_after:
            self._answer(completed)
            if not self.control.ends_itself(completed):
                raise StopAtBoundary

    def _read(self, completed: int) -> None:
        words = self._words
        version, command, at_step = words[_VERSION], words[_COMMAND], words[_AT_STEP]
        if words[_VERSION] != version:
            return  # being written right now: the next boundary will see it whole
        self._seen = version
        self.control.due = 0
        self._faults.look()
        if command == MailboxCommand.STOP:
            self._stop_after = max(at_step, 1) - 1
        else:
            self._stop_after = _NEVER
            self._answer(completed)

    def _answer(self, completed: int) -> None:
        self._words[_ANSWER_STEP] = completed
        self._words[_ANSWER_VERSION] = self._seen
