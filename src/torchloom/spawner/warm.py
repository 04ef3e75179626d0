"""Warming: import what every training script imports, in a way that leaves a process safe to fork.

Owns the list of modules, the environment while they are imported and the count of OS threads afterwards. It
runs no tensor operation and touches no CUDA: a context or a thread pool would not survive the fork.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from torchloom.spawner.build_beside import load_native
from torchloom.spawner.compiled_texts import CompiledTexts, default_path
from torchloom.spawner.early_library import load_beside
from torchloom.spawner.import_shortcuts import shortcuts
from torchloom.spawner.learned_imports import Descriptors, LearnedImports, import_learned, read_list

MODULES = (
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "torch._dynamo",  # DDP's first step imports it: 1.8 s in every worker otherwise
)
LATER = ("torch.distributed.checkpoint",)
"""What not every script needs: a job that waits for the first fork does not wait for these as well."""
OURS = ("torchloom.probe.worker",)

_LOOK_EVERY_S = 0.02
_PUMP_EVERY_S = 0.02
_ONE_THREAD = ("OPENBLAS_NUM_THREADS",)
"""NumPy's OpenBLAS starts its threads when it is loaded; no other library we preload does."""

_OPENBLAS_SETTERS = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
)


@dataclass
class Warmth:
    """What warming gave."""

    cold: bool
    torch: str | None = None
    """Version of torch, None when it is not there (or not wanted)."""
    seconds: float = 0.0
    missing: dict[str, str] = field(default_factory=dict)
    """Modules that could not be imported, with the reason; workers meet the same error themselves."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Those of them that the job wanted to be preloaded."""
    problem: str | None = None
    """Why a fork would lack something, as a sentence; every worker is a new interpreter then."""
    torch_threads: int = 1
    """Threads torch uses by default."""
    threads_capped: bool = False
    """torch asks MKL, which never gives more threads than there are cores unless MKL_DYNAMIC forbids it."""
    set_blas_threads: Callable[[int], Any] | None = None
    learned: LearnedImports = field(default_factory=LearnedImports)
    """What the job was seen to import, as far as it was imported here."""
    phases: dict[str, float] = field(default_factory=dict)
    """When each phase of warming was over (time.monotonic), in order."""
    texts: CompiledTexts | None = None
    """What is to be saved for the next spawner once nobody waits."""

    def done(self, phase: str) -> None:
        self.phases[phase] = time.monotonic()


def _threads(count: int) -> str:
    return "thread" if count == 1 else "threads"


def thread_count() -> int:
    """OS threads of this process, Python's or not."""
    return len(os.listdir("/proc/self/task"))


def warm_up(
    extra: Sequence[str],
    pump: Callable[[], None],
    learned: Path | None = None,
    hurry: Callable[[], bool] = lambda: False,
    loaded: Callable[[], None] = lambda: None,
) -> Warmth:
    """Import everything; `pump` is called between imports so that the socket is answered meanwhile.

    `loaded` is called once torch's library is. If somebody is in a `hurry` after torch, what can be
    imported later is left for `warm_later`. The garbage collector is off when this returns: call `settle`
    before the first fork.
    """
    warmth = Warmth(cold=False)
    began = time.monotonic()
    warmth.done("interpreter and the spawner's modules")
    if (others := thread_count() - 1) > 0:
        warmth.problem = (
            f"Python starts with {others} more {_threads(others)} here (sitecustomize, .pth files)"
        )
        return warmth
    gc.disable()
    warmth.texts = CompiledTexts(default_path())
    descriptors = Descriptors()
    answer = pump if learned is None else partial(descriptors.around, pump)
    with _environment_for_import(), _pumped_imports(answer):
        with shortcuts(warmth.texts):
            before = thread_count()
            load_beside(thread_count)
            loaded()
            if thread_count() > before:
                warmth.problem = "a thread that loaded torch's library is still there"
            warmth.done("libtorch_cpu.so beside sympy")
            for name in (*OURS, *MODULES):
                _import_one(name, warmth)
                warmth.done(name)
            for name in () if hurry() else LATER:
                _import_one(name, warmth)
                warmth.done(name)
        for name in extra:
            _import_if_safe(name, warmth, pump)
        _load_recorder(warmth)
        if learned is not None:
            warmth.learned = import_learned(read_list(learned), descriptors.again())
    torch = sys.modules.get("torch")
    if torch is not None:
        warmth.torch = str(torch.__version__)
        warmth.torch_threads = torch.get_num_threads()
        dynamic = os.environ.get("MKL_DYNAMIC", "TRUE").upper() in ("TRUE", "1", "YES", "ON")
        warmth.threads_capped = dynamic and torch.backends.mkl.is_available()
    warmth.set_blas_threads = _openblas_setter()
    warmth.done("the rest of warming")
    warmth.seconds = time.monotonic() - began
    return warmth


