"""The log files of a worker: opened by the spawner, so that nobody has to read a pipe."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchloom.spawner.refusal import Refused

_LOG_LOST = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS})


def open_logs(spec: Mapping[str, Any]) -> tuple[int, int, list[str]]:
    """The two log files, opened to append; a full disk costs the log, not the worker."""
    notes: list[str] = []
    descriptors: dict[str, int] = {}
    for name in (spec.get("stdout") or os.devnull, spec.get("stderr") or os.devnull):
        if name in descriptors:
            continue
        try:
            Path(name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptors[name] = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno not in _LOG_LOST:
                for descriptor in descriptors.values():
                    os.close(descriptor)
                raise Refused(f"the log file {name} cannot be opened: {error.strerror}") from error
            notes.append(f"no log at {name}: {error.strerror}")
            descriptors[name] = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    return descriptors[spec.get("stdout") or os.devnull], descriptors[spec.get("stderr") or os.devnull], notes
