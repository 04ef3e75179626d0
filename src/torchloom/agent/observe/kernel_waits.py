"""What a blocked thread waits for, by the system call it is in: in words, and who could end it.

Reads /proc and makes no judgement. "Nothing outside could wake it" is claimed only if that holds for every
thread: a lock that is private to the process, without a time limit, and no signal handler that could
release it. A lock in shared memory, a file, a pipe, a socket or a child may be released by another process.
"""

from __future__ import annotations

import os
import platform
import stat
from typing import NamedTuple

from torchloom.agent.observe.kernel_files import read_small
from torchloom.model.windows import WaitsOn

_MOST_THREADS = 256
_OURS = ("pt_gloo", "gloo", "pt_nccl", "nccl", "pt_tcpstore", "pt_store", "loom-")
"""Beginnings of the names of c10d's own threads: they wait for peers, who are waiting themselves."""
_FUTEX_PRIVATE = 128
_LOCKS = frozenset({7, 38})
"""Commands of fcntl that wait: F_SETLKW and F_OFD_SETLKW."""
_HARMLESS_SIGNALS = frozenset({1, 2, 3, 4, 6, 7, 8, 11, 15, 17, 32, 33})
"""Signals whose handlers release no lock: those that end a process or report a crash, SIGCHLD (children are
looked at themselves) and the two that the C library keeps for itself."""

_CALLS: dict[str, dict[str, tuple[int, ...]]] = {
    "x86_64": {
        "futex": (202,),
        "sleep": (35, 230),
        "read": (0, 17, 19, 295),
        "write": (1, 18, 20),
        "receive": (45, 47, 299),
        "send": (44, 46),
        "connect": (42,),
        "accept": (43, 288),
        "poll": (7, 23, 270, 271, 232, 281, 441),
        "child": (61, 247),
        "semaphore": (65, 220),
        "message": (70, 243),
        "fcntl": (72,),
        "flock": (73,),
        "sync": (74, 75, 162),
        "open": (2, 257),
        "signal": (34, 128, 130),
    },
    "aarch64": {
        "futex": (98,),
        "sleep": (101, 115),
        "read": (63, 67, 65),
        "write": (64, 68, 66),
        "receive": (207, 212, 243),
        "send": (206, 211),
        "connect": (203,),
        "accept": (202, 242),
        "poll": (72, 73, 22, 441),
        "child": (260, 95),
        "semaphore": (193, 192),
        "message": (188, 183),
        "fcntl": (25,),
        "flock": (32,),
        "sync": (82, 83, 81),
        "open": (56,),
        "signal": (133, 137),
    },
}
_NAMES = {number: name for name, numbers in _CALLS.get(platform.machine(), {}).items() for number in numbers}
_WORDS = {
    "sleep": "it sleeps",
    "poll": "it waits for a file or a socket to become ready",
    "child": "it waits for a child process to end",
    "semaphore": "it waits for a semaphore that other processes share",
    "message": "it waits for a message from another process",
    "open": "it waits to open a file or a FIFO",
    "signal": "it waits for a signal",
}
_WITH_FILE = {
    "read": "it reads from {}",
    "write": "it writes to {}",
    "receive": "it waits for data from {}",
    "send": "it sends to {}",
    "connect": "it connects {}",
    "accept": "it waits for a connection to {}",
    "flock": "it waits for a lock on {}",
    "sync": "it waits until {} is on the disk",
}
IN_TOUCH = frozenset({"read", "receive", "poll"})
"""Calls in which a thread that runs again and again gets data."""


class KernelWait(NamedTuple):
    on: WaitsOn
    call: str = ""
    words: str = ""
    for_lock: bool = False
    """It waits for a lock on a file."""


NOTHING = KernelWait("unknown")


