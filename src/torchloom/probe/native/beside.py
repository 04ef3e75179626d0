"""A build beside a training: only with what nobody else wants, gone as soon as it is not wanted itself."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

FLAG = "--beside"
_PDEATHSIG = 1


def run(work: Callable[[], None]) -> None:
    """Do it. SIGTERM, and the end of whoever started this process, end it and its compiler.

    This process leads a group of its own, which holds nothing else.
    """
    signal.signal(signal.SIGTERM, _stop)
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGTERM)
    with suppress(OSError):
        os.nice(19)
    with suppress(OSError):  # where memory is short, it is this process that the kernel ends
        Path("/proc/self/oom_score_adj").write_text("1000")
    with suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    if os.getppid() == 1:
        return  # it ended before we asked to be told
    try:
        work()
    except SystemExit:
        os._exit(1)  # nothing to flush, and torch's finalisers take half a second


def _stop(*_: object) -> None:
    """The compiler goes at once; what it has written is removed while this unwinds."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGTERM)
    sys.exit(1)
