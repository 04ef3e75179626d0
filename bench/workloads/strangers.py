"""What strangers' scripts do, a fifth time by mechanisms that no rule was written for: `--odd KIND`.

As in rare.py: what is harmless ends by itself after `SECONDS`, nothing is announced, and `mine` is true on
the rank that does it, in the first life of the job.
"""

import contextlib
import ctypes
import gc
import os
import pickle
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from odd import AT, SECONDS, elsewhere
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

_kept: dict[str, object] = {}


# -- one rank, once, and it ends by itself ------------------------------------------------------
def logging_child() -> None:
    """Waits for a child that cannot log, because the fork copied a held lock; somebody kills the child."""
    lock = threading.Lock()
    lock.acquire()
    child = os.fork()
    if child == 0:
        lock.acquire()
    lock.release()
    elsewhere(lambda: os.kill(child, signal.SIGKILL))
    os.waitpid(child, 0)


def handler_reads() -> None:
    """The handler of a signal reads from a FIFO."""
    path = tempfile.mkdtemp() + "/fifo"
    os.mkfifo(path)
    signal.signal(signal.SIGUSR2, lambda *_: Path(path).read_text())
    elsewhere(lambda: open(path, "w").close())
    os.kill(os.getpid(), signal.SIGUSR2)
    time.sleep(0.1)


def recurses() -> None:
    until = time.monotonic() + SECONDS

    def fib(n: int) -> int:
        return n if n < 2 or time.monotonic() > until else fib(n - 1) + fib(n - 2)

    fib(200)


def holds_gil() -> None:
    """A thread of a library is in C and does not release the interpreter's lock."""
    threading.Thread(target=ctypes.PyDLL(None).sleep, args=(int(SECONDS),)).start()
    time.sleep(1)


def slow_pickle() -> None:
    class Slow:
        def __reduce__(self) -> tuple[type, tuple[()]]:
            time.sleep(SECONDS)
            return (list, ())

    pickle.dumps(Slow())


def store_wait() -> None:
    """Waits for a key of the job's store that somebody sets later."""
    store = dist.distributed_c10d._get_default_store()
    threading.Timer(SECONDS, lambda: store.set("strangers", "1")).start()
    store.wait(["strangers"], timedelta(seconds=2 * SECONDS))


def excepthook_reports() -> None:
    """Its error is sent somewhere before the process ends, which takes long."""
    sys.excepthook = lambda *_: time.sleep(SECONDS)
    raise RuntimeError("bad sample 17")


def zombie_child() -> None:
    """A child that nobody waits for, and a grandchild that holds its pipe."""
    read, write = os.pipe()
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            time.sleep(SECONDS)
        os._exit(0)
    os.close(write)
    os.read(read, 1)


