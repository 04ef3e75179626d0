"""Still more of what a rank of watched.py may meet, tried after all rules were written: `--odd KIND`.

As in unseen.py: what is harmless ends by itself after `SECONDS`, nothing is announced, and `mine` is true on
the rank that does it, in the first life of the job. Over 400 lines, because each case is a few lines of its
own and they share nothing else.
"""

import asyncio
import atexit
import concurrent.futures
import contextlib
import ctypes
import fcntl
import mmap
import multiprocessing
import os
import resource
import select
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

_kept: dict[str, object] = {}
_LIBC = ctypes.CDLL(None, use_errno=True)


# -- one rank, once: what another process, a timer or a person ends ----------------------------
def eventfd() -> None:
    event = os.eventfd(0)
    elsewhere(lambda: os.eventfd_write(event, 1))
    os.eventfd_read(event)


def inotify() -> None:
    """Waits for the kernel to report a new file."""
    folder = tempfile.mkdtemp()
    watch = _LIBC.inotify_init()
    _LIBC.inotify_add_watch(watch, folder.encode(), 0x100)  # IN_CREATE
    elsewhere(lambda: open(folder + "/done", "w").close())
    os.read(watch, 4096)


def timer() -> None:
    """Waits with epoll for a pipe to which a child of a child writes."""
    got, give = os.pipe()
    elsewhere(lambda: os.write(give, b"x"))
    poll = select.epoll()
    poll.register(got, select.EPOLLIN)
    poll.poll()


def signal_wait() -> None:
    me = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    elsewhere(lambda: os.kill(me, signal.SIGUSR2))
    signal.sigwait({signal.SIGUSR2})


def system_v() -> None:
    """A System V semaphore that another process raises."""
    number = _LIBC.semget(0, 1, 0o600)  # IPC_PRIVATE
    down, up = (ctypes.c_short * 3)(0, -1, 0), (ctypes.c_short * 3)(0, 1, 0)
    elsewhere(lambda: _LIBC.semop(number, up, 1))
    _LIBC.semop(number, down, 1)
    _LIBC.semctl(number, 0, 0)  # IPC_RMID


def shared_mutex() -> None:
    """A robust mutex of pthreads in shared memory, held by a process that ends: its owner died."""
    memory = mmap.mmap(-1, 4096)
    mutex = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    attributes = ctypes.create_string_buffer(64)
    _LIBC.pthread_mutexattr_init(attributes)
    _LIBC.pthread_mutexattr_setpshared(attributes, 1)
    _LIBC.pthread_mutexattr_setrobust(attributes, 1)
    _LIBC.pthread_mutex_init(ctypes.c_void_p(mutex), attributes)
    ready = multiprocessing.Semaphore(0)

    def hold() -> None:
        _LIBC.pthread_mutex_lock(ctypes.c_void_p(mutex))
        ready.release()
        time.sleep(SECONDS)

    elsewhere(hold, 0.0)
    ready.acquire()
    _LIBC.pthread_mutex_lock(ctypes.c_void_p(mutex))


def _notify(condition: object) -> None:
    time.sleep(SECONDS)
    with condition:  # type: ignore[attr-defined]
        condition.notify_all()  # type: ignore[attr-defined]


def manager() -> None:
    """A condition of a multiprocessing manager, which a child notifies."""
    context = multiprocessing.get_context("fork")
    with context.Manager() as served:
        condition = served.Condition()
        child = context.Process(target=_notify, args=(condition,), daemon=True)
        with condition:
            child.start()
            condition.wait()
        child.join()


def _tokenize(number: int) -> int:
    until = time.process_time() + 0.2
    while time.process_time() < until:
        number = number * 31 % 1_000_003
    return number


def pool() -> None:
    """The workers of a pool tokenize; the rank itself only waits for them."""
    until = time.monotonic() + SECONDS
    with multiprocessing.get_context("fork").Pool(1) as workers:
        while time.monotonic() < until:
            workers.map(_tokenize, range(8))


def timed_waits() -> None:
    """A wait with a time limit, again and again, for something that a thread sees at last."""
    done = threading.Event()
    until = time.monotonic() + SECONDS
    threading.Thread(target=lambda: (time.sleep(until - time.monotonic()), done.set()), daemon=True).start()
    while not done.wait(1.0):
        pass


def event_loop() -> None:
    """An asyncio loop with nothing to do until a timer fires."""
    asyncio.run(asyncio.sleep(SECONDS))


def asks() -> None:
    """input() waits for a person, who answers at last."""
    got, give = os.pipe()
    os.dup2(got, 0)
    sys.stdin = os.fdopen(0)
    elsewhere(lambda: os.write(give, b"y\n"))
    input("Overwrite the old run? [y/n] ")


