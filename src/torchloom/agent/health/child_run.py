"""Runs a program in a session of its own for a bounded time, and leaves nothing of it behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

MOST_BYTES = 64 << 10


class ChildEnd(NamedTuple):
    """How it ended: what it printed first, and its exit code; None: it was still running."""

    text: bytes
    code: int | None


async def run_child(
    command: Sequence[str], env: Mapping[str, str], within_s: float, cwd: Path | None = None
) -> ChildEnd:
    """Run it to its end, or kill it and all of its session after `within_s`. Raises OSError if it cannot be
    started."""
    process = await asyncio.create_subprocess_exec(
        *command,
        env=dict(env),
        cwd=cwd,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdout is not None
    text = b""
    try:
        async with asyncio.timeout(within_s):
            while part := await process.stdout.read(MOST_BYTES):
                text = (text + part)[-MOST_BYTES:]
            await process.wait()
    except TimeoutError:
        return ChildEnd(text, None)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):  # one that waits in the kernel ends when it can
            async with asyncio.timeout(2.0):
                await process.wait()
    return ChildEnd(text, process.returncode)