# -- one rank, once, and it does not end ---------------------------------------------------------
class _Bad(Dataset[int]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        raise ValueError("image 17 is truncated")


def loader_raises() -> None:
    next(iter(DataLoader(_Bad(), num_workers=1)))


def raises_with_thread() -> None:
    """The script fails, and a thread that is no daemon keeps its process alive."""
    threading.Thread(target=threading.Event().wait).start()
    raise KeyError("labels")


def address_space() -> None:
    """`ulimit -v`: no more memory than it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (1 << 24),) * 2)
    bytearray(1 << 30)


def no_threads() -> None:
    """No room for one more thread."""
    resource.setrlimit(resource.RLIMIT_AS, (1 << 20, 1 << 20))
    threading.Thread(target=time.sleep, args=(1,)).start()


def exits_143() -> None:
    sys.exit(143)


def queue_of_dead_thread() -> None:
    """Its prefetching thread has died, and it waits for the next batch with a time limit, again and again."""
    empty = threading.Event()
    while not empty.wait(5):
        pass


def waits_for_itself() -> None:
    """Joins a process that is not there any more, through a pipe that it holds open itself."""
    read, _ = os.pipe()
    os.read(read, 1)


_ONCE: dict[str, Callable[[], None]] = {
    do.__name__: do
    for do in (
        logging_child, handler_reads, recurses, holds_gil, slow_pickle, store_wait, excepthook_reports,
        zombie_child, loader_raises, raises_with_thread, address_space, no_threads, exits_143,
        queue_of_dead_thread, waits_for_itself,
    )
}  # fmt: skip


# -- what involves several ranks, or many steps -------------------------------------------------
def in_step(
    kind: str,
    mine: bool,
    step: int,
    first_life: bool,
    culprit: int,
    step_s: float,
    model: DistributedDataParallel,
) -> None:
    if not first_life:
        return
    if kind in _ONCE:
        if mine and step == AT:
            _ONCE[kind]()
        return
    rank, world = dist.get_rank(), dist.get_world_size()
    second = rank == (culprit + 1) % world
    if kind in _HEALTHY:
        _HEALTHY[kind](step, step_s, mine, model)
    if step > AT:
        _slow(kind, mine, second, step, step_s)
    if kind == "no_sync_on_one" and step > AT:
        model.require_backward_grad_sync = not (mine and step % 2)
    if kind == "pinned" and step == AT and mine:
        _pinned()
    if kind == "fails_once" and step == AT:
        _fails_once(mine)
    if kind == "staggered" and step == AT:
        for one in range(world):
            if one == rank:
                time.sleep(5)
            dist.barrier()


def _slow(kind: str, mine: bool, second: bool, step: int, step_s: float) -> None:
    if kind == "flickers":
        # Now one, now the other, now both, for some steps each.
        who = random.Random(f"flicker {step // 5}").choice("ab2")
        if (mine and who in "a2") or (second and who in "b2"):
            time.sleep(step_s)
    if kind == "child_each_step" and mine:
        subprocess.run(["sleep", str(0.6 * step_s)], check=False)
    if kind == "settrace" and mine:
        sys.settrace(lambda *_: None)
        for _ in range(60):
            sorted(range(1000), key=lambda n: -n)
        sys.settrace(None)


def _pinned() -> None:
    """On a core that another program keeps busy."""
    core = max(os.sched_getaffinity(0))

    def spin() -> None:
        os.sched_setaffinity(0, {core})
        until = time.monotonic() + 2 * SECONDS
        while time.monotonic() < until:
            pass

    for _ in range(3):
        elsewhere(spin, 0.0)
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), {core})


def _fails_once(mine: bool) -> None:
    """A collective of a group of its own fails, because one comes too late; the job trains on."""
    group = dist.new_group(timeout=timedelta(seconds=1))
    if mine:
        time.sleep(1.8)
    with contextlib.suppress(RuntimeError):
        dist.all_reduce(torch.ones(4), group=group)


# -- nothing is wrong ----------------------------------------------------------------------------
def _evaluates(step: int, step_s: float, mine: bool, model: DistributedDataParallel) -> None:
    """All evaluate now and then, and share the result."""
    if step % 25 == 0:
        time.sleep(1.5)
        dist.all_reduce(torch.ones(1))


def _first_step(step: int, step_s: float, mine: bool, model: DistributedDataParallel) -> None:
    if step == 1:
        time.sleep(20)


def _joins(step: int, step_s: float, mine: bool, model: DistributedDataParallel) -> None:
    """Uneven inputs: one has fewer batches, and torch's Join takes its part."""
    if step == AT:
        with Join([model]):
            for _ in range(10 if mine else 40):
                model(torch.ones(4, 32)).sum().backward()
                time.sleep(step_s)


def _uneven_exchange(step: int, step_s: float, mine: bool, model: DistributedDataParallel) -> None:
    world, rank = dist.get_world_size(), dist.get_rank()
    to = [1 + (rank + one + step) % 3 for one in range(world)]
    come = [1 + (rank + one + step) % 3 for one in range(world)]
    dist.all_to_all_single(torch.empty(sum(come)), torch.ones(sum(to)), come, to)


def _two_threads(step: int, step_s: float, mine: bool, model: DistributedDataParallel) -> None:
    """A thread reduces in a group of its own all the time."""
    if step == 1:
        group = dist.new_group()

        def reduce() -> None:
            while True:
                dist.all_reduce(torch.ones(1), group=group)
                time.sleep(0.05)

        threading.Thread(target=reduce, daemon=True).start()


def _collects(step: int, step_s: float, mine: bool, model: DistributedDataParallel) -> None:
    """Every rank pauses now and then, as garbage collectors do, and never two at once."""
    chance = random.Random(f"{step}")
    if chance.random() < 0.1 and chance.randrange(dist.get_world_size()) == dist.get_rank():
        gc.collect()
        time.sleep(0.15)


def _objects(step: int, step_s: float, mine: bool, model: DistributedDataParallel) -> None:
    """Gathers objects, of which one rank's is large."""
    if step % 40 == 0:
        thing = os.urandom(8 << 20) if mine else b""
        gathered = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
        dist.gather_object(thing, gathered)


def _frozen_clock(step: int, step_s: float, mine: bool, model: DistributedDataParallel) -> None:
    """A test library has stopped Python's clocks."""
    if step == AT and mine:
        stood, stood_ns = time.monotonic(), time.monotonic_ns()
        time.monotonic = time.perf_counter = lambda: stood
        time.monotonic_ns = time.perf_counter_ns = lambda: stood_ns
        time.time, time.time_ns = (lambda: 1e9), (lambda: 10**18)


def _renamed(step: int, step_s: float, mine: bool, model: DistributedDataParallel) -> None:
    """Calls itself by another name, as setproctitle does."""
    if step == AT and mine:
        ctypes.CDLL(None).prctl(15, b"trainer: epoch 3", 0, 0, 0)


def _looked_at(step: int, step_s: float, mine: bool, model: DistributedDataParallel) -> None:
    """Somebody takes stacks of it again and again, and stops it for each."""
    if step == AT and mine:
        me, spy = (
            str(os.getpid()),
            shutil.which("py-spy") or os.path.join(os.path.dirname(sys.executable), "py-spy"),
        )

        def look() -> None:
            for _ in range(30):
                subprocess.run([spy, "dump", "--pid", me], check=False, capture_output=True)
                time.sleep(0.3)

        elsewhere(look, 0.0)


def _new_loaders(step: int, step_s: float, mine: bool, model: DistributedDataParallel) -> None:
    """Workers of its data loader are made anew for each short epoch."""
    if step % 30 == 0:
        for _ in DataLoader(list(range(8)), num_workers=2):
            pass


def _small_batch(step: int, step_s: float, mine: bool, model: DistributedDataParallel) -> None:
    """The last batch of an epoch is small, on all ranks; then all sleep, and make a barrier."""
    if step % 50 == 0:
        time.sleep(0.8)
        dist.barrier()


def _odd_reads(step: int, step_s: float, mine: bool, model: DistributedDataParallel) -> None:
    """Rank 0 validates for half a second in every 40th step, and the others wait."""
    if step % 40 == 0 and dist.get_rank() == 0:
        time.sleep(0.5)


def _checkpoints(step: int, step_s: float, mine: bool, model: DistributedDataParallel) -> None:
    """Rank 0 saves for minutes beside a barrier, while it writes now and then."""
    if step == AT:
        if mine:
            with tempfile.NamedTemporaryFile() as file:
                until = time.monotonic() + SECONDS
                while time.monotonic() < until:
                    file.write(os.urandom(1 << 14))
                    file.flush()
                    time.sleep(0.5)
        dist.barrier()


_HEALTHY: dict[str, Callable[[int, float, bool, DistributedDataParallel], None]] = {
    "evaluates": _evaluates,
    "first_step": _first_step,
    "joins": _joins,
    "uneven_exchange": _uneven_exchange,
    "two_threads": _two_threads,
    "collects_in_turn": _collects,
    "large_objects": _objects,
    "frozen_clock": _frozen_clock,
    "renamed": _renamed,
    "looked_at": _looked_at,
    "new_loaders": _new_loaders,
    "small_batch": _small_batch,
    "validates_on_0": _odd_reads,
    "slow_checkpoint": _checkpoints,
}
