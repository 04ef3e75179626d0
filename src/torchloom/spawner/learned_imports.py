"""Imports in a spawner what a job was seen to import, as far as workers forked from it cannot tell.

Each import is checked. A package is *unsafe* if importing it starts a thread or process, opens a descriptor,
maps shared memory, installs a signal handler or initialises CUDA, because none of that survives a fork; or if
it reads a variable that is not yet what the worker will have (RANK, CUDA_VISIBLE_DEVICES …, or one that the
script sets). Then this process must not be forked: it names the package, and the agent starts another spawner
without it. Owns these checks and the few repairs that a worker needs after its fork.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchloom.spawner.key import PER_WORKER, PER_WORKER_PREFIXES, READ_LATER

MOST_MODULES = 20_000
_VIEWS = ("_collections_abc", "collections.abc")
REPAIRS = {
    "lightning.fabric.utilities.rank_zero": (
        "lightning_utilities.core.rank_zero",
        ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK"),
    ),
    "torchmetrics.utilities.prints": ("torchmetrics.utilities.prints", ("LOCAL_RANK",)),
}
"""Modules that keep the rank in `rank_zero_only.rank` when they are imported: which module that is in, and
the variables in the order in which they are asked. A worker sets it again after its fork."""


@dataclass(frozen=True)
class LearnedList:
    """What a worker reported (probe/observe/import_report.py), and what was found to be unsafe since."""

    modules: tuple[str, ...] = ()
    changed: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()
    """Packages that must not be imported here."""


@dataclass
class LearnedImports:
    """How it went."""

    imported: int = 0
    failed: int = 0
    unsafe: str = ""
    """The package after which this process must not be forked."""
    why: str = ""
    read: dict[str, str] = field(default_factory=dict)
    """Variables that matter and were read: name → package."""


def read_list(path: Path) -> LearnedList:
    """An unreadable file has learned nothing."""
    try:
        found = json.loads(path.read_text())
        return LearnedList(
            tuple(str(name) for name in found["modules"][:MOST_MODULES]),
            frozenset(map(str, found.get("changed", ()))),
            frozenset(map(str, found.get("refused", ()))),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return LearnedList()


class Descriptors:
    """Which descriptors imports have opened. Those that the spawner itself opens meanwhile do not count."""

    def __init__(self) -> None:
        self._known = set(_descriptors())

    def around(self, pump: Callable[[], None]) -> None:
        """Let the spawner answer its socket."""
        before = set(_descriptors())
        pump()
        self._known |= set(_descriptors()) - before

    def again(self) -> Descriptors:
        """What is open now is known."""
        self._known |= set(_descriptors())
        return self

    @property
    def opened(self) -> bool:
        return bool(set(_descriptors()) - self._known)


def import_learned(wanted: LearnedList, descriptors: Descriptors) -> LearnedImports:
    """Import all that is wanted; stops at the first package that is unsafe."""
    done = LearnedImports()
    before = _traces()
    maps = _shared_maps()
    package = ""
    with _watched_reads(wanted.changed, done.read):
        for name in wanted.modules:
            top = name.partition(".")[0]
            if top in wanted.refused:
                continue
            if top != package and package and _shared_maps() - maps:
                return _unsafe(done, package, "it maps shared memory")
            package = top
            if name not in sys.modules:
                _import_one(name, done)
            done.imported += name in sys.modules
            now = _traces()
            if now != before:
                return _unsafe(done, top, next(why for why in now if now[why] != before[why]))
            if descriptors.opened:
                return _unsafe(done, top, "it leaves a descriptor open")
            if done.read:
                variable, reader = next(iter(done.read.items()))
                # One that was left out, and that another imports all the same: then that other goes.
                return _unsafe(
                    done,
                    top if reader in wanted.refused else reader,
                    f"{reader} reads {variable} when it is imported",
                )
    if _shared_maps() - maps:
        return _unsafe(done, package, "it maps shared memory")
    return done


def _import_one(name: str, done: LearnedImports) -> None:
    try:
        importlib.import_module(name)
    except (Exception, SystemExit):  # noqa: BLE001  # the worker meets it itself, if it matters
        done.failed += 1


def _unsafe(done: LearnedImports, package: str, why: str) -> LearnedImports:
    done.unsafe, done.why = package, why
    return done


def _traces() -> dict[str, object]:
    """What an import may leave in a process that does not survive a fork, by the sentence about it."""
    torch: Any = sys.modules.get("torch")
    return {
        "it starts a thread": len(os.listdir("/proc/self/task")),
        "it installs a signal handler": tuple(map(signal.getsignal, _SIGNALS)),
        "it initialises CUDA": torch is not None and torch.cuda.is_initialized(),
        "it starts a process": _children(),
    }


_SIGNALS = tuple(sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}))


def _descriptors() -> Iterator[tuple[str, str]]:
    for name in os.listdir("/proc/self/fd"):
        try:
            yield name, os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the one that listed the directory
            continue


def _children() -> str:
    try:
        return Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    except OSError:
        return ""


def _shared_maps() -> set[str]:
    """Semaphores and other shared memory: ranks on one host would share what each should have alone."""
    with open("/proc/self/maps") as maps:
        lines = [line.split(maxsplit=5) for line in maps if "/dev/shm/" in line]
    return {fields[5].strip() for fields in lines if len(fields) == 6}


def matters(name: str, changed: frozenset[str]) -> bool:
    """Whether a worker has another value of this variable than the spawner that imports for it."""
    if name in changed:
        return True
    if name == "OPENBLAS_NUM_THREADS":  # set only while a spawner imports; whoever copies os.environ reads it
        return False
    return name in PER_WORKER or name in READ_LATER or name.startswith(PER_WORKER_PREFIXES)


@contextmanager
def _watched_reads(changed: frozenset[str], read: dict[str, str]) -> Iterator[None]:
    """Note who reads a variable that matters. `os.environ` of every module goes through these methods.

    A variable that a module itself sets when it is imported is the same in a worker; and to look through all
    variables, as for a prefix, is not to read one.
    """
    kind: Any = type(os.environ)
    get: Callable[[Any, str], str] = kind.__getitem__
    put: Callable[[Any, str, str], None] = kind.__setitem__
    own: set[str] = set()

    def noting(environ: Any, name: str) -> str:
        if isinstance(name, str) and name not in own and matters(name, changed):
            caller = sys._getframe(1)
            passing = caller.f_code.co_name == "__iter__" and caller.f_globals.get("__name__") in _VIEWS
            reader = _reader()
            if not passing and reader not in REPAIRS and not reader.startswith("torchloom"):
                read.setdefault(name, reader.partition(".")[0])
        return get(environ, name)

    def setting(environ: Any, name: str, value: str) -> None:
        own.add(name)
        put(environ, name, value)

    kind.__getitem__, kind.__setitem__ = noting, setting
    try:
        yield
    finally:
        kind.__getitem__, kind.__setitem__ = get, put


def _reader() -> str:
    """The module whose code reads; the standard library only passes it on."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.partition(".")[0] not in sys.stdlib_module_names:
            return name
        frame = frame.f_back
    return ""


def repair(environment: Mapping[str, str]) -> None:
    """In a worker: set what the modules of REPAIRS would have read."""
    for holder, variables in REPAIRS.values():
        kept = getattr(sys.modules.get(holder), "rank_zero_only", None)
        if kept is not None and hasattr(kept, "rank"):
            text = next((environment[name] for name in variables if name in environment), "0")
            kept.rank = int(text) if text.isdecimal() else 0
