"""Named places in the commit protocol where a test can end or freeze the process.

Owns the hook. In a normal run nothing is armed and `at` costs one comparison. `LOOM_KILL_AT=NAME` kills this
process (SIGKILL, so that nothing is cleaned up) the first time it comes to NAME; `NAME:3` the third time;
`*:17` at the 17th point of any name. The names are the protocol's own words, so a test that walks through all
of them walks through the protocol.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

VARIABLE = "LOOM_KILL_AT"

_hook: Callable[[str], None] | None = None


def at(name: str) -> None:
    """The protocol has come to this point."""
    if _hook is not None:
        _hook(name)


def set_hook(hook: Callable[[str], None] | None) -> None:
    """Call `hook(name)` at every point; None takes it away."""
    global _hook
    _hook = hook


def killer(wanted: str) -> Callable[[str], None]:
    """A hook that kills this process at the point described as in LOOM_KILL_AT."""
    name, _, count = wanted.partition(":")
    left = int(count or "1")

    def count_down(reached: str) -> None:
        nonlocal left
        if name in ("*", reached):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return count_down


def arm(environment: dict[str, str]) -> None:
    """Set the killer that the environment asks for, if any."""
    if environment.get(VARIABLE):
        set_hook(killer(environment[VARIABLE]))


arm(dict(os.environ))
