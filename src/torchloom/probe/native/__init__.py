"""Builds and finds the native recorder: one shared library per torch, source, Python ABI and compiler.

The library is compiled once, at set-up (`python -m torchloom.probe.native`), and never by a worker: a worker
only looks for it (`find`) and does without when it is not there. Nothing is loaded here; that is
probe/observe/recorder.py's.
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
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from torchloom.probe.observe.operators import OPERATIONS
from torchloom.wire import blackbox

SOURCE = Path(__file__).with_name("recorder.cpp")
FLAGS = ("-O2", "-std=c++20", "-fPIC", "-shared", "-w")


class Outcome(Enum):
    """What `build` did."""

    BUILT = "built"
    THERE = "already there"
    NO_COMPILER = "no compiler"
    NO_TORCH = "no torch"
    FAILED = "failed"


class Build(NamedTuple):
    """The result of `build`: the library if there is one, else why not."""

    outcome: Outcome
    library: Path | None
    detail: str = ""


def directory() -> Path:
    """Where libraries are kept: $LOOM_NATIVE_DIR, else the user's cache."""
    chosen = os.environ.get("LOOM_NATIVE_DIR")
    if chosen:
        return Path(chosen)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache, "torchloom", "native")


def find() -> Path | None:
    """The newest library for this torch and this source that is safe to load, or None."""
    torch_version = _torch_version()
    if torch_version is None:
        return None
    kept = directory()
    try:
        if not _only_ours(kept.stat()):
            return None
        candidates = sorted(kept.glob(f"{_stem(torch_version)}-*.so"), key=lambda p: p.stat().st_mtime_ns)
        return next((p for p in reversed(candidates) if _only_ours(p.lstat())), None)
    except OSError:
        return None


def build() -> Build:
    """Compile the library unless it is there. Safe to run several times at once."""
    torch_version = _torch_version()
    if torch_version is None:
        return Build(Outcome.NO_TORCH, None)
    compiler = _compiler()
    if compiler is None:
        there = find()
        return Build(Outcome.THERE, there) if there else Build(Outcome.NO_COMPILER, None)
    kept = directory()
    try:
        kept.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _only_ours(kept.stat()):
            return Build(Outcome.FAILED, None, f"{kept} belongs to or is writable by someone else")
        target = kept / f"{_stem(torch_version)}-{_identity(compiler)}.so"
        with open(kept / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if target.exists() and _only_ours(target.lstat()):
                return Build(Outcome.THERE, target)
            error = _compile(compiler, target)
    except OSError as e:
        return Build(Outcome.FAILED, None, str(e))
    return Build(Outcome.FAILED, None, error) if error else Build(Outcome.BUILT, target)


def layout_header() -> str:
    """layout.h: the offsets, words and operators of the Python definitions, for C++."""
    numbers: dict[str, int] = {
        name: value for name, value in vars(blackbox).items() if name.isupper() and isinstance(value, int)
    }
    numbers |= {word.name: word.value for word in blackbox.CollectiveWord}
    numbers |= {f"GROUP_{word.name}": word.value for word in blackbox.GroupWord}
    numbers |= {source.name: source.value for source in blackbox.Source}
    numbers |= {f"PROGRESS_{word.name}": word.value for word in blackbox.Progress}
    lines = [f"constexpr uint64_t {name} = {value}ull;" for name, value in numbers.items()]
    rows = [
        f'  {{"{o.name}", "{o.sized_by}", "{o.peer_from}", {o.code}, '
        f"{o.paired:d}, {o.sends:d}, {o.coalesced:d}}},"
        for o in OPERATIONS
    ]
    return "\n".join(
        [
            "#include <cstdint>",
            "namespace loom::layout {",
            *lines,
            "struct Operation {",
            "  const char *name, *sized_by, *peer_from;",
            "  uint64_t code;",
            "  bool paired, sends, coalesced;",
            "};",
            "inline constexpr Operation OPERATIONS[] = {",
            *rows,
            "};",
            "}",
            "",
        ]
    )


def _compile(compiler: str, target: Path) -> str:
    """Compile into `target`, which appears complete or not at all. Returns the compiler's complaint."""
    import torch

    root = Path(torch.__file__).parent
    with tempfile.TemporaryDirectory(prefix="build-", dir=target.parent) as scratch:
        Path(scratch, "layout.h").write_text(layout_header())
        made = Path(scratch, "recorder.so")
        command = [
            compiler,
            *FLAGS,
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
            f"-I{scratch}",
            f"-isystem{root / 'include'}",
            f"-isystem{root / 'include' / 'torch' / 'csrc' / 'api' / 'include'}",
            str(SOURCE),
            f"-L{root / 'lib'}",
            "-ltorch_cpu",
            "-lc10",
            f"-o{made}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if "error" in line]
            return (errors or done.stderr.splitlines() or [f"exit code {done.returncode}"])[0].strip()
        made.chmod(0o700)
        made.rename(target)
    return ""


def _compiler() -> str | None:
    named = os.environ.get("CXX")
    choices = [named] if named else ["g++", "clang++", "c++"]
    return next(filter(None, map(shutil.which, choices)), None)


def _identity(compiler: str) -> str:
    told = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout
    return hashlib.sha256(f"{compiler}\n{told}".encode()).hexdigest()[:8]


def _stem(torch_version: str) -> str:
    """The part of the file's name that a loader can compute without a compiler."""
    parts = (SOURCE.read_text(), layout_header(), *FLAGS, sysconfig.get_config_var("SOABI") or "")
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return f"recorder-torch{torch_version}-{digest}"


def _torch_version() -> str | None:
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
    """Owned by us and writable by nobody else: what is loaded runs with our rights."""
    kind = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
    return kind and status.st_uid == os.geteuid() and not status.st_mode & 0o022
