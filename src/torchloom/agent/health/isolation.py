"""The agent's end of a source that runs in a child process: reads its lines, kills it when it hangs."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec

from torchloom.agent.health.source_process import ChildLine

_LINE_BYTES = 4 << 20
_ENDS_WITHIN_S = 2.0
_decoder = msgspec.json.Decoder(ChildLine)


def _command(source: str, node: str, home: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "torchloom.agent.health.source_process", source, node, str(home), *more]


def look_once(source: str, node: str, home: Path, within_s: float) -> ChildLine:
    """One look, without an event loop. Never takes longer than `within_s` and a little."""
    command = _command(source, node, home, "once")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        out, _ = process.communicate(timeout=within_s)
        return _decoder.decode(out)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_ENDS_WITHIN_S)
        return ChildLine(why=f"it did not answer within {within_s:g} s", hung=True)
    except msgspec.DecodeError:
        return ChildLine(why=f"its process ended with code {process.returncode}")


async def looks(source: str, node: str, home: Path, deadline_s: float) -> AsyncGenerator[ChildLine, None]:
    """What a child says, line by line, until it ends or hangs; the last line says why."""
    process = await asyncio.create_subprocess_exec(
        *_command(source, node, home),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=_LINE_BYTES,
    )
    assert process.stdout is not None
    try:
        while True:
            try:
                async with asyncio.timeout(deadline_s):
                    line = await process.stdout.readline()
                if not line:
                    yield ChildLine(why="its process ended")
                    return
                yield _decoder.decode(line)
            except TimeoutError:
                yield ChildLine(why=f"it has not answered for {deadline_s:g} s")
                return
            except (msgspec.DecodeError, ValueError) as error:
                yield ChildLine(why=f"what it wrote cannot be read: {error}"[:200])
                return
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        with contextlib.suppress(TimeoutError):  # one that waits in the kernel ends when it can
            async with asyncio.timeout(_ENDS_WITHIN_S):
                await process.wait()
