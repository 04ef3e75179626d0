"""Kills a part of the control plane on this host: the agent itself, or what `loom up` started beside it.

Pids come from the supervisor's files (format: cli/service/parts.py); a recycled pid is never taken for the
part that was. Starts nothing: bringing parts back is the supervisor's work.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal

from torchloom.agent.processes.process import boot_id, is_alive
from torchloom.errors import Conflict
from torchloom.home import Home

ANSWER_WITHIN_S = 0.3
"""The agent reports success before it acts: afterwards it may be dead."""


def pid_of(home: Home, part: str) -> int:
    """Of a living part of this home. Raises Conflict where there is none."""
    if part == "agent":
        return os.getpid()
    try:
        found = json.loads((home.parts_dir / f"{part}.json").read_bytes())
        pid, ticks, boot = int(found["pid"]), int(found["start_ticks"]), str(found["boot"])
    except (OSError, ValueError, KeyError, TypeError):
        raise Conflict(f"no {part} was started by `loom up` on this host") from None
    if boot != f"{boot_id():x}" or not is_alive(pid, ticks):
        raise Conflict(f"the {part} of this host does not run now")
    return pid


async def kill(pid: int) -> None:
    await asyncio.sleep(ANSWER_WITHIN_S)
    os.kill(pid, signal.SIGKILL)
