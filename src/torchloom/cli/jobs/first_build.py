"""The first job of an installation: compiles the native recorder before the job starts, once for each torch.

A job keeps the recorder it started with, and the first one may run for days: with the Python fallback few of
its hangs would name a rank. Where nobody waits in a terminal, a spawner compiles it beside the jobs
(spawner/build_beside.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchloom.client.schema import JobRequest

END_WITHIN_S = 5.0
"""For an interrupted build to remove what it has written."""


def compile_first(body: JobRequest) -> None:
    """Compile what is missing for this job, and say so; returns at once if there is nothing to do."""
    env = body.get("env") or {}
    if env.get("LOOM_RECORDER") in ("python", "none") or os.environ.get("LOOM_BUILD") == "0":
        return
    if body.get("interpreter") not in (None, "", sys.executable):
        return  # only it knows its torch
    from torchloom import compiled
    from torchloom.probe import native

    version = compiled.torch_version()
    if version is None or native.find() is not None or compiled.compiler() is None:
        return
    print(
        f"[loom] compiling the native recorder for torch {version}, once: about 20 s (LOOM_BUILD=0 skips it)",
        file=sys.stderr,
        flush=True,
    )
    command = [sys.executable, "-P", "-m", "torchloom.probe.native"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            said = child.stdout.read().strip() if child.stdout is not None else ""
        except KeyboardInterrupt:  # the terminal has told it, too, and its compiler
            child.wait(END_WITHIN_S)
            raise
    if native.find() is None:
        print(f"[loom] {said}", file=sys.stderr, flush=True)
