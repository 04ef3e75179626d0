"""Waits until the jobs have left what is drained, a node or a device, and names those that stay."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from torchloom.errors import Conflict, TimedOut

if TYPE_CHECKING:
    from torchloom.client.schema import LeavingView

EMPTY_WITHIN_S = 1800.0
"""Writing a large state takes time."""
LOOK_EVERY_S = 0.2
V = TypeVar("V")


def wait_empty(
    drained: str, look: Callable[[], tuple[V, Sequence[LeavingView], bool]], see: str, quiet: bool
) -> V:
    """What `look` saw when nothing more is leaving. It gives the view, its jobs, and whether that is all."""
    from torchloom.cli.show.screen import Screen

    deadline = time.monotonic() + EMPTY_WITHIN_S
    screen = Screen(live=not quiet and sys.stderr.isatty())
    try:
        while time.monotonic() < deadline:
            view, leaving, is_over = look()
            if is_over:
                return view
            notes = "; ".join(f"{one['job']}: {one['note']}" for one in leaving if not one["stays"])
            screen.status(f"{drained} · {notes or 'its workers are ending'}")
            time.sleep(LOOK_EVERY_S)
    finally:
        screen.close()
    raise TimedOut(f"{drained} is not empty yet", hint=f"see `{see}`; draining continues in the background")


def name_those_that_stay(drained: str, leaving: Sequence[LeavingView]) -> None:
    """Raises Conflict if any job cannot leave."""
    stay = [f"{one['job']} stays there: {one['note']}" for one in leaving if one["stays"]]
    if stay:
        raise Conflict(f"{drained} takes no new workers, but {'; '.join(stay)}.")
