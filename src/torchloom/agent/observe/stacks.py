"""Python stacks of other processes, by py-spy. Owns how it is called and how frames read; keeps nothing.

Always without stopping the process: a stack may then be inconsistent, which makes evidence weaker, but a
healthy worker is never held up, and a stopped process can be read at all. py-spy reads memory, so a process
that holds the GIL for ever has a stack, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

_WITHIN_S = 2.0
_ENDS_WITHIN_S = 5.0
_MOST_FRAMES = 24
_LIBRARY = ("/site-packages/", "/dist-packages/", "/lib/python", "<frozen", "<string>")
_OURS = ("/torchloom/",)
_INJECTED = "injected_"
"""Frames of faults that were injected on purpose are shown, though they are ours."""
_DEBUGGERS = {
    "/bdb.py": "pdb",
    "/pdb.py": "pdb",
    "/debugpy/": "debugpy",
    "/pydevd": "pydevd",
    "/pudb/": "pudb",
    "/IPython/terminal/": "IPython",
    "/code.py": "an interactive console",
}
_STARTERS = (
    *("/torchloom/probe/program.py", "/torchloom/probe/worker.py"),
    *("/torchloom/spawner/", "<frozen runpy>"),
)
"""Frames that run a script: the same at the bottom of every stack, and of no use."""
_CHILD_STARTS = ("_worker_loop", "_bootstrap", "spawn_main")
"""Frames above which a child process runs what it was started for."""
_NICENESS = "10"


class StackFrame(msgspec.Struct, frozen=True):
    name: str
    filename: str
    short_filename: str | None = None
    line: int = 0

    @property
    def users(self) -> bool:
        """Whether this is the user's own code rather than a library's or ours."""
        if self.name.startswith(_INJECTED):
            return True
        return not any(part in self.filename for part in (*_LIBRARY, *_OURS))

    def text(self) -> str:
        file = self.short_filename or self.filename
        place = f"{Path(file).name}:{self.line}"
        return place if self.name == "<module>" else f"{self.name}() at {place}"


class Thread(msgspec.Struct, frozen=True):
    """Innermost frame first."""

    frames: tuple[StackFrame, ...]
    thread_name: str | None = None
    os_thread_id: int | None = None
    owns_gil: bool = False


class Stack(msgspec.Struct, frozen=True):
    """What all threads of a process are at."""

    lines: tuple[str, ...]
    """Of the main thread, innermost first."""
    location: str
    """The innermost frame of the user's own code, of the main thread."""
    gil: str
    """Which other thread holds the GIL and where it is; empty when none does."""
    print: str
    """Equal for equal stacks of all threads."""
    debugger: str = ""
    """An interactive debugger inside of the process in which somebody may be typing."""


_threads = msgspec.json.Decoder(tuple[Thread, ...])


async def read(pid: int, child: bool = False) -> Stack | None:
    """The stacks of a process; None when they cannot be had (not Python, gone, or not allowed), and for a
    child when it runs nothing of the user's."""
    reader = program()
    if not reader:
        return None
    command = ("nice", "-n", _NICENESS, reader, "dump", "--json", "--nonblocking", "--pid", str(pid))
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
    except OSError:
        return None
    try:
        async with asyncio.timeout(_WITHIN_S):
            out, _ = await process.communicate()
    except TimeoutError:
        return None
    finally:
        if process.returncode is None:
            process.kill()
            # Wait for its end: after the loop is closed, nothing would receive it.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ENDS_WITHIN_S):
                    await process.communicate()
    try:
        threads = _threads.decode(out)
    except msgspec.DecodeError:
        return None
    if not threads:
        return None
    return of_child(pid, threads) if child else summary(pid, threads)


def summary(pid: int, threads: Sequence[Thread]) -> Stack:
    main = next((t for t in threads if t.os_thread_id == pid or t.thread_name == "MainThread"), threads[0])
    frames = main.frames
    own = next((f for f in frames if f.users), None)
    if own is None:
        own = next((f for f in frames if not any(part in f.filename for part in _OURS)), None)
    holder = next((t for t in threads if t.owns_gil and t is not main and t.frames), None)
    gil = ""
    if holder is not None:
        gil = f"thread {holder.thread_name or holder.os_thread_id} in {holder.frames[0].text()}"
    everything = "|".join(f"{t.os_thread_id}:{f.text()}" for t in threads for f in t.frames)
    return Stack(
        lines=tuple(f.text() for f in _of_interest(frames)[:_MOST_FRAMES]),
        location=own.text() if own is not None else "",
        gil=gil,
        print=everything,
        debugger=next((n for f in frames for part, n in _DEBUGGERS.items() if part in f.filename), ""),
    )


def of_child(pid: int, threads: Sequence[Thread]) -> Stack | None:
    """Of a data-loader worker or another process that the script started: only what it runs itself, because
    a forked child has its parent's frames below. None when it runs nothing of the user's."""
    own = []
    for thread in threads:
        frames = thread.frames
        cut = next((i for i, f in enumerate(frames) if f.name in _CHILD_STARTS), len(frames))
        own.append(Thread(frames[:cut], thread.thread_name, thread.os_thread_id, thread.owns_gil))
    found = summary(pid, own)
    return found if any(f.users for t in own for f in t.frames) else None


def _of_interest(frames: Sequence[StackFrame]) -> Sequence[StackFrame]:
    """Without the outermost ones that only start the script; all of them where there are no others."""
    most = len(frames)
    while most and any(part in frames[most - 1].filename for part in _STARTERS):
        most -= 1
    return frames[:most] or frames


def program() -> str:
    """py-spy, of this environment or on PATH; empty when there is none."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy") or ""
