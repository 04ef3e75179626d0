"""More of what a rank of watched.py may meet, by mechanisms that no rule was written for: `--odd KIND`.

As in hostile.py: what is harmless ends by itself after `SECONDS`, nothing is announced, and `mine` is true on
the rank that does it, in the first life of the job. Over 400 lines, because each case is a few lines of its
own and they share nothing else.
"""

import atexit
import ctypes
import fcntl
import gc
import importlib
import logging
import multiprocessing
import os
import pdb
import queue
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from odd import AT, SECONDS, elsewhere
from torch.nn.parallel import DistributedDataParallel

_kept: dict[str, object] = {}
_NEVER = 10**6


# -- one rank, once: what does not end --------------------------------------------------------
def import_lock() -> None:
    """A thread imports a module whose body waits for the main thread, which imports the same module."""
    folder = tempfile.mkdtemp()
    with open(f"{folder}/loom_bench_circle.py", "w") as file:
        file.write("import threading\nthreading.Event().wait()\n")
    sys.path.insert(0, folder)
    thread = threading.Thread(target=lambda: importlib.import_module("loom_bench_circle"), daemon=True)
    thread.start()
    while "loom_bench_circle" not in sys.modules:
        time.sleep(0.01)
    importlib.import_module("loom_bench_circle")


def full_queue() -> None:
    """Puts into a queue whose consumer has ended."""
    full: queue.Queue[int] = queue.Queue(maxsize=1)
    full.put(1)
    full.put(2)


def _fill(many: "multiprocessing.Queue[bytes]") -> None:
    for _ in range(64):
        many.put(b"x" * 65536)


def joins_before_reading() -> None:
    """Joins a child that cannot end before somebody reads its queue."""
    context = multiprocessing.get_context("fork")
    many = context.Queue()
    child = context.Process(target=_fill, args=(many,), daemon=True)
    child.start()
    child.join()


def logging_lock() -> None:
    """A thread is stuck in a log handler, whose lock the main thread wants."""
    got, give = os.pipe()
    _kept["pipe"] = got
    handler = logging.StreamHandler(os.fdopen(give, "w", buffering=1))
    log = logging.getLogger("loom-bench")
    log.addHandler(handler)
    threading.Thread(target=lambda: log.error("x" * (1 << 20)), daemon=True).start()
    time.sleep(0.5)
    log.error("one more line")


def blocked_stdout() -> None:
    """Its standard output is a pipe that nobody reads."""
    got, give = os.pipe()
    _kept["pipe"] = got
    os.dup2(give, 1)
    for _ in range(100_000):
        print("step", "x" * 100, flush=True)


def destructor() -> None:
    """Garbage collection calls a destructor that never returns."""

    class Session:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            threading.Event().wait()

    Session()
    gc.collect()


def handler_wants_lock() -> None:
    """A signal handler wants the lock that the interrupted code holds."""
    lock = threading.Lock()
    signal.signal(signal.SIGALRM, lambda *_: lock.acquire())
    with lock:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        time.sleep(5)


def forked_lock() -> None:
    """A child inherits a lock that a thread held while it was forked, and the parent waits for the child."""
    lock = threading.Lock()
    held = threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            time.sleep(2)

    threading.Thread(target=hold, daemon=True).start()
    held.wait()
    if (child := os.fork()) == 0:
        with lock:
            os._exit(0)
    os.waitpid(child, 0)


def main_thread_gone() -> None:
    """The main thread alone ends; the others live on, so the process does."""
    ctypes.CDLL(None).syscall(60, 0)  # exit, not exit_group


def becomes_another() -> None:
    """Executes another program in its place."""
    os.execvp("sleep", ["sleep", str(_NEVER)])


def store_key() -> None:
    """Waits for a key of the store that nobody sets."""
    store = dist.TCPStore("127.0.0.1", 0, 1, True, timedelta(hours=1))
    store.get("never")


def disk_full() -> None:
    with open("/dev/full", "wb") as file:
        torch.save(torch.ones(1 << 16), file)


def no_memory() -> None:
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
    _kept["much"] = torch.ones(1 << 28)


def no_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    _kept["files"] = [os.open(os.devnull, os.O_RDONLY) for _ in range(100)]


