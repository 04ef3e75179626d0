"""A process for one source: `… SOURCE NODE HOME [once]`. It looks periodically and writes a JSON line each.

A line has the look, or why it failed. The process ends with the agent that started it, also while the source
hangs in the driver. What a source prints goes where its errors go, and never between the lines.
"""

from __future__ import annotations

import ctypes
import io
import os
import signal
import sys
import time
from pathlib import Path

import msgspec

from torchloom.agent.health.health_source import SourceLook, source_class

_PR_SET_PDEATHSIG = 1


class ChildLine(msgspec.Struct, frozen=True, kw_only=True):
    look: SourceLook | None = None
    why: str = ""
    """Why there is none."""
    hung: bool = False
    absent: bool = False
    """There is no such source on this host."""


def main(argv: list[str]) -> int:
    name, node, home, *more = argv
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return 0  # the agent ended before this was set
    out = _own_output()
    source = source_class(name)(node, Path(home))
    while True:
        try:
            line = ChildLine(look=source.look())
        except Exception as error:  # noqa: BLE001  # a foreign library: whatever it raises is a reason and no more
            line = ChildLine(why=f"{type(error).__name__}: {error}"[:500])
        try:
            out.write(msgspec.json.encode(line) + b"\n")
            out.flush()
        except OSError:
            return 0
        if more == ["once"]:
            return 0
        if line.look is None:
            return 1  # a fresh process may do better
        getattr(source, "wait", time.sleep)(source.every_s)


def _own_output() -> io.BufferedWriter:
    """The pipe to the agent, which from now on only this module writes to: programs that the source starts do
    not inherit it, and standard output is standard error."""
    pipe = os.dup(1)
    os.dup2(2, 1)
    return open(pipe, "wb")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
