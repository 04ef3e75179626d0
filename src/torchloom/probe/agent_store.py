"""A script that makes a process group of its own beside the job's gets a store for it.

Workers are told that a store already listens at MASTER_ADDR:MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE), as
under torchrun. torch then never starts one, whatever the address: a script that calls `mp.spawn` and makes a
group at a port of its own would wait for a store that nobody starts. Here the statement holds for the job's
own port only, in the worker and in the processes that it starts with multiprocessing.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

VARIABLE = "TORCHELASTIC_USE_AGENT_STORE"
RENDEZVOUS = "torch.distributed.rendezvous"
_CREATE = "_create_c10d_store"


def only_at(port: str, rendezvous: ModuleType) -> None:
    """The job's store is at this port and nowhere else."""
    original = getattr(rendezvous, _CREATE, None)
    if original is None or hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def create(hostname: Any, number: Any, *args: Any, **named: Any) -> Any:
        if str(number) == port:
            return original(hostname, number, *args, **named)
        said = os.environ.pop(VARIABLE, None)
        try:
            return original(hostname, number, *args, **named)
        finally:
            if said is not None:
                os.environ[VARIABLE] = said

    setattr(rendezvous, _CREATE, create)


def tell_children(port: str, multiprocessing_spawn: Any) -> None:
    """Have processes that multiprocessing starts anew (spawn, forkserver) follow the same rule."""
    original: Callable[[str], dict[str, Any]] = multiprocessing_spawn.get_preparation_data
    if hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def get_preparation_data(name: str) -> dict[str, Any]:
        return {**original(name), "torchloom": _InChild(port)}

    multiprocessing_spawn.get_preparation_data = get_preparation_data


class _InChild:
    """Runs `begin` when it is unpickled there. A child that cannot import torchloom runs without it."""

    def __init__(self, port: str) -> None:
        self._port = port

    def __reduce__(self) -> tuple[Any, ...]:
        code = f"try:\n from {__name__} import begin\n begin({self._port!r})\nexcept Exception:\n pass"
        return exec, (code,)


def begin(port: str) -> None:
    """In a child: follow the rule once torch is there, and have its own children follow it."""
    from multiprocessing import spawn

    from torchloom.probe.guard import Guard
    from torchloom.probe.import_watch import Arrivals

    Arrivals(Guard(lambda trips: None)).expect(RENDEZVOUS, functools.partial(only_at, port))
    tell_children(port, spawn)
