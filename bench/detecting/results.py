"""The file of results: one record a line, so that a run that was cut short continues where it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Results:
    """The file, one record a line."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        return [json.loads(line) for line in self._path.read_text().splitlines() if line.endswith("}")]

    def write(self, record: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
