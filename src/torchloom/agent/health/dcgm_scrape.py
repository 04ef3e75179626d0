"""Scrapes exporters of this host (DCGM exporter, node_exporter): LOOM_SCRAPE names their addresses."""

from __future__ import annotations

import os
import urllib.request
from pathlib import Path

from torchloom.agent.health.health_source import SourceLook
from torchloom.core.devices.exposition import readings

VARIABLE = "LOOM_SCRAPE"
_WITHIN_S = 5.0
_MOST_BYTES = 8 << 20


class ScrapeSource:
    name, every_s, deadline_s, isolated = "scrape", 10.0, 60.0, False

    def __init__(self, node: str, home: Path) -> None:
        self._node = node
        self._urls = [url for url in os.environ.get(VARIABLE, "").split(",") if url]

    def why_not(self) -> str:
        if not self._urls:
            return f"{VARIABLE} names no exporter"
        strange = [url for url in self._urls if not url.startswith(("http://", "https://"))]
        return f"{VARIABLE}: {strange[0]} is no http address" if strange else ""

    def look(self) -> SourceLook:
        found = []
        for url in self._urls:
            with urllib.request.urlopen(url, timeout=_WITHIN_S) as answer:  # checked above
                text = answer.read(_MOST_BYTES).decode("utf-8", "replace")
            found += readings(text, self._node)
        return SourceLook(readings=tuple(found))

    def close(self) -> None:
        pass
