"""Compiles C++ libraries against torch and finds them again: one per torch, source, Python ABI and compiler.

A library is compiled once, at set-up or by whoever needs it first, and kept in a cache. A worker never
compiles: it only looks (`find`) and does without when nothing is there. Nothing is loaded here.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import NamedTuple

_SCRATCH = "build-"
FLAGS = ("-O2", "-std=c++20", "-fPIC", "-shared", "-w")


class BuildOutcome(Enum):
    """What `build` did."""

    BUILT = "built"
    THERE = "already there"
    NO_COMPILER = "no compiler"
    NO_TORCH = "no torch"
    FAILED = "failed"


class Build(NamedTuple):
    """The result of `build`: the library if there is one, else why not."""

    outcome: BuildOutcome
    library: Path | None
    detail: str = ""


class Library(NamedTuple):
    """What one library is made of."""

    name: str
    sources: tuple[Path, ...]
    """The first is compiled and includes the others."""
    header: Callable[[], tuple[str, str]] | None = None
    """Name and text of a header that is generated for the build."""
    python: bool = False
    """Whether it needs Python's own headers and libtorch_python."""


def directory() -> Path:
    """Where libraries are kept: $LOOM_NATIVE_DIR, else the user's cache."""
    chosen = os.environ.get("LOOM_NATIVE_DIR")
    if chosen:
        return Path(chosen)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache, "torchloom", "native")


def find(library: Library) -> Path | None:
    """The newest file for this torch and this source that is safe to load, or None."""
    version = torch_version()
    if version is None:
        return None
    kept = directory()
    try:
        if not _only_ours(kept.stat()):
            return None
        stem = _stem(library, version)
        candidates = sorted(kept.glob(f"{stem}-*.so"), key=lambda p: p.stat().st_mtime_ns)
        return next((p for p in reversed(candidates) if _only_ours(p.lstat())), None)
    except OSError:
        return None


def build(library: Library) -> Build:
    """Compile the library unless it is there. Safe to run several times at once."""
    version = torch_version()
    if version is None:
        return Build(BuildOutcome.NO_TORCH, None)
    program = compiler()
    if program is None:
        there = find(library)
        return Build(BuildOutcome.THERE, there) if there else Build(BuildOutcome.NO_COMPILER, None)
    kept = directory()
    try:
        kept.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _only_ours(kept.stat()):
            return Build(BuildOutcome.FAILED, None, f"{kept} belongs to or is writable by someone else")
        target = kept / f"{_stem(library, version)}-{_identity(program)}.so"
        with open(kept / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for left in kept.glob(f"{_SCRATCH}*"):  # by a build that was killed: ours is the only one
                shutil.rmtree(left, ignore_errors=True)
            if target.exists() and _only_ours(target.lstat()):
                return Build(BuildOutcome.THERE, target)
            error = _compile(library, program, target)
    except OSError as e:
        return Build(BuildOutcome.FAILED, None, str(e))
    return Build(BuildOutcome.FAILED, None, error) if error else Build(BuildOutcome.BUILT, target)


def _compile(library: Library, compiler: str, target: Path) -> str:
    """Compile into `target`, which appears complete or not at all. Returns the compiler's complaint."""
    import torch

    root = Path(torch.__file__).parent
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=target.parent) as scratch:
        if library.header is not None:
            name, text = library.header()
            Path(scratch, name).write_text(text)
        made = Path(scratch, "made.so")
        include = root / "include"
        places = [include, include / "torch" / "csrc" / "api" / "include"]
        if library.python:
            places.append(Path(sysconfig.get_paths()["include"]))
        command = [
            compiler,
            *FLAGS,
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
            f"-I{scratch}",
            *(f"-isystem{place}" for place in places),
            str(library.sources[0]),
            f"-L{root / 'lib'}",
            "-ltorch_cpu",
            "-lc10",
            *(["-ltorch_python"] if library.python else []),
            f"-o{made}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if "error" in line]
            return (errors or done.stderr.splitlines() or [f"exit code {done.returncode}"])[0].strip()
        made.chmod(0o700)
        made.rename(target)
    return ""


def compiler() -> str | None:
    """The C++ compiler to use, if there is one."""
    named = os.environ.get("CXX")
    choices = [named] if named else ["g++", "clang++", "c++"]
    return next(filter(None, map(shutil.which, choices)), None)


def _identity(compiler: str) -> str:
    told = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout
    return hashlib.sha256(f"{compiler}\n{told}".encode()).hexdigest()[:8]


def _stem(library: Library, torch_version: str) -> str:
    """The part of the file's name that a loader can compute without a compiler."""
    sources = [source.read_text() for source in library.sources]
    header = library.header()[1] if library.header is not None else ""
    parts = (*sources, header, *FLAGS, sysconfig.get_config_var("SOABI") or "")
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return f"{library.name}-torch{torch_version}-{digest}"


def torch_version() -> str | None:
    """torch's version, read from its files: importing torch takes seconds."""
    spec = importlib.util.find_spec("torch")
    for place in (spec.submodule_search_locations if spec else None) or ():
        try:
            text = Path(place, "version.py").read_text()
        except OSError:
            continue
        found = re.search(r"""^__version__ = ['"]([^'"]+)['"]""", text, re.MULTILINE)
        if found:
            return found[1]
    return None


def _only_ours(status: os.stat_result) -> bool:
    """Owned by us, or by root as in an image, and writable by nobody else: what is loaded runs with our
    rights."""
    kind = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
    return kind and status.st_uid in (0, os.geteuid()) and not status.st_mode & 0o022