def of_thread(pid: int, thread: int) -> KernelWait:
    """What one thread waits for; `unknown` if it runs or we have no permission to look."""
    call = read_small(f"/proc/{pid}/task/{thread}/syscall").split()
    if len(call) < 7 or not call[0].isdigit():
        return NOTHING
    name = _NAMES.get(int(call[0]), "")
    first, second, fourth = int(call[1], 16), int(call[2], 16), int(call[4], 16)
    if name == "futex":
        if not second & _FUTEX_PRIVATE:
            return KernelWait(
                "outside", name, "it waits for a lock or a semaphore that other processes share"
            )
        if fourth:
            return KernelWait("unknown", name, "it waits for a lock with a time limit")
        return KernelWait("lock", name, "it waits for a lock")
    if name == "sleep":
        return KernelWait("timer", name, _WORDS[name])
    if name == "fcntl":
        words = _WITH_FILE["flock"].format(_file(pid, first)) if second in _LOCKS else ""
        return KernelWait("outside", name, words, bool(words))
    if name in _WITH_FILE:
        return KernelWait("outside", name, _WITH_FILE[name].format(_file(pid, first)), name == "flock")
    return KernelWait("outside" if name else "unknown", name, _WORDS.get(name, ""))


def of_process(pid: int) -> KernelWait:
    """What its main thread waits for."""
    return _ENDED if _main_thread_ended(pid) else of_thread(pid, pid)


ENDED = "ended"
_ENDED = KernelWait("lock", ENDED, "its main thread has ended, and other threads keep its process alive")
"""As a lock of its own: nothing outside brings that thread back."""


def _main_thread_ended(pid: int) -> bool:
    fields = read_small(f"/proc/{pid}/task/{pid}/stat").rpartition(b")")[2].split(maxsplit=1)
    if not fields or fields[0] != b"Z":
        return False
    try:
        tasks = set(os.listdir(f"/proc/{pid}/task")) - {str(pid)}
    except OSError:
        return False
    return bool(tasks)


def waits_on(pids: tuple[int, ...]) -> WaitsOn:
    """What the threads of these processes wait for, c10d's own excepted.

    `lock` only if nothing outside these processes could wake any of them; `timer` if one of them sleeps;
    `outside` if one waits for something that another process can release; otherwise `unknown`.
    """
    locked = False
    for pid in pids:
        try:
            tasks = os.listdir(f"/proc/{pid}/task")
        except OSError:
            return "unknown"
        if len(tasks) > _MOST_THREADS or _released_by_signals(pid):
            return "unknown"
        for task in tasks:
            if task == str(pid) and _main_thread_ended(pid):
                locked = True
                continue
            if read_small(f"/proc/{pid}/task/{task}/comm").decode("utf-8", "replace").startswith(_OURS):
                continue
            found = of_thread(pid, int(task)).on
            if found != "lock":
                return found
            locked = True
    return "lock" if locked else "unknown"


def tracer(pid: int) -> str:
    """`gdb (pid 4711)`: the debugger or tracer of this process; empty if there is none."""
    by = int(_status(pid, b"TracerPid:") or b"0")
    if not by:
        return ""
    name = read_small(f"/proc/{by}/comm").decode("utf-8", "replace").strip()
    return f"{name} (pid {by})" if name else f"process {by}"


def _released_by_signals(pid: int) -> bool:
    """Whether it handles a signal with which a timer or another process may release what it waits for."""
    caught = int(_status(pid, b"SigCgt:") or b"0", 16)
    return any(caught >> (number - 1) & 1 for number in range(1, 65) if number not in _HARMLESS_SIGNALS)


def _status(pid: int, field: bytes) -> bytes:
    for line in read_small(f"/proc/{pid}/status").splitlines():
        if line.startswith(field):
            return line[len(field) :].strip()
    return b""


def _file(pid: int, descriptor: int) -> str:
    path = f"/proc/{pid}/fd/{descriptor}"
    try:
        target, mode = os.readlink(path), os.stat(path).st_mode
    except OSError:
        return "a file"
    if stat.S_ISSOCK(mode):
        return "a socket"
    if stat.S_ISFIFO(mode):
        return "a pipe" if target.startswith("pipe:") else f"the FIFO {target}"
    if stat.S_ISCHR(mode) and target.startswith(("/dev/tty", "/dev/pts")):
        return "the terminal"
    return target
