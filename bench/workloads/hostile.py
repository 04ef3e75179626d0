"""Faults of watched.py that a hostile tester would choose, and what only looks like one: `--odd KIND`.

As in odd.py: what is harmless ends by itself after `SECONDS`, and nothing is announced. `mine` is true on the
rank that does it, in the first life of the job.
"""

import ctypes
import fcntl
import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from odd import AT, SECONDS, elsewhere

_groups: dict[str, dist.ProcessGroup] = {}


# -- one rank, once: what ends by itself -------------------------------------------------------
def disk_wait() -> None:
    """In state D: a child shares its memory until it has opened a FIFO."""
    path = tempfile.mkdtemp() + "/fifo"
    os.mkfifo(path)
    elsewhere(lambda: open(path, "w").close())
    opened = [(os.POSIX_SPAWN_OPEN, 0, path, os.O_RDONLY, 0)]
    os.waitpid(os.posix_spawn("/bin/true", ["true"], {}, file_actions=opened), 0)


def frozen() -> None:
    """In a frozen cgroup (v1), thawed from outside."""
    cage = f"/sys/fs/cgroup/freezer/loom-bench-{os.getpid()}"
    os.mkdir(cage)
    me = os.getpid()

    def say(name: str, value: str) -> None:
        with open(f"{cage}/{name}", "w") as file:
            file.write(value)

    def thaw() -> None:
        say("freezer.state", "THAWED")
        with open("/sys/fs/cgroup/freezer/cgroup.procs", "w") as file:
            file.write(str(me))
        time.sleep(1)
        os.rmdir(cage)

    elsewhere(thaw)
    say("cgroup.procs", str(me))
    elsewhere(lambda: say("freezer.state", "FROZEN"), 0.0)
    time.sleep(2)


def full_pipe() -> None:
    """Its log goes through a pipe that nobody reads for a while."""
    slow = f"import time, sys; time.sleep({SECONDS}); sys.stdin.read()"
    reader = subprocess.Popen([sys.executable, "-c", slow], stdin=subprocess.PIPE)
    assert reader.stdin is not None
    reader.stdin.write(b"x" * (1 << 20))
    reader.stdin.close()
    reader.wait()


def sleeps_in_child() -> None:
    subprocess.run(["sleep", str(SECONDS)], check=True)


def computes_in_child() -> None:
    subprocess.run(
        [sys.executable, "-c", f"import time\nwhile time.process_time() < {SECONDS / 3}: pass"], check=True
    )


def sleeps() -> None:
    time.sleep(SECONDS)


def polls() -> None:
    """Waits for a file that somebody else writes."""
    path = tempfile.mkdtemp() + "/ready"
    elsewhere(lambda: open(path, "w").close())
    while not os.path.exists(path):
        time.sleep(0.5)


def event_from_thread() -> None:
    """The main thread waits for a lock, and a thread that releases it reads from a pipe."""
    got, give = os.pipe()
    elsewhere(lambda: os.write(give, b"x"))
    done = threading.Event()
    threading.Thread(target=lambda: (os.read(got, 1), done.set()), daemon=True).start()
    done.wait()


def event_from_signal() -> None:
    done = threading.Event()
    me = os.getpid()
    signal.signal(signal.SIGUSR1, lambda *_: done.set())
    elsewhere(lambda: os.kill(me, signal.SIGUSR1))
    done.wait()


def collects() -> None:
    """Garbage collections that take seconds."""
    keep = [[] for _ in range(3_000_000)]
    for one in keep:
        one.append(one)
    until = time.monotonic() + SECONDS / 2
    while time.monotonic() < until:
        gc.collect()


def validates() -> None:
    """One rank evaluates, the others stand in the barrier behind it."""
    net, until = torch.nn.Linear(256, 256), time.monotonic() + SECONDS
    with torch.no_grad():
        while time.monotonic() < until:
            net(torch.randn(64, 256))


def writes() -> None:
    """One rank writes a checkpoint, slowly and with pauses, as a full NFS server has it written."""
    until = time.monotonic() + SECONDS
    with tempfile.NamedTemporaryFile() as file:
        while time.monotonic() < until:
            file.write(os.urandom(1 << 16))
            file.flush()
            os.fsync(file.fileno())
            time.sleep(1)


