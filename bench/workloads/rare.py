"""What a rank of watched.py may meet, a fourth time by mechanisms that no rule was written for: `--odd KIND`.

As in uncommon.py: what is harmless ends by itself after `SECONDS`, nothing is announced, and `mine` is true
on the rank that does it, in the first life of the job.
"""

import contextlib
import ctypes
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from odd import AT, SECONDS, elsewhere

_kept: dict[str, object] = {}


# -- one rank, once ----------------------------------------------------------------------------
def gil_futex() -> None:
    """Takes a mutex of C twice, with the interpreter's lock held all the time."""
    libc = ctypes.PyDLL(None)
    mutex = ctypes.create_string_buffer(64)
    libc.pthread_mutex_init(mutex, None)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)


def restarts_itself() -> None:
    """Executes its own script again, as some launchers do after an error."""
    os.execv(sys.executable, [sys.executable, *sys.argv])


def exit_in_thread() -> None:
    """A thread ends the whole process, as a watchdog of its own does."""
    threading.Thread(target=os._exit, args=(3,)).start()
    time.sleep(5)


def saves_on_term() -> None:
    """Somebody sends SIGTERM, and its handler saves for a while; then it trains on."""
    signal.signal(signal.SIGTERM, lambda *_: time.sleep(SECONDS))
    me = os.getpid()
    elsewhere(lambda: os.kill(me, signal.SIGTERM), 0.5)


def thread_sleeps() -> None:
    """Waits for a lock that a sleeping thread will release."""
    lock = threading.Lock()
    lock.acquire()
    threading.Thread(target=lambda: (time.sleep(SECONDS), lock.release()), daemon=True).start()
    lock.acquire()


def computes_in_thread() -> None:
    """Waits for a thread that computes in C, without the interpreter's lock."""

    def compute() -> None:
        one, until = torch.randn(256, 256), time.monotonic() + SECONDS
        while time.monotonic() < until:
            one = (one @ one).tanh()

    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()


def cpulimit() -> None:
    """A program that limits CPU use stops and continues it ten times a second."""
    me = os.getpid()

    def limit() -> None:
        for _ in range(int(SECONDS / 0.1)):
            os.kill(me, signal.SIGSTOP)
            time.sleep(0.05)
            os.kill(me, signal.SIGCONT)
            time.sleep(0.05)

    elsewhere(limit, 0.0)


def nice() -> None:
    """Its priority is lowered while other programs want the cores."""

    def spin() -> None:
        until = time.monotonic() + 2 * SECONDS
        while time.monotonic() < until:
            pass

    for _ in range(2):
        elsewhere(spin, 0.0)
    for thread in os.listdir("/proc/self/task"):
        os.setpriority(os.PRIO_PROCESS, int(thread), 8)
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as file:
        file.write("8")  # where the kernel shares the cores between sessions first


_ONCE: dict[str, Callable[[], None]] = {
    do.__name__: do
    for do in (
        gil_futex, restarts_itself, exit_in_thread, saves_on_term, thread_sleeps, computes_in_thread,
        cpulimit, nice,
    )
}  # fmt: skip


# -- what involves several ranks, or many steps -------------------------------------------------
def in_step(kind: str, mine: bool, step: int, first_life: bool, culprit: int, step_s: float) -> None:
    if not first_life:
        return
    if kind in _ONCE:
        if mine and step == AT:
            _ONCE[kind]()
        return
    rank, world = dist.get_rank(), dist.get_world_size()
    second = rank == (culprit + 1) % world
    if kind == "slow_start" and mine:
        time.sleep(0.4 * step_s)
    if kind == "profiles_all":
        _profile(step)
    if kind == "swapped" and step <= AT:
        parts = [lambda: dist.broadcast(torch.ones(8), 0), lambda: dist.all_reduce(torch.ones(8))]
        for part in reversed(parts) if mine and step == AT else parts:
            part()
    if step > AT:
        _slow(kind, mine, second, rank == (culprit + 2) % world, step, step_s)
    if step != AT:
        return
    match kind:
        case "two_stopped" if mine or second:
            os.kill(os.getpid(), signal.SIGSTOP)
        case "late_group":
            if mine:
                time.sleep(SECONDS)
            dist.new_group(list(range(world)))


def _slow(kind: str, mine: bool, second: bool, third: bool, step: int, step_s: float) -> None:
    chance = _kept.setdefault("chance", random.Random(step))
    assert isinstance(chance, random.Random)
    if kind == "irregular" and mine and chance.random() < 0.1:
        time.sleep(3 * step_s)
    if kind == "every_third" and mine and step % 3 == 0:
        time.sleep(step_s)
    if kind == "three_slow" and (mine or second or third):
        time.sleep(0.8 * step_s)


def _profile(step: int) -> None:
    """All ranks look at fifty of their steps with torch's profiler."""
    if step == AT:
        _kept["profile"] = torch.profiler.profile(record_shapes=True)
        _kept["profile"].__enter__()  # type: ignore[attr-defined]
    if step == AT + 50:
        _kept["profile"].__exit__(None, None, None)  # type: ignore[attr-defined]


def slow_hook(kind: str, mine: bool, step_s: float) -> Callable[..., object] | None:
    """A hook of DDP that takes long on one rank, from a step on: between two parts of a collective step."""
    if kind != "hook_slow":
        return None
    calls = 0

    def hook(_state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        nonlocal calls
        calls += 1
        if mine and calls > AT:
            time.sleep(0.6 * step_s)
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda f: f.value()[0] / dist.get_world_size())

    return hook
