"""Reports that any program drops as files into `LOOM_HOME/health`: one JSON object, the same as of
`POST /devices/{id}/health` with the device's id in it. A file is removed once it is read.

Write elsewhere and rename it into the directory; names that begin with a dot are left alone. A file that
cannot be understood is renamed to `.<name>.bad` and counted, and costs nothing else.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
from pathlib import Path

import msgspec

from torchloom.agent.health.health_source import SourceLook
from torchloom.model.devices import DeviceReading, HealthClass, HealthReport

log = logging.getLogger(__name__)

DIRECTORY = "health"
_MOST_BYTES = 64 << 10
_MOST_FILES = 256
_MOST_TEXT = 500


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
                device=found.device, level=found.level, why=found.why[:_MOST_TEXT], source=found.source[:64]
            )
            reports.append(report)
            if found.values:
                values = {k: v for k, v in found.values.items() if math.isfinite(v)}
                readings.append(DeviceReading(device=found.device, source=report.source, values=values))
        return SourceLook(readings=tuple(readings), reports=tuple(reports))

    def _files(self) -> list[Path]:
        try:
            with os.scandir(self._directory) as entries:
                names = sorted(e.name for e in entries if not e.name.startswith(".") and e.is_file())
        except OSError:
            return []
        return [self._directory / name for name in names[:_MOST_FILES]]

    def _take(self, path: Path) -> DroppedHealth | None:
        try:
            if path.stat().st_size > _MOST_BYTES:
                raise ValueError(f"it has more than {_MOST_BYTES} bytes")
            found = msgspec.json.decode(path.read_bytes(), type=DroppedHealth)
            path.unlink()
        except (ValueError, msgspec.DecodeError, RecursionError) as error:
            self.bad += 1
            log.warning("the health report %s cannot be understood: %s", path.name, error)
            with contextlib.suppress(OSError):
                path.rename(path.with_name(f".{path.name}.bad"))
            return None
        except OSError:
            return None
        return found

    def close(self) -> None:
        pass
