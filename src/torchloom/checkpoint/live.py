"""The checkpoints of this process that are in use, for the probe to find when a person wants something done.

    found = sys.modules.get("torchloom.checkpoint.live")    # not there: the script uses no loom.Checkpoint
    ckpt = found.current() if found else None

Owns the registry, the source of the config's version, and requests from outside the loop. Imports no
torch and keeps nothing alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchloom.checkpoint.checkpoint import Checkpoint

_known: list[weakref.ref[Checkpoint]] = []
_version: Callable[[], int] | None = None


@dataclass
class Request:
    """A requested save; it happens at the end of the step in progress."""

    reason: str
    done: bool = False
    step: int = 0
    name: str = ""
    """The checkpoint; on ranks other than 0 their part of it is in the store."""
    problem: str = ""
    """Why it failed; empty if it did not."""
    then: Callable[[Request], None] | None = None
    """Called when it is done, in the loop."""

    def finish(self, step: int, name: str, problem: str) -> None:
        self.done, self.step, self.name, self.problem = True, step, "" if problem else name, problem
        if self.then is not None:
            self.then(self)


def register(checkpoint: Checkpoint) -> None:
    """It is in use from now on."""
    _known.append(weakref.ref(checkpoint))


def forget(checkpoint: Checkpoint) -> None:
    _known[:] = [known for known in _known if known() not in (None, checkpoint)]


def current() -> Checkpoint | None:
    """The one a script uses: the newest that has restored or stepped and is not closed."""
    for known in reversed(_known):
        found = known()
        if found is not None:
            return found
    return None


def set_config_version(source: Callable[[], int] | None) -> None:
    """Who knows which version of the job's config is in force; saved with every state."""
    global _version
    _version = source


def config_version() -> int:
    return _version() if _version is not None else 0