def backward_hook() -> None:
    """A hook of autograd sleeps, in the thread of the backward pass."""
    value = torch.ones(4, requires_grad=True)
    value.register_hook(lambda _: time.sleep(SECONDS))
    value.sum().backward()


def floods() -> None:
    """A thread writes a great deal to the log while the rank trains."""

    def write() -> None:
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            print("debug " * 200, flush=True)
            time.sleep(0.001)

    threading.Thread(target=write, daemon=True).start()


def broken_thread() -> None:
    """A thread of its own raises, and nobody needs it."""
    threading.Thread(target=lambda: 1 // 0).start()


def alarm() -> None:
    """Waits for a lock that a signal handler releases when the kernel's timer fires."""
    lock = threading.Lock()
    lock.acquire()
    signal.signal(signal.SIGALRM, lambda *_: lock.release())
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    lock.acquire()


def fuse() -> None:
    """Looks into a file system whose server does not answer, as a network file system that is away."""
    folder, server = tempfile.mkdtemp(), os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()
    if _LIBC.mount(b"loom-bench", folder.encode(), b"fuse", 0, options):
        raise OSError(ctypes.get_errno(), "mount")
    elsewhere(lambda: _LIBC.umount2(folder.encode(), 1))  # MNT_FORCE: whoever waits gets an error
    os.set_inheritable(server, False)
    with contextlib.suppress(OSError):
        os.listdir(folder)
    os.close(server)


def many_children() -> None:
    """Starts many programs that do nothing, and waits for them."""
    children = [subprocess.Popen(["sleep", str(SECONDS)]) for _ in range(40)]
    for child in children:
        child.wait()


def _relearn() -> None:
    """Two generations of a process: the one that works is a grandchild."""
    if os.fork() == 0:
        until = time.process_time() + SECONDS / 3
        while time.process_time() < until:
            pass
        os._exit(0)
    os.wait()
    os._exit(0)


def grandchild() -> None:
    if (child := os.fork()) == 0:
        _relearn()
    os.waitpid(child, 0)


# -- one rank, once: what does not end ---------------------------------------------------------
def lock_of_the_dead() -> None:
    """A lock whose thread has ended without releasing it."""
    lock = threading.Lock()
    thread = threading.Thread(target=lock.acquire)
    thread.start()
    thread.join()
    lock.acquire()


def nested_pool() -> None:
    """The only thread of a pool waits for what the same pool should do next."""
    pool = concurrent.futures.ThreadPoolExecutor(1)
    pool.submit(lambda: pool.submit(int).result()).result()


def exits_well() -> None:
    """An error, and a handler at the end that makes it code 0."""
    atexit.register(os._exit, 0)
    raise RuntimeError("out of tokens")


def full_socket() -> None:
    """Writes to a socket whose other end is its own and is never read."""
    import socket

    mine, other = socket.socketpair()
    _kept["other"] = other
    while True:
        mine.sendall(b"x" * 65536)


def closes_sockets() -> None:
    """Closes all its descriptors, as a careless daemon does."""
    os.closerange(3, 1024)


def bus_error() -> None:
    """Reads a mapped file behind its new end, as after a shared memory that was full."""
    with tempfile.TemporaryFile() as file:
        file.truncate(1 << 20)
        mapped = mmap.mmap(file.fileno(), 1 << 20)
        file.truncate(0)
        print(mapped[4096])


def cpu_limit() -> None:
    """The kernel ends it because it used up its CPU time."""
    used = int(time.process_time()) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (used, used + 1))
    while True:
        pass


def hook_raises() -> None:
    """A hook of autograd raises in the backward pass."""
    value = torch.ones(4, requires_grad=True)
    value.register_hook(lambda _: 1 // 0)
    value.sum().backward()


_ONCE: dict[str, Callable[[], None]] = {
    do.__name__: do
    for do in (
        eventfd, inotify, timer, signal_wait, system_v, shared_mutex, manager, pool, alarm, fuse, timed_waits,
        event_loop, asks, backward_hook, floods, broken_thread, many_children, grandchild, lock_of_the_dead,
        nested_pool, exits_well, full_socket, closes_sockets, bus_error, cpu_limit, hook_raises,
    )
}  # fmt: skip


# -- what involves several ranks ---------------------------------------------------------------
def in_step(kind: str, mine: bool, step: int, first_life: bool, culprit: int, step_s: float) -> None:
    if not first_life:
        return
    if kind in _ONCE:
        if mine and step == AT:
            _ONCE[kind]()
        return
    rank, world = dist.get_rank(), dist.get_world_size()
    second = rank == (culprit + 1) % world
    if step > AT:
        _slow(kind, mine, second, step, step_s)
    if kind == "flock_circle":
        _flock_circle(mine, second, step)
    if kind in ("tensor_parallel", "reversed_group", "other_type") and step == 1:
        pairs = [dist.new_group([one for one in (r, r + 1) if one < world]) for r in range(0, world, 2)]
        _kept["pair"] = pairs[rank // 2]
        _kept["all"] = dist.new_group(list(range(world))[:: -1 if mine else 1])
    if kind == "tensor_parallel":
        if mine and step == AT:
            time.sleep(SECONDS)
        dist.all_reduce(torch.ones(8), group=_kept["pair"])  # type: ignore[arg-type]
    if kind == "reversed_group":
        dist.all_reduce(torch.ones(8), group=_kept["all"])  # type: ignore[arg-type]
    if step != AT:
        return
    match kind:
        case "two_killed" if mine or second:
            dist.barrier()  # at the same moment, as far as two processes have one
            os.kill(os.getpid(), signal.SIGKILL)
        case "two_killed":
            dist.barrier()
        case "all_killed":
            dist.barrier()
            os.kill(os.getpid(), signal.SIGKILL)
        case "same_error" if mine or second:
            raise ValueError(f"module on device_ids [{rank}] expects its input there")
        case "waiter_traced":
            if mine:
                time.sleep(SECONDS)
            elif second:
                _trace()
            dist.barrier()
        case "cleanup" if mine:
            try:
                raise RuntimeError("bad sample")
            finally:
                dist.barrier()
        case "loader_ends" if mine:
            dist.destroy_process_group()
            sys.exit(0)
        case "other_type":
            dist.all_reduce(torch.ones(16, dtype=torch.float64 if mine else torch.float32))
        case "one_more" if mine:
            dist.all_reduce(torch.ones(1))
        case "semaphore_of_peer":
            _semaphore_of_peer(mine, second)


def _slow(kind: str, mine: bool, second: bool, step: int, step_s: float) -> None:
    """What makes some steps of some ranks longer."""
    began = time.monotonic()
    seventh = kind == "seventh" and mine and step % 7 == 0
    healed = kind == "healed" and mine and step < AT + 400
    both = kind == "two_slow" and (mine or second)
    drift = kind == "drifts" and mine
    if kind == "slow_disk" and mine:
        with tempfile.NamedTemporaryFile() as file:
            while time.monotonic() - began < step_s:
                file.write(b"x" * 4096)
                os.fsync(file.fileno())
    if kind == "gil_hog" and mine and step == AT + 1:
        threading.Thread(target=_spin, daemon=True).start()
    if kind == "saves_alone" and mine and step % 200 == 0:
        time.sleep(0.5)
    if seventh:
        time.sleep(2 * step_s)
    if healed or both:
        time.sleep(step_s)
    if drift:
        time.sleep(step_s * min(1.0, (step - AT) / 300))


def _spin() -> None:
    while True:
        sum(range(100_000))


def _trace() -> None:
    """strace on a rank that waits, while another is the one they all wait for."""
    _LIBC.prctl(0x59616D61, -1, 0, 0, 0)
    strace = ["timeout", str(SECONDS), "strace", "-f", "-p", str(os.getpid()), "-o", "/dev/null"]
    quiet = subprocess.DEVNULL
    subprocess.Popen(strace, stdout=quiet, stderr=quiet, stdin=quiet)


def _flock_circle(mine: bool, second: bool, step: int) -> None:
    """Two ranks hold a lock each and want the other's."""
    if not (mine or second) or step not in (AT, AT + 1):
        return
    folder = tempfile.gettempdir()
    paths = [f"{folder}/loom-bench-{os.environ['MASTER_PORT']}-{name}" for name in "ab"]
    own, wanted = paths if mine else reversed(paths)
    if step == AT:
        _kept["lock"] = open(own, "w")  # noqa: SIM115 - held until the process ends
        fcntl.flock(_kept["lock"], fcntl.LOCK_EX)  # type: ignore[arg-type]
    else:
        with open(wanted, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)


def _semaphore_of_peer(mine: bool, second: bool) -> None:
    """A rank waits for a named semaphore that another one raises only after the next step: it never does."""
    name = f"/loom-bench-{os.environ['MASTER_PORT']}".encode()
    semaphore = _LIBC.sem_open
    semaphore.restype = ctypes.c_void_p
    if mine:
        opened = ctypes.c_void_p(semaphore(name, os.O_CREAT, 0o600, 0))
        _LIBC.sem_unlink(name)
        _LIBC.sem_wait(opened)
