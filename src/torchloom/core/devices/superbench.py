"""Reads SuperBench's result files as they are: the summary of a run, and the output of its diagnosis. Pure.

A line of `results-summary.jsonl` is one node: `{"node": "n1", "gemm-flops/FP32:0": 18362.1, …}`; the number
after the colon is a GPU of the node. A metric that has no number, or not one for each GPU, is one of the
whole node and counts for all its GPUs. A line of `diagnosis_summary.jsonl` has `Index`, `Category` and
`Defective Details`; it names what SuperBench's rules found defective. Other lines (the monitor's) are counted
and left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct, field

from torchloom.core.devices.standing import beside
from torchloom.model.device_wear import TestMetric, TestResult

KEPT_METRICS = 16
"""The worst ones of a device are kept."""
MOST_METRICS = 20_000
_RANKED = re.compile(r"^(.+):(\d{1,4})$")
_DEFECTIVE = re.compile(r"([^\s,;(]+):(\d{1,4})(?=[(_])")
_SOURCE = "superbench"
Place = tuple[str, int | None]
"""A node, and the number of a GPU there; None: the whole node."""


class BenchFile(Struct):
    """What the files contain, by node."""

    values: dict[str, dict[str, float]] = field(default_factory=dict)
    defective: dict[str, str] = field(default_factory=dict)
    """Node → what its diagnosis says."""
    left_out: int = 0
    """Lines that are neither."""

    def read(self, lines: Iterable[str | bytes]) -> None:
        for line in lines:
            if line.strip():
                self._line(line)

    def _line(self, line: str | bytes) -> None:
        try:
            found = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError, UnicodeError):
            found = None
        node = (found.get("node") or found.get("Index")) if isinstance(found, dict) else None
        if not isinstance(found, dict) or not isinstance(node, str) or not node:
            self.left_out += 1
            return
        if "Defective Details" in found or "Category" in found:
            # Its numbers are differences from a baseline, not measurements.
            said = f"{found.get('Category') or ''}: {found.get('Defective Details') or ''}".strip(": ")
            if said:
                self.defective[node] = said
            return
        numbers = {name: float(v) for name, v in list(found.items())[:MOST_METRICS] if _is_number(v)}
        self.values.setdefault(node, {}).update(numbers)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def results(file: BenchFile, gpus: Mapping[str, int]) -> dict[Place, TestResult]:
    """A result for each GPU, or for a node whose number of GPUs is not known. `gpus`: how many a node has."""
    by_place: dict[Place, dict[str, float]] = {}
    all_values: dict[str, list[float]] = {}
    places: list[Place]
    for node, values in file.values.items():
        places = _places(node, gpus.get(node, 0))
        for at, name, value in _measured(values, gpus.get(node, 0)):
            all_values.setdefault(name, []).append(value)
            for place in places if at is None else [(node, at)]:
                by_place.setdefault(place, {})[name] = value
    made = {place: _result(measured, all_values) for place, measured in by_place.items()}
    for node, said in file.defective.items():
        for place in _accused(node, said, gpus.get(node, 0)):
            known = made.get(place, TestResult(source=_SOURCE, passed=False))
            made[place] = msgspec.structs.replace(known, passed=False, why=_of_place(said, place))
    return made


def _measured(values: Mapping[str, float], count: int) -> Iterable[tuple[int | None, str, float]]:
    """Every measurement of a node: of which GPU, or of the whole node."""
    ranks: dict[str, dict[int, float]] = {}
    for name, value in values.items():
        found = _RANKED.match(name)
        if found is None:
            yield None, name, value
        else:
            ranks.setdefault(found[1], {})[int(found[2])] = value
    for name, each in ranks.items():
        of_gpus = bool(count) and set(each) == set(range(count))
        for rank, value in each.items():
            yield (rank, name, value) if of_gpus else (None, f"{name}:{rank}", value)


def _places(node: str, count: int) -> list[Place]:
    return [(node, rank) for rank in range(count)] if count else [(node, None)]


def _result(measured: Mapping[str, float], all_values: Mapping[str, list[float]]) -> TestResult:
    failed = sorted(name for name, value in measured.items() if name.endswith("return_code") and value != 0)
    metrics = [beside(name, v, all_values[name]) for name, v in measured.items() if "return_code" not in name]
    worst = sorted(metrics, key=_order)[:KEPT_METRICS]
    why = f"{failed[0].rpartition('/')[0]} returned {measured[failed[0]]:g}" if failed else ""
    return TestResult(source=_SOURCE, passed=not failed, why=why, metrics=tuple(worst), measured=len(metrics))


def _order(metric: TestMetric) -> tuple[float, float, str]:
    return -metric.shortfall, 1.0 if metric.worse is None else metric.worse, metric.name


def _accused(node: str, said: str, count: int) -> list[Place]:
    """The GPUs that the diagnosis names; the whole node if it names none."""
    ranks = sorted({int(rank) for _, rank in _DEFECTIVE.findall(said)})
    return [(node, rank) for rank in ranks if rank < count] or _places(node, count)


def _of_place(said: str, place: Place) -> str:
    """What concerns this GPU, if that can be told apart; bounded."""
    category, _, details = said.partition(": ")
    mine = [part for part in details.split(",") if f":{place[1]}(" in part or f":{place[1]}_" in part]
    return f"{category}: {', '.join(mine)}"[:300] if mine else said[:300]
