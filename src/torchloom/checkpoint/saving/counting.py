"""Which training step a script means by its number, when the training was rolled back beneath its loop.

Owns the arithmetic. Most loops count by themselves (`for step in range(...)`) and keep counting after a live
rollback; others take the number that `Checkpoint.step` returns. Which of the two it is shows at the first
step after the rollback.
"""

from __future__ import annotations


class StepCount:
    """Turns the script's numbers into training steps."""

    def __init__(self) -> None:
        self.at = 0
        """The training step that the state is of."""
        self._given: int | None = None
        self._stride = 1
        self._shift = 0
        self._back: int | None = None
        """Rolled back to this step, and the script has not stepped since."""

    def begin(self, step: int) -> None:
        """The state was restored before the loop began."""
        self.at, self._given, self._shift, self._back = step, None, 0, None

    def of(self, given: int) -> int:
        """The training step for the script's number; the current one may be given as such."""
        return given if given == self.at else given + self._shift_for(given)

    def took(self, given: int) -> int:
        """The script has come to the end of a step; which one that is."""
        self._shift = self._shift_for(given)
        self._back = None
        if self._given is not None and given > self._given:
            self._stride = given - self._given
        self._given = given
        self.at = given + self._shift
        return self.at

    def roll_back(self, step: int) -> None:
        self._back = self.at = step

    def _shift_for(self, given: int) -> int:
        if self._back is None or self._given is None:
            return self._shift
        follows = given - self._back == self._stride
        goes_on = given - self._given == self._stride
        if follows or (not goes_on and given <= self._given):
            return 0
        return self._back - self._given
