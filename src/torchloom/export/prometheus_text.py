"""Reads the text that `/metrics` answers: name, labels, value and whether it only grows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_LINE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)(?: \d+)?$")
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


class MetricSample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float
    grows: bool


def samples(text: str) -> Iterator[MetricSample]:
    """Every sample; lines that are none are passed over."""
    counters: set[str] = set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            words = line.split()
            if len(words) == 4 and words[3] in ("counter", "histogram", "summary"):
                counters.add(words[2])
            continue
        found = _LINE.match(line)
        if found is None:
            continue
        try:
            value = float(found[3])
        except ValueError:
            continue
        labels = {
            name: re.sub(r"\\.", lambda one: _ESCAPES.get(one[0], one[0]), text)
            for name, text in _LABEL.findall(found[2] or "")
        }
        base = re.sub(r"_(total|bucket|count|sum|created)$", "", found[1])
        yield MetricSample(found[1], labels, value, bool({found[1], base} & counters))