def compiles() -> None:
    """One rank compiles several functions."""

    def make(n: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def f(x: torch.Tensor) -> torch.Tensor:
            for i in range(n):
                x = torch.sin(x) * i + x.softmax(-1)
            return x

        return f

    until, n = time.monotonic() + SECONDS, 3
    while time.monotonic() < until:
        torch.compile(make(n), dynamic=False)(torch.randn(8, 8 + n))
        n += 1


def held_by_gdb() -> None:
    me = os.getpid()
    ctypes.CDLL(None).prctl(0x59616D61, -1, 0, 0, 0)
    gdb = ["gdb", "-p", str(me), "--batch", "-nx", "-ex", f"shell sleep {SECONDS}"]
    subprocess.Popen(gdb, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    time.sleep(2)


def under_strace() -> None:
    """It trains on while strace counts its system calls."""
    me = os.getpid()
    ctypes.CDLL(None).prctl(0x59616D61, -1, 0, 0, 0)
    strace = ["timeout", str(SECONDS), "strace", "-c", "-f", "-p", str(me), "-o", "/dev/null"]
    subprocess.Popen(strace, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)


def prints_in_a_loop() -> None:
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        print("retrying …", flush=True)
        time.sleep(0.05)


def downloads() -> None:
    """Receives a little now and then from a server that is slow."""
    got, give = os.pipe()
    if os.fork() == 0:
        os.close(got)
        for _ in range(int(SECONDS)):
            os.write(give, b"x" * 6000)
            time.sleep(1)
        os._exit(0)
    os.close(give)
    while os.read(got, 65536):
        pass
    os.wait()


# -- one rank, once: what does not end --------------------------------------------------------
def leaves_at_once() -> None:
    os._exit(0)


def lock_order() -> None:
    """Two threads take two locks in different orders, and the main thread waits for both."""
    one, two, both = threading.Lock(), threading.Lock(), threading.Barrier(2)

    def take(first: threading.Lock, second: threading.Lock) -> None:
        with first:
            both.wait()
            with second:
                pass

    threads = [threading.Thread(target=take, args=pair, daemon=True) for pair in ((one, two), (two, one))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def lost_thread() -> None:
    """A thread dies of its exception, and the main thread waits for its answer."""
    import queue

    answers: queue.Queue[int] = queue.Queue()
    threading.Thread(target=lambda: answers.put(1 // 0), daemon=True).start()
    answers.get()


def segfault() -> None:
    ctypes.string_at(0)


def aborts() -> None:
    os.abort()


def overflows() -> None:
    overflows()


def exit_text() -> None:
    sys.exit("cannot open the tokenizer")


def terminated() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)


def interrupted() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)


def endless() -> None:
    while True:
        print("retrying …", flush=True)
        time.sleep(0.2)


def stops_child() -> None:
    """A data worker is stopped."""
    import multiprocessing

    os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGSTOP)


def kills_child() -> None:
    import multiprocessing

    os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)


_ONCE = {
    do.__name__: do
    for do in (
        disk_wait, frozen, full_pipe, sleeps_in_child, computes_in_child, sleeps, polls, event_from_thread,
        event_from_signal, collects, compiles, held_by_gdb, under_strace, prints_in_a_loop, downloads,
        leaves_at_once, lock_order, lost_thread, segfault, aborts, overflows, exit_text, terminated,
        interrupted, endless, stops_child, kills_child,
    )
}  # fmt: skip
LOADERS = frozenset({"stops_child", "kills_child"})
"""Kinds that need data workers."""


# -- what involves several ranks --------------------------------------------------------------
def in_step(kind: str, mine: bool, step: int, first_life: bool, culprit: int) -> None:
    if kind == "under_strace":
        for _ in range(200):  # what reading many small files costs, and a tracer makes dear
            os.stat("/")
    if kind in _ONCE:
        if mine and step == AT:
            _ONCE[kind]()
        return
    rank, world = dist.get_rank(), dist.get_world_size()
    if step == 1 and kind in ("wrong_group", "two_groups"):
        halves = [[r for r in range(world) if r % 2 == half] for half in (0, 1)]
        made = [dist.new_group(ranks) for ranks in halves]
        _groups["half"] = made[rank % 2]
        _groups["pair"] = dist.new_group([0, 1])
    if not first_life or step < AT:
        if kind == "two_groups":
            dist.all_reduce(torch.ones(1), group=_groups["half"])
        return
    if kind == "all_sleep" and step == AT:
        time.sleep(SECONDS)
    if kind in ("validates", "writes") and step == AT:
        if mine:
            {"validates": validates, "writes": writes}[kind]()
        dist.barrier()
    if kind == "wrong_group" and step == AT and rank == 0:
        dist.barrier(_groups["pair"])
    if kind == "two_groups":
        if step == AT and (mine or rank == (culprit + 1) % world):
            os.kill(os.getpid(), signal.SIGSTOP)
        dist.all_reduce(torch.ones(1), group=_groups["half"])
    if kind == "shape" and step == AT:
        part = torch.ones(3 if mine else 2)
        dist.all_gather([torch.ones_like(part) for _ in range(world)], part)
    if kind == "objects" and step % 10 == 0:
        got: list[object] = [None] * world
        dist.all_gather_object(got, "x" * (1 + 5000 * rank))
        dist.broadcast_object_list(["y" * step * 100 if rank == 0 else None], 0)
    if kind == "fewer_batches" and mine and step == AT:
        dist.barrier()
    if kind == "flock_of_peer":
        _flock_of_peer(mine, step, rank == (culprit + 1) % world)


def _flock_of_peer(mine: bool, step: int, holder: bool) -> None:
    """A rank holds a file lock while it waits for the others in a collective; one of them wants the lock."""
    path = os.path.join(tempfile.gettempdir(), f"loom-bench-{os.getppid()}.lock")
    if holder and step == AT:
        file = open(path, "w")  # noqa: SIM115 - held until the process ends
        fcntl.flock(file, fcntl.LOCK_EX)
        _held.append(file)
    if mine and step == AT + 1:
        with open(path, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)


_held: list[object] = []


def sleeping_hook(kind: str, mine: bool) -> Callable[..., object] | None:
    """A hook of DDP that sleeps once, inside of what others take for the collective."""
    if kind != "hook":
        return None
    calls = 0

    def hook(_state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        nonlocal calls
        calls += 1
        if mine and calls == AT:
            time.sleep(SECONDS)
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda f: f.value()[0] / dist.get_world_size())

    return hook
