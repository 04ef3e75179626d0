"""What all replicas of a torchft job do at one commit, as the integration asks for it here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torchloom.probe.steering.changes import Changes
from torchloom.probe.steering.control import BoundaryControl
from torchloom.probe.steering.stopping import StopAtBoundary


class ReplicaSteering:
    def __init__(self, changes: Changes, control: BoundaryControl) -> None:
        self._changes = changes
        self._control = control
        self.leave: Callable[[], None] = _nothing
        """The other replicas need not wait for this one: it makes no further step."""

    def ends(self, error: BaseException | None) -> None:
        """The script ends. If it failed, others may wait for it in a collective: its exit ends their wait."""
        if error is None or isinstance(error, StopAtBoundary):
            self.leave()

    @property
    def ready(self) -> bool:
        """Whether the script has made a step here, so that its optimizers are known."""
        return self._changes.completed > 0

    def at_boundary(self, act: Callable[[], None]) -> None:
        """A step was committed: do this where the next update begins."""
        self._changes.next_act = act
        self._control.due = 0

    def problem(self, values: Mapping[str, Any]) -> str:
        """Why this worker could not apply these values; empty when it can."""
        return self._changes.config.problem(values, two_phase=True)

    def apply(
        self, version: int, values: Mapping[str, Any], step: int
    ) -> tuple[str, list[tuple[str, Any, Any]]]:
        """All replicas apply this with the commit of training step `step`. Returns a traceback if the
        script's own code failed at it (then the old values hold), and what changed."""
        trouble, changed = self._changes.take_shared(version, values, step)
        return trouble, list(changed)

    def why_not(self, kind: str) -> str:
        """Why this worker could not save (`checkpoint`) or pause with the next commits; empty when it can."""
        return self._changes.checkpoints.problem(0) if kind == "checkpoint" else ""

    def carry_out(self, kind: str) -> str:
        """All replicas do this with the same commit: save its state, or pause before its update. Returns a
        sentence if it failed."""
        if kind == "checkpoint":
            return self._changes.save_after_this_step()
        self._control.hold()
        return ""


def _nothing() -> None:
    """There are no other replicas."""