def warm_later(warmth: Warmth) -> None:
    """Import what was left out in a hurry; the next workers have it. No socket is answered meanwhile: a
    request would fork in the middle of an import. What the next spawner can use is saved, too."""
    if warmth.texts is not None:
        warmth.texts.save()
    left = [name for name in LATER if name not in sys.modules]
    if warmth.cold or warmth.torch is None or not left:
        return
    with _environment_for_import():
        for name in left:
            _import_one(name, warmth)
    gc.freeze()


def settle(hurry: bool) -> None:
    """Freeze the heap: a worker's collector then never touches it, and its pages stay shared.

    `hurry`: a job waits. Collecting first takes 0.3 s and frees one object in fifty.
    """
    if not hurry:
        gc.collect()
    gc.freeze()
    gc.enable()


def _import_one(name: str, warmth: Warmth) -> None:
    before = thread_count()
    try:
        importlib.import_module(name)
    except (Exception, SystemExit) as error:  # noqa: BLE001  # a module of the user's may do anything at all
        warmth.missing[name] = f"{type(error).__name__}: {error}"
        print(f"spawner: {name} is not preloaded: {warmth.missing[name]}", file=sys.stderr, flush=True)
    started = thread_count() - before
    if started > 0 and warmth.problem is None:
        warmth.problem = f"importing {name} started {started} {_threads(started)}"


def _import_if_safe(name: str, warmth: Warmth, pump: Callable[[], None]) -> None:
    """Import a module that the job asked for, unless it starts threads: an import cannot be taken back, so it
    is tried in a child first. A module that is left out is imported by each worker itself."""
    if warmth.problem is not None:
        return
    started = _threads_started_by(name, pump)
    if started:
        why = f"importing it starts {started} {_threads(started)}, which a fork does not keep"
        warmth.missing[name] = warmth.left_out[name] = why
        print(f"spawner: {name} is not preloaded: {why}", file=sys.stderr, flush=True)
        return
    _import_one(name, warmth)
    if name in warmth.missing:
        warmth.left_out[name] = warmth.missing[name]


def _threads_started_by(name: str, pump: Callable[[], None]) -> int:
    """How many threads an import of this module would leave behind; 0 if that is not known."""
    before = thread_count()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Pump)]
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 1)
            os.dup2(null, 2)
            importlib.import_module(name)
            os.write(writing, bytes([min(max(0, thread_count() - before), 255)]))
        finally:
            os._exit(0)
    os.close(writing)
    try:
        while not select.select([reading], [], [], _LOOK_EVERY_S)[0]:
            pump()
        said = os.read(reading, 1)
    finally:
        os.close(reading)
        with suppress(ChildProcessError):  # whoever looks after the workers may have seen it end
            os.waitpid(pid, 0)
    return said[0] if said else 0


def _load_recorder(warmth: Warmth) -> None:
    """A worker without the native one loads the fallback for itself, in 4 ms."""
    try:
        load_native()
    except Exception as error:  # noqa: BLE001  # no recorder means less telemetry, never no worker
        warmth.missing["torchloom.probe.observe.recorder"] = f"{type(error).__name__}: {error}"


@contextmanager
def _environment_for_import() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(dict.fromkeys(_ONE_THREAD, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class _Pump:
    """A finder that finds nothing: importing torch asks it 2,000 times, often enough to answer the socket."""

    def __init__(self, pump: Callable[[], None]) -> None:
        self._pump = pump
        self._due_s = 0.0

    def find_spec(
        self, name: str, path: object = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if time.monotonic() >= self._due_s:
            self._pump()
            self._due_s = time.monotonic() + _PUMP_EVERY_S
        return None


@contextmanager
def _pumped_imports(pump: Callable[[], None]) -> Iterator[None]:
    finder: Any = _Pump(pump)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def _openblas_setter() -> Callable[[int], Any] | None:
    """The function that gives NumPy's BLAS its threads back in a worker, looked up once before any fork."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if "openblas" in line}
    for path in sorted(paths):
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        for name in _OPENBLAS_SETTERS:
            if hasattr(library, name):
                setter: Callable[[int], Any] = getattr(library, name)
                return setter
    return None
