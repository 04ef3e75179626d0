"""torch's Flight Recorder: workers are started so that it can be asked, and asked when a hang is suspected.

NCCL's monitor thread looks once a second whether somebody wrote to its pipe, and then writes what the ring
holds to a file. Both are in the job's directory, unless the user has set them: then the user's pipe is
written to and the user's file is read. A worker whose backend has no such thread (gloo) cannot be asked. The
file is read as hostile.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from torchloom.agent.host import Host, LocalWorker
from torchloom.core.flight.dump import read_dump, trimmed
from torchloom.errors import DumpUnreadable
from torchloom.home import Home
from torchloom.model.flight import Dump
from torchloom.model.messages import AskDumps, DumpsAnswer, RankDump
from torchloom.model.worker import WorkerRef
from torchloom.private import make_private
from torchloom.wire.flight_dump import decode_dump
from torchloom.wire.plain_pickle import ReadLimits

BUFFER = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
FILES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
PIPES = ("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_FR_DEBUG_INFO_PIPE_FILE")
"""The newer names first; XPU's backend has the second pipe."""
ENTRIES = "2000"
"""torch 2.13's own default; older versions have none."""
_LIMITS = ReadLimits(size=32 * 2**20, values=1_000_000)
_LOOK_EVERY_S = 0.05
_MOST_RANKS = 64
_LONGEST_S = 10.0
_NOTE = ".places"


def directory(home: Home, job: str) -> Path:
    return home.jobs_dir / job / "flight"


def stem(home: Home, ref: WorkerRef) -> str:
    """torch appends the rank, and `.pipe` for the pipe."""
    return str(directory(home, ref.job) / f"g{ref.generation}.rank_")


def settings(home: Home, ref: WorkerRef, env: Mapping[str, str]) -> dict[str, str]:
    """Variables for a worker; none that the user has set. Where the user's own files are is noted, because an
    agent that takes over the worker later must know it, too.

    The directory must be there before the worker: a pipe that cannot be made ends NCCL's thread, and with it
    the process. So there are no files where it cannot be made.
    """
    made: dict[str, str] = {}
    if not any(name in env for name in BUFFER):
        made[BUFFER[0]] = ENTRIES
    if not _prepared(home, ref):
        return made
    at = stem(home, ref)
    file, pipe = _set_by_user(env, FILES), _set_by_user(env, PIPES)
    if not file:
        made[FILES[0]] = at
        # The first dump with stacks loads the debug information of all libraries, which takes seconds.
        made["TORCH_INCLUDE_STACK_TRACE"] = "0"
    if not pipe:
        made |= dict.fromkeys(PIPES, at)
    # Only then does NCCL look at its pipe every second.
    made["TORCH_NCCL_DUMP_ON_TIMEOUT"] = "1"
    if (file or pipe) and not _note(f"{at}{ref.rank}{_NOTE}", file or at, pipe or at):
        return {name: value for name, value in made.items() if name == BUFFER[0]}
    return {name: value for name, value in made.items() if name not in env}


def _set_by_user(env: Mapping[str, str], names: Sequence[str]) -> str:
    return next((env[name] for name in names if env.get(name)), "")


def _note(path: str, file: str, pipe: str) -> bool:
    try:
        Path(path).write_text(f"{file}\n{pipe}")
    except OSError:
        return False
    return True


def places(home: Home, worker: LocalWorker) -> tuple[str, str]:
    """The file to which a worker dumps, and its pipe. What is noted as relative counts from its directory."""
    rank, ours = worker.ref.rank, stem(home, worker.ref)
    file = pipe = ours
    with contextlib.suppress(OSError, ValueError):
        noted = Path(f"{ours}{rank}{_NOTE}").read_text().split("\n")
        if len(noted) == 2:
            here = os.readlink(f"/proc/{worker.pid}/cwd") if not all(map(os.path.isabs, noted)) else ""
            file, pipe = (os.path.join(here, one) for one in noted)
    return f"{file}{rank}", f"{pipe}{rank}.pipe"


def _prepared(home: Home, ref: WorkerRef) -> bool:
    here = directory(home, ref.job)
    try:
        make_private(here)
        kept = (f"g{ref.generation}.", f"g{ref.generation - 1}.")
        for old in here.iterdir():
            if not old.name.startswith(kept):
                with contextlib.suppress(OSError):
                    old.unlink()
        return True
    except OSError:
        return False


async def ask(host: Host, query: AskDumps) -> DumpsAnswer:
    """What the Flight Recorders of these ranks hold now; of those that can be asked and answer in time."""
    here = [w for ref in query.refs[:_MOST_RANKS] if (w := host.workers.get(ref)) is not None]
    within_s = min(query.within_s, _LONGEST_S)
    return DumpsAnswer(tuple(await asyncio.gather(*(_ask(host.home, w, within_s) for w in here))))


async def _ask(home: Home, worker: LocalWorker, within_s: float) -> RankDump:
    rank, (at, pipe) = worker.ref.rank, places(home, worker)
    before = _written(at)
    if why := _write(pipe):
        return RankDump(rank=rank, why=why)
    why, until_s = "it did not answer in time", time.monotonic() + within_s
    while time.monotonic() < until_s:
        await asyncio.sleep(_LOOK_EVERY_S)
        written = _written(at)
        if written == before:
            continue
        try:
            dump = await asyncio.to_thread(_read, at, rank)
        except (DumpUnreadable, OSError) as error:
            why = f"its dump cannot be read: {error}"  # perhaps it is still being written
            continue
        if _written(at) == written:
            return RankDump(rank=rank, dump=dump, written_ns=written[0])
    return RankDump(rank=rank, why=why)


def _write(pipe: str) -> str:
    """Ask; why that is not possible, if it is not. Never waits."""
    try:
        to = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        nobody = error.errno in (errno.ENOENT, errno.ENXIO)
        return "its backend listens to no pipe" if nobody else f"its pipe cannot be opened ({error.strerror})"
    try:
        if not stat.S_ISFIFO(os.fstat(to).st_mode):
            return "its pipe is none"
        os.write(to, b"1")
    except OSError as error:
        return f"its pipe cannot be written ({error.strerror})"
    finally:
        os.close(to)
    return ""


def _written(path: str) -> tuple[int, int]:
    try:
        info = os.lstat(path)
        return info.st_mtime_ns, info.st_size
    except OSError:
        return 0, 0


def _read(path: str, rank: int) -> Dump:
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(file, "rb") as opened:
        info = os.fstat(file)
        if not stat.S_ISREG(info.st_mode) or info.st_size > _LIMITS.size:
            raise DumpUnreadable("it is no file, or too large")
        return trimmed(read_dump(decode_dump(opened.read(_LIMITS.size), _LIMITS), rank))
