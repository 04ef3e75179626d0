"""LocalSGD and DiLoCo of torchft: replicas train alone and sync every `sync_every` steps, which can be set.

`loom set NAME sync_every=50` takes effect after a commit, where a round begins, so that all replicas make the
next round with the same number of steps.
"""

from __future__ import annotations

import functools
import weakref
from types import ModuleType
from typing import Any

from torchloom.probe import session
from torchloom.probe.steering.declared import handler

_MARK = "_loom_commits_rounds"


def watch(local_sgd: ModuleType) -> None:
    _watch(local_sgd.LocalSGD, _set_local_sgd)
    _watch(local_sgd.DiLoCo, _set_diloco)


def commits_rounds(manager: Any) -> bool:
    """Whether a commit of this manager is a round of several optimizer steps."""
    return bool(getattr(manager, _MARK, False))


def _watch(kind: Any, declare: Any) -> None:
    made = kind.__init__

    @functools.wraps(made)
    def __init__(self: Any, manager: Any, *args: Any, **kwargs: Any) -> None:
        made(self, manager, *args, **kwargs)
        if session.current is not None:
            session.current.guard.wrap(setattr)(manager, _MARK, True)
            session.current.guard.wrap(declare)(self)

    kind.__init__ = __init__


def _set_local_sgd(local_sgd: Any) -> None:
    rounds = weakref.ref(local_sgd)

    @handler("sync_every", value=local_sgd._sync_every, minimum=1, description="steps between two syncs")
    def set_sync_every(steps: int) -> None:
        if (one := rounds()) is not None:
            one._sync_every = steps


def _set_diloco(diloco: Any) -> None:
    rounds = weakref.ref(diloco)
    parts, delay = len(diloco._fragments), diloco._fragment_sync_delay

    @handler(
        "sync_every",
        value=diloco._sync_every * parts,
        minimum=parts * (delay + 1),
        description="steps in which every fragment is synced once",
    )
    def set_sync_every(steps: int) -> None:
        if steps % parts:
            raise ValueError(f"sync_every must be a multiple of the number of fragments, {parts}")
        if (one := rounds()) is not None:
            one._sync_every = steps // parts