def nccl_text() -> None:
    raise RuntimeError(
        "NCCL error in: ProcessGroupNCCL.cpp:2251, unhandled system error (run with NCCL_DEBUG=INFO for "
        "details), NCCL version 2.21.5\nncclSystemError: System call (e.g. socket, malloc) or external "
        "library call failed or device error.\nLast error:\nBootstrap : no socket interface found"
    )


def cgroup_oom() -> None:
    """The kernel ends it because its memory cgroup (v1) is full."""
    cage, me = f"/sys/fs/cgroup/memory/loom-bench-{os.getpid()}", os.getpid()
    os.mkdir(cage)

    def remove() -> None:
        while os.path.exists(f"/proc/{me}/exe"):
            time.sleep(0.5)
        os.rmdir(cage)

    elsewhere(remove, 5.0)
    for name, value in (("memory.limit_in_bytes", 64 << 20), ("cgroup.procs", me)):
        with open(f"{cage}/{name}", "w") as file:
            file.write(str(value))
    time.sleep(3)
    _kept["much"] = torch.ones(1 << 28)


def seccomp() -> None:
    """Forbidden to do anything but read and write: the kernel ends it at its next call."""
    ctypes.CDLL(None).prctl(22, 1, 0, 0, 0)
    os.getppid()


# -- one rank, once: what ends by itself ------------------------------------------------------
def dns() -> None:
    """Waits for a datagram, as a resolver whose server does not answer."""
    mine = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    mine.bind(("127.0.0.1", 0))
    port = mine.getsockname()[1]
    elsewhere(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", port)))
    mine.recvfrom(512)


def silent_server() -> None:
    """An HTTP server accepts the connection and says nothing for a while."""
    server = socket.socket()
    server.bind(("127.0.0.1", 0))
    server.listen()
    port = server.getsockname()[1]

    def serve() -> None:
        other, _ = server.accept()
        other.recv(4096)
        time.sleep(SECONDS)
        other.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        other.close()

    elsewhere(serve, 0.0)
    server.close()
    with socket.create_connection(("127.0.0.1", port)) as mine:
        mine.sendall(b"GET / HTTP/1.1\r\n\r\n")
        while mine.recv(4096):
            pass


def posix_lock() -> None:
    """A lock of fcntl that a process outside the job holds."""
    ready = multiprocessing.Semaphore(0)
    path = tempfile.mkstemp()[1]

    def hold() -> None:
        with open(path, "w") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            ready.release()
            time.sleep(SECONDS)

    elsewhere(hold, 0.0)
    ready.acquire()
    with open(path, "w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)


def in_pdb() -> None:
    """A breakpoint: pdb waits for a command, which comes after a while."""
    path = tempfile.mkdtemp() + "/commands"
    os.mkfifo(path)
    both = os.open(path, os.O_RDWR)  # so that no end of it waits for the other to be opened
    elsewhere(lambda: os.write(both, b"continue\n"))
    with os.fdopen(both) as commands:
        pdb.Pdb(stdin=commands, stdout=sys.stdout).set_trace()
        time.sleep(0.1)


def profiles() -> None:
    """Exports the trace of a profiler, which takes long."""
    until = time.monotonic() + SECONDS / 2
    with torch.profiler.profile(record_shapes=True, with_stack=True) as profile:
        net = torch.nn.Linear(8, 8)
        while time.monotonic() < until:
            net(torch.ones(4, 8)).sum().backward()
    profile.export_chrome_trace(tempfile.mkdtemp() + "/trace.json")


def stopped_and_continued() -> None:
    """Somebody stops it and lets it continue at once, several times: a debugger that samples stacks."""
    me = os.getpid()

    def sample() -> None:
        for _ in range(40):
            os.kill(me, signal.SIGSTOP)
            time.sleep(0.1)
            os.kill(me, signal.SIGCONT)
            time.sleep(0.4)

    elsewhere(sample, 0.0)


def sorts() -> None:
    """One call of C code that holds the interpreter's lock and computes."""
    until = time.monotonic() + SECONDS / 2
    values = list(range(3_000_000))
    while time.monotonic() < until:
        sorted(values, key=lambda v: v * 7919 % 1_000_003)


def copies() -> None:
    """Copies a data set to the local disk with a child."""
    source, to = tempfile.mkdtemp(), tempfile.mkdtemp()
    with open(source + "/data", "wb") as file:
        file.write(os.urandom(1 << 22))
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        os.system(f"cp {source}/data {to}/data; sleep 0.5")


_ONCE: dict[str, Callable[[], None]] = {
    do.__name__: do
    for do in (
        import_lock, full_queue, joins_before_reading, logging_lock, blocked_stdout, destructor,
        handler_wants_lock, forked_lock, main_thread_gone, becomes_another, store_key, disk_full, no_memory,
        no_descriptors, nccl_text, cgroup_oom, seccomp, dns, silent_server, posix_lock, in_pdb, profiles,
        stopped_and_continued, sorts, copies,
    )
}  # fmt: skip


# -- what involves several ranks --------------------------------------------------------------
class Two(torch.nn.Module):
    """Of two layers one is not always used, which DDP has not been told."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: torch.Tensor, short: bool) -> torch.Tensor:
        first: torch.Tensor = self.layers[0](x)
        return first if short else self.layers[1](first)


class Slow:
    """Takes long to be pickled."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        time.sleep(SECONDS)
        return (list, ())


def _suspend() -> None:
    """Stops itself; somebody outside lets it continue, as after a suspended laptop or job."""
    me = os.getpid()
    elsewhere(lambda: os.kill(me, signal.SIGCONT))
    os.kill(me, signal.SIGSTOP)


def _fcntl_of_peer(mine: bool, step: int, holder: bool) -> None:
    """A rank holds a lock while it waits for the others in a collective; one of them wants the lock."""
    path = os.path.join(tempfile.gettempdir(), f"loom-bench-{os.environ['MASTER_PORT']}.lock")
    if holder and step == AT:
        _kept["lock"] = open(path, "w")  # noqa: SIM115 - held until the process ends
        fcntl.lockf(_kept["lock"], fcntl.LOCK_EX)  # type: ignore[arg-type]
    if mine and step == AT + 1:
        with open(path, "w") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)


def in_step(kind: str, mine: bool, step: int, first_life: bool, culprit: int) -> None:
    if not first_life:
        return
    if kind in _ONCE:
        if mine and step == AT:
            _ONCE[kind]()
        return
    rank, world = dist.get_rank(), dist.get_world_size()
    if kind == "short_timeout" and step == 1:
        _kept["short"] = dist.new_group(timeout=timedelta(seconds=12))
    if kind == "unused":
        two = _kept.setdefault("two", DistributedDataParallel(Two())) if step == 1 else _kept["two"]
        two(torch.ones(2, 4), mine and step >= AT).sum().backward()  # type: ignore[operator]
    if kind == "fcntl_of_peer":
        _fcntl_of_peer(mine, step, rank == (culprit + 1) % world)
    if step != AT:
        return
    match kind:
        case "suspended":
            _suspend()
        case "at_exit" if mine:
            atexit.register(threading.Event().wait)
        case "thread_at_exit" if mine:
            threading.Thread(target=threading.Event().wait).start()
        case "pickles":
            dist.all_gather_object([None] * world, Slow() if mine else 1)
        case "short_timeout":
            if mine:
                time.sleep(SECONDS)
            dist.all_reduce(torch.ones(1), group=_kept["short"])  # type: ignore[arg-type]
        case "monitored":
            if mine:
                time.sleep(SECONDS)
            dist.monitored_barrier(timeout=timedelta(seconds=2 * SECONDS))
        case "new_group_left_out" if not mine:
            dist.new_group(list(range(world)))
        case "all_to_all":
            sizes = [2] * world
            if mine:
                sizes[(rank + 1) % world] = 3
            dist.all_to_all_single(torch.empty(2 * world), torch.ones(sum(sizes)), [2] * world, sizes)
        case "gather_for_all_gather":
            part = torch.ones(4)
            if mine:
                dist.reduce(part, culprit)
            else:
                dist.all_gather([torch.empty(4) for _ in range(world)], part)
        case "recv_from_nobody" if mine:
            dist.recv(torch.ones(1), (rank + 1) % world)
        case "more_batches" if not mine:
            dist.barrier()
        case "lr_finder":
            net = torch.nn.Linear(64, 64)
            for power in range(60):
                optimizer = torch.optim.SGD(net.parameters(), lr=10 ** (power / 20 - 3))
                net(torch.ones(4, 64)).sum().backward()
                time.sleep(0.1)
                optimizer.step()
