"""The wall clock of single processes jumps, as if their host's had been set. For tests; needs root.

The kernel has one wall clock for all (a time namespace shifts only the clocks that count from boot). Programs
read it through the vDSO, code that the kernel maps into each of them; those written in Go do, too. Here the
functions of the vDSO that return the wall clock are replaced by ones that ask the kernel and add a number of
seconds. Other processes and other clocks stay as they are, and so do time stamps of files. Not covered: who
asks the kernel without the vDSO, and a process that starts later (repeat the jump for it).
"""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import struct
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

CLOCK_GETTIME, GETTIMEOFDAY, TIME = 228, 96, 201
"""Numbers of the system calls on x86-64."""
_DYNSYM = 11
_STOPPED_WITHIN_S = 10.0


def why_not() -> str:
    """Why no clock can jump here; empty if one can."""
    if os.geteuid() != 0:
        return "only root may write to the memory of other processes"
    if platform.machine() != "x86_64":
        return f"the replaced functions are written for x86_64, and this is {platform.machine()}"
    return "" if _places() else "the kernel maps no vDSO"


def jump(pid: int, seconds: int) -> bool:
    """Set the wall clock of a process so many seconds ahead of the kernel's (0: it is right again). False if
    the process has ended. Stops the process for a moment."""
    try:
        begin, end = _vdso(pid)
        with _stopped(pid, begin, end), open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
            for place, code in _replacements(seconds):
                memory.seek(begin + place)
                memory.write(code)
        return True
    except (OSError, ValueError):
        if os.path.exists(f"/proc/{pid}/maps") and Path(f"/proc/{pid}/cmdline").read_bytes():
            raise
        return False


def _replacements(seconds: int) -> list[tuple[int, bytes]]:
    """Where in the vDSO to write what."""
    made = {"clock_gettime": _clock_gettime(seconds), "gettimeofday": _gettimeofday(seconds)}
    made["time"] = _time(seconds)
    found = [(place, made[name]) for name, place in _places().items()]
    ends = sorted(place for place, _ in found)
    for place, code in found:
        assert not any(place < other < place + len(code) for other in ends), "they would overlap"
    return found


def _clock_gettime(seconds: int) -> bytes:
    """Also for the coarse wall clock (5): `(which, timespec *)`."""
    return (
        bytes.fromhex(
            "b8 e4000000 0f05"  # mov eax, 228; syscall
            "85 c0 75 13"  # test eax, eax; jnz end
            "85 ff 74 05"  # test edi, edi; jz add
            "83 ff 05 75 0a"  # cmp edi, 5; jne end
            "48 81 06"  # add: add qword [rsi], seconds
        )
        + struct.pack("<i", seconds)
        + bytes.fromhex("31 c0 90 c3")
    )  # xor eax, eax; nop; end: ret


def _gettimeofday(seconds: int) -> bytes:
    """`(timeval *, timezone *)`."""
    return (
        bytes.fromhex(
            "b8 60000000 0f05"  # mov eax, 96; syscall
            "48 85 ff 74 07"  # test rdi, rdi; jz end
            "48 81 07"  # add qword [rdi], seconds
        )
        + struct.pack("<i", seconds)
        + bytes.fromhex("c3")
    )  # end: ret


def _time(seconds: int) -> bytes:
    """`(time_t *)`."""
    return (
        bytes.fromhex(
            "57 31 ff b8 c9000000 0f05 5f"  # push rdi; xor edi, edi; mov eax, 201; syscall; pop rdi
            "48 05"  # add rax, seconds
        )
        + struct.pack("<i", seconds)
        + bytes.fromhex(
            "48 85 ff 74 03"  # test rdi, rdi; jz end
            "48 89 07"  # mov [rdi], rax
            "c3"  # end: ret
        )
    )


def _vdso(pid: int) -> tuple[int, int]:
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if line.endswith("[vdso]"):
            begin, end = line.split()[0].split("-")
            return int(begin, 16), int(end, 16)
    raise ValueError(f"process {pid} has no vDSO")


@cache
def _places() -> dict[str, int]:
    """Where in the vDSO each function begins: it is the same in all processes of one kernel."""
    try:
        begin, end = _vdso(os.getpid())
    except (OSError, ValueError):
        return {}
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        memory.seek(begin)
        image = memory.read(end - begin)
    table, size, count = struct.unpack_from("<Q10xHH", image, 40)
    sections = [struct.unpack_from("<IIQQQQIIQQ", image, table + size * one) for one in range(count)]
    found = {}
    for _, kind, _, _, at, length, link, _, _, each in sections:
        if kind == _DYNSYM:
            names = sections[link][4]
            for symbol in range(at, at + length, each):
                name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", image, symbol)
                text = image[names + name : image.index(b"\0", names + name)].decode()
                if text in ("__vdso_clock_gettime", "__vdso_gettimeofday", "__vdso_time"):
                    found[text.removeprefix("__vdso_")] = value
    return found


@contextlib.contextmanager
def _stopped(pid: int, begin: int, end: int) -> Iterator[None]:
    """All threads of a process stand still, and none of them in this range of addresses."""
    if _states(pid) <= {"T"}:  # somebody else stopped it; it stays so
        yield
        return
    deadline = time.monotonic() + _STOPPED_WITHIN_S
    try:
        while True:
            os.kill(pid, signal.SIGSTOP)
            while not _states(pid) <= {"T"}:
                if time.monotonic() > deadline:
                    raise OSError(f"process {pid} did not stop")
                time.sleep(0.001)
            if not any(begin <= at < end for at in _instructions(pid)):
                break
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.001)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _states(pid: int) -> set[str]:
    found = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return {text.rpartition(") ")[2][0] for text in found}


def _instructions(pid: int) -> list[int]:
    """Where each thread that stands still would go on; system calls return to their caller."""
    found = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/syscall")]
    return [int(words[-1], 16) for words in found if words[-1] != "running"]
