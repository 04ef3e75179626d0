"""Reports that any program drops as files into `LOOM_HOME/health`: one JSON object, the same as of
`POST /devices/{id}/health` with the device's id in it. A file is removed once it is read.

Write elsewhere and rename it into the directory; names that begin with a dot are left alone. A file that
cannot be understood is renamed to `.<name>.bad` and counted, unless it was written to a moment ago: it may be
unfinished. Links, pipes and sockets are put aside in the same way and never opened.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import stat
import time
from pathlib import Path

import msgspec

from torchloom.agent.health.health_source import SourceLook
from torchloom.model.devices import SOURCE_NAME, DeviceReading, HealthClass, HealthReport

log = logging.getLogger(__name__)

DIRECTORY = "health"
_MOST_BYTES = 64 << 10
_MOST_FILES = 256
_MOST_TEXT = 500
_UNFINISHED_S = 5.0
"""A file that was written to so recently may be unfinished."""


class DroppedHealth(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    device: str
    level: HealthClass
    source: str = "file"
    why: str = ""
    values: dict[str, float] = {}


class FileDrop:
    name, every_s, deadline_s, isolated = "file", 1.0, 30.0, False

    def __init__(self, node: str, home: Path) -> None:
        self._directory = home / DIRECTORY
        self.bad = 0
        """Files that could not be understood."""

    def why_not(self) -> str:
        return ""

    def look(self) -> SourceLook:
        readings, reports = [], []
        for path in self._files():
            found = self._take(path)
            if found is None:
                continue
            report = HealthReport(
                device=found.device, level=found.level, why=found.why[:_MOST_TEXT], source=found.source
            )
            reports.append(report)
            if found.values:
                values = {k: v for k, v in found.values.items() if math.isfinite(v)}
                readings.append(DeviceReading(device=found.device, source=report.source, values=values))
        return SourceLook(readings=tuple(readings), reports=tuple(reports))

    def _files(self) -> list[Path]:
        try:
            with os.scandir(self._directory) as entries:
                names = sorted(e.name for e in entries if not e.name.startswith(".") and not _is_directory(e))
        except OSError:
            return []
        return [self._directory / name for name in names[:_MOST_FILES]]

    def _take(self, path: Path) -> DroppedHealth | None:
        unfinished = False
        try:
            text, written_s = _read(path)
            unfinished = time.time() - written_s < _UNFINISHED_S
            found = msgspec.json.decode(text, type=DroppedHealth)
            if not SOURCE_NAME.fullmatch(found.source):
                raise ValueError("`source` is a name of letters, digits, _ . : and -, at most 64")
            path.unlink()
        except (ValueError, RecursionError) as error:
            if not unfinished:
                self._put_aside(path, error)
            return None
        except OSError:
            return None
        return found

    def _put_aside(self, path: Path, error: Exception) -> None:
        self.bad += 1
        log.warning("the health report %r cannot be understood: %s", path.name[:80], error)
        with contextlib.suppress(OSError):
            path.rename(path.with_name(f".{path.name}.bad"))

    def close(self) -> None:
        pass


def _is_directory(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False)


def _read(path: Path) -> tuple[bytes, float]:
    """Its text, and when it was written. Raises ValueError if it is no file, or too large."""
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise ValueError("it is a link or a socket") from None
        raise
    with open(opened, "rb") as file:
        found = os.fstat(opened)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is no file")
        if found.st_size > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES} bytes")
        return file.read(_MOST_BYTES), found.st_mtime
