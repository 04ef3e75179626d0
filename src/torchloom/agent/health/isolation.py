"""The agent's end of a source that runs in a child process: reads its lines, kills it when it hangs.

The child has a session of its own. What a source started in it ends with it, unless it left that session.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
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
    process = subprocess.Popen(
        command, bufsize=0, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    assert process.stdout is not None
    try:
        text = _first_line(process.stdout.fileno(), within_s)
        _wait_a_little(process)
        return _decoder.decode(text)
    except TimeoutError:
        return ChildLine(why=f"it did not answer within {within_s:g} s", hung=True)
    except (msgspec.DecodeError, ValueError) as error:
        code = process.returncode
        return ChildLine(why=f"its process ended with code {code}" if code is not None else _unread(error))
    finally:
        _end_session(process.pid)
        _wait_a_little(process)
        process.stdout.close()


def _wait_a_little(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):  # one that waits in the kernel ends when it can
        process.wait(_ENDS_WITHIN_S)


def _first_line(pipe: int, within_s: float) -> bytes:
    """Up to the line's end and not up to the pipe's: a process that the source forked may hold it open.
    Raises TimeoutError, and ValueError if the line is too long."""
    text, end_s = b"", time.monotonic() + within_s
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while b"\n" not in text:
            if not selector.select(max(0.0, end_s - time.monotonic())):
                raise TimeoutError
            part = os.read(pipe, 1 << 16)
            if not part:
                break
            text += part
            if len(text) > _LINE_BYTES:
                raise ValueError("the line is too long")
    return text.partition(b"\n")[0]


def _end_session(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _unread(error: Exception) -> str:
    return f"what it wrote cannot be read: {error}"[:200]


async def looks(source: str, node: str, home: Path, deadline_s: float) -> AsyncGenerator[ChildLine, None]:
    """What a child says, line by line, until it ends or hangs; the last line says why."""
    ours, its = os.pipe()
    try:
        reader = asyncio.StreamReader(_LINE_BYTES)
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ours, "rb", 0)
        )
        try:
            process = await asyncio.create_subprocess_exec(
                *_command(source, node, home),
                stdout=its,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        except BaseException:
            pipe.close()
            raise
    finally:
        os.close(its)
    try:
        while True:
            try:
                async with asyncio.timeout(deadline_s):
                    line = await reader.readline()
                if not line:
                    yield ChildLine(why="its process ended")
                    return
                yield _decoder.decode(line)
            except TimeoutError:
                yield ChildLine(why=f"it has not answered for {deadline_s:g} s")
                return
            except (msgspec.DecodeError, ValueError) as error:
                yield ChildLine(why=_unread(error))
                return
    finally:
        pipe.close()  # now: a process that left the session may hold its other end
        _end_session(process.pid)
        with contextlib.suppress(TimeoutError):  # one that waits in the kernel ends when it can
            async with asyncio.timeout(_ENDS_WITHIN_S):
                await process.wait()
