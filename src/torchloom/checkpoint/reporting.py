"""What a checkpoint reports to the rest of torchloom: its phase, step, figures and failures.

Owns eight ports and no meaning. `torchloom/__init__.py` connects them to the probe; unconnected, as in a
script without torchloom around it, they do nothing. A failure is also said in one line on stderr, because
that is where the person who started the script looks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass


def _no_phase(name: str) -> AbstractContextManager[object]:
    return nullcontext()


def _no_log(**values: object) -> None: ...


def _no_step(number: object) -> None: ...


def _no_checkpoints(told: Mapping[str, object]) -> None: ...


def _finite() -> bool:
    return True


def _not_known(optimizer: object) -> None: ...


def _not_kept(optimizer: object, told: Mapping[str, object]) -> None: ...


def _as_they_are(loaded: bool = False) -> AbstractContextManager[object]:
    return nullcontext()


@dataclass
class Ports:
    """Where reports go."""

    phase: Callable[[str], AbstractContextManager[object]] = _no_phase
    log: Callable[..., None] = _no_log
    step: Callable[[object], None] = _no_step
    checkpoints: Callable[[Mapping[str, object]], None] = _no_checkpoints
    finite: Callable[[], bool] = _finite
    """Whether the numbers of the training are, as far as somebody looked."""
    own_values: Callable[[bool], AbstractContextManager[object]] = _as_they_are
    """Inside, param groups hold the script's own values, not those set from outside. True: for loading."""

    script_writes: Callable[[object], Mapping[str, object] | None] = _not_known
    """What is known of the script's writes to an optimizer's param groups, to be saved with its state."""
    restored_writes: Callable[[object, Mapping[str, object]], None] = _not_kept
    """This was saved with the state that the optimizer has just loaded."""


ports = Ports()


def connect(
    phase: Callable[[str], AbstractContextManager[object]],
    log: Callable[..., None],
    step: Callable[[object], None],
    checkpoints: Callable[[Mapping[str, object]], None] = _no_checkpoints,
    finite: Callable[[], bool] = _finite,
    own_values: Callable[[bool], AbstractContextManager[object]] = _as_they_are,
) -> None:
    """Tell these from now on."""
    ports.phase, ports.log, ports.step, ports.checkpoints = phase, log, step, checkpoints
    ports.finite, ports.own_values = finite, own_values


def connect_writes(
    script_writes: Callable[[object], Mapping[str, object] | None],
    restored_writes: Callable[[object, Mapping[str, object]], None],
) -> None:
    """Ask and report these from now on."""
    ports.script_writes, ports.restored_writes = script_writes, restored_writes


def say(text: str) -> None:
    """One line for a person, if there is one. A closed or full stderr is no reason to end a training."""
    if not text:
        return
    try:
        print(f"torchloom: {text}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass
