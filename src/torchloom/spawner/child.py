"""What a forked child does before the user's code runs: become what `python script.py` would have been.

Owns session, descriptors, signals, limits, environment, random state and thread counts of a new worker. It
does not run the script (torchloom.probe.worker does) and does not talk to the agent. What still differs from
a fresh process is listed, with reasons, in docs/spawn.md; tests/e2e/test_differential.py keeps it honest.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from types import FrameType
from typing import Any, NoReturn

from torchloom.spawner import learned_imports
from torchloom.spawner.boxes import NewBox, start_ticks
from torchloom.spawner.key import of_the_host
from torchloom.spawner.warm import Warmth

SPEC_FD_VARIABLE = "LOOM_SPEC_FD"
BOX_VARIABLE = "LOOM_BOX"
_MAX_FD = 1 << 30
_Disposition = Callable[[int, FrameType | None], Any] | signal.Handlers


class Become(BaseException):
    """Raised in a fresh child to unwind the spawner's stack; the top of the program then calls `run`.

    The interpreter must end normally in the worker (atexit, threads, flushes), so its top frame has to be
    reached by leaving functions rather than by os._exit.
    """

    def __init__(self, run: Callable[[], NoReturn]) -> None:
        super().__init__()
        self.run = run


def sign_in(box: NewBox | None) -> None:
    """The child's first act: create its own session and write its pid to the journal, so that it is findable
    whatever dies next."""
    os.setsid()
    if box is not None:
        box.sign(os.getpid(), start_ticks())
        box.mark_forked()
        box.close()


def leave_spawner(keep: tuple[int, ...], for_exec: bool) -> None:
    """Default signals, no descriptor of the spawner's but 0, 1, 2 and `keep`."""
    signal.set_wakeup_fd(-1)
    restore_signals(for_exec)
    first = 3
    for descriptor in sorted(keep):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, _MAX_FD)


def restore_signals(for_exec: bool) -> None:
    """Dispositions as Python finds (for exec) or leaves them at its start, then nothing blocked.

    The spawner blocks all signals around the fork, so that one sent to a newborn acts here and rightly.
    """
    as_python: dict[int, _Disposition] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGPIPE: signal.SIG_IGN,
        signal.SIGXFSZ: signal.SIG_IGN,
    }
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        wanted = signal.SIG_DFL if for_exec else as_python.get(number, signal.SIG_DFL)
        if signal.getsignal(number) != wanted:
            signal.signal(number, wanted)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def adopt_stdio(stdout: int, stderr: int) -> None:
    """stdin is /dev/null, stdout and stderr are the log files."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)


def apply_limits(spec: Mapping[str, Any]) -> None:
    """umask, resource limits, CPU set, nice value, directory. A refused limit is reported, not fatal."""
    if spec.get("umask") is not None:
        os.umask(spec["umask"])
    for name, (soft, hard) in (spec.get("rlimits") or {}).items():
        number = getattr(resource, name if name.startswith("RLIMIT_") else f"RLIMIT_{name.upper()}", None)
        if number is not None:
            _try(f"limit {name}", partial(resource.setrlimit, number, (soft, hard)))
    if spec.get("cpus"):
        _try("CPU set", lambda: os.sched_setaffinity(0, spec["cpus"]))
    if spec.get("nice") is not None:
        _try("nice value", lambda: os.setpriority(os.PRIO_PROCESS, 0, spec["nice"]))
    if spec.get("cwd"):
        os.chdir(spec["cwd"])


def _try(what: str, act: Callable[[], object]) -> None:
    try:
        act()
    except (OSError, ValueError) as error:
        print(f"torchloom: the {what} could not be set: {error}", file=sys.stderr, flush=True)


def run(spec: Mapping[str, Any], warmth: Warmth) -> NoReturn:
    """Become the worker. stdio is set already; everything else of the spawner is left behind here."""
    spec = {**spec, "env": _naming_the_box(spec["env"], spec["box"]) | of_the_host(os.environ)}
    by_exec = warmth.cold or bool(spec.get("command"))
    spec_fd = _spec_descriptor(spec) if warmth.cold and not spec.get("command") else None
    leave_spawner(() if spec_fd is None else (spec_fd,), by_exec)
    apply_limits(spec)
    if warmth.problem is not None and spec["env"].get("RANK") == "0":
        print(f"torchloom: every worker is a new process: {warmth.problem}", file=sys.stderr, flush=True)
    if spec.get("command"):
        _exec_command(spec)
    if spec_fd is not None:
        _exec_interpreter(spec, spec_fd)
    replace_environment(spec["env"])
    if spec["env"].get("RANK") == "0":
        for name, why in warmth.left_out.items():
            print(f"torchloom: {name} is not preloaded: {why}", file=sys.stderr, flush=True)
    correct_main_thread()
    forget_random_state()
    restore_threads(spec, warmth)
    learned_imports.repair(spec["env"])
    if not sys.flags.safe_path:
        sys.path.insert(0, "")  # -m had put something there, and the probe replaces it by the script's place
    from torchloom.probe import worker

    worker.run(dict(spec))


def _naming_the_box(environment: Mapping[str, str], box: str | None) -> dict[str, str]:
    """The environment was written before anyone knew where there is room for the box."""
    named = dict(environment)
    if BOX_VARIABLE in named:
        del named[BOX_VARIABLE]
        named |= {} if box is None else {BOX_VARIABLE: box}
    return named


def _exec_command(spec: Mapping[str, Any]) -> NoReturn:
    """`--no-python`: become any program. A Python script in it can find its box and attach."""
    command = [str(word) for word in spec["command"]]
    environment = {**spec["env"], **({} if spec["box"] is None else {BOX_VARIABLE: spec["box"]})}
    os.execvpe(command[0], command, environment)


def _exec_interpreter(spec: Mapping[str, Any], spec_fd: int) -> NoReturn:
    """A fresh interpreter, which reads the spec from the inherited descriptor."""
    os.set_inheritable(spec_fd, True)
    environment = {**spec["env"], SPEC_FD_VARIABLE: str(spec_fd)}
    program = [sys.executable, *interpreter_flags(), "-m", "torchloom.probe.launch"]
    os.execve(sys.executable, program, environment)


def interpreter_flags() -> list[str]:
    """The options this interpreter was given: a worker started cold gets the same."""
    words = sys.orig_argv[1:]
    return words[: words.index("-m")] if "-m" in words else []


def _spec_descriptor(spec: Mapping[str, Any]) -> int:
    """The spec as JSON in an anonymous file, at its beginning."""
    descriptor = os.memfd_create("loom-spec")
    data = memoryview(json.dumps(spec).encode())
    while data:
        data = data[os.write(descriptor, data) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def replace_environment(environment: Mapping[str, str]) -> None:
    """All of it, through putenv, so that C libraries see it too; and what Python derived from the old one."""
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    tempfile.tempdir = None  # cached from the spawner's TMPDIR while torch was imported


def correct_main_thread() -> None:
    """Python 3.11 does not renew the kernel's id of the thread that forked."""
    thread: Any = threading.main_thread()
    if thread.native_id != threading.get_native_id():
        thread._set_native_id()


def forget_random_state() -> None:
    """Siblings must not draw the same numbers: a fresh process seeds each of these from the system."""
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed(None)
    torch = sys.modules.get("torch")
    if torch is not None:
        # Not torch.seed(): that would also leave a seed for CUDA's generators, which start from a constant.
        torch.default_generator.seed()


def restore_threads(spec: Mapping[str, Any], warmth: Warmth) -> None:
    """Thread counts a fresh process would have read from the environment and the CPU set at load time."""
    environment, cpus = spec["env"], len(os.sched_getaffinity(0))
    torch = sys.modules.get("torch")
    if torch is not None:
        wanted = spec.get("threads") or _torch_threads(environment, cpus, warmth)
        if wanted != warmth.torch_threads:
            torch.set_num_threads(wanted)
    if warmth.set_blas_threads is not None:
        names = (
            "OPENBLAS_NUM_THREADS",
            "OPENBLAS_DEFAULT_NUM_THREADS",
            "GOTO_NUM_THREADS",
            "OMP_NUM_THREADS",
        )
        asked = (_number(environment.get(name)) for name in names)
        blas = next((number for number in asked if number is not None), cpus)
        if min(blas, cpus) > 1:
            warmth.set_blas_threads(min(blas, cpus))


def _torch_threads(environment: Mapping[str, str], cpus: int, warmth: Warmth) -> int:
    """OMP_NUM_THREADS, capped by MKL at the machine's cores (torch's default); else the CPUs we may use."""
    asked = _number(environment.get("OMP_NUM_THREADS"))
    if asked is None:
        return min(cpus, warmth.torch_threads)
    return min(asked, warmth.torch_threads) if warmth.threads_capped else asked


def _number(text: str | None) -> int | None:
    """The first of OMP's comma-separated list; None for what the libraries would ignore."""
    first = (text or "").split(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) > 0 else None
