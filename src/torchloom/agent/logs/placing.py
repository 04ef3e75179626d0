"""Puts the log of a rank where its job wants it: `DIR/JOB/RANK/stdout.log`. Writes no line.

In the agent's own directory a link leads there, so that everything else finds the log as ever. A deleted job
takes the link away and leaves the file.
"""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

from torchloom.model.worker import WorkerRef
from torchloom.private import make_private

log = logging.getLogger(__name__)

FILE = "stdout.log"


def place(path: Path, directory: str, ref: WorkerRef) -> str:
    """Make `path` lead to the rank's log in `directory`. Returns why not, in which case it is here."""
    if os.path.lexists(path):
        return ""  # as the generation before left it
    target = Path(directory) / ref.job / str(ref.rank) / FILE
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        # A neighbour who can write there could lead us to any file of ours.
        make_private(target.parent.parent)
        make_private(target.parent)
        _put_aside(target)
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.symlink_to(target)
    except OSError as error:
        why = error.strerror or str(error)
        if error.errno == errno.EPERM and error.filename:
            why = f"{error.filename}: {why}"
        log.warning("%s of %s cannot be used for logs: %s", directory, ref.job, why)
        return f"the log directory {directory} cannot be used ({why}); this log is at {path}"
    return ""


def _put_aside(target: Path) -> None:
    """A log of an earlier job of this name gets the next free number, as `stdout.log.1`."""
    if not os.path.lexists(target):
        return
    number = 1
    while os.path.lexists(target.with_name(f"{FILE}.{number}")):
        number += 1
    target.rename(target.with_name(f"{FILE}.{number}"))
