"""Reads SuperBench's result files as they are: the summary of a run, and the output of its diagnosis. Pure.

A line of `results-summary.jsonl` is one node: `{"node": "n1", "gemm-flops/FP32:0": 18362.1, …}`; the number
after the colon is a GPU of the node. A metric that has no number, or not one for each GPU, is one of the
whole node and counts for all its GPUs. `nodes/n1/results-summary.json` is the same for one node, named by its
directory. A diagnosis, `.jsonl` or a list in `.json`, names what SuperBench's rules found defective:
`Index`, `Category` and `Defective Details`, or since 0.6 `index`, `diagnosis/category` and
`diagnosis/issue_details`. Other lines (the monitor's) are counted and left out. `of_executed` reads what
`sb exec` wrote about one device.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeGuard

import msgspec
from msgspec import Struct, field

from torchloom.core.devices.standing import beside
from torchloom.model.device_wear import TestMetric, TestResult

KEPT_METRICS = 16
"""The worst ones of a device are kept."""
MOST_METRICS = 20_000
_RANKED = re.compile(r"^(.+):(\d{1,4})$")
_DEFECTIVE = re.compile(r"([^\s,;(]+):(\d{1,4})(?=[(_])")
_CODE = re.compile(r"^(.+)/return_code(?::(\d{1,4}))?$")
_SET_UP_CODES = frozenset({1, 2, 10, 15, 16, 17, 18, 30, 31, 33, 34})
"""The benchmark was not installed or configured for this device; nothing was measured."""
_NOT_MEASURED = ("monitor/",)
"""What its monitor saw meanwhile: of a temperature or a used memory more is neither better nor worse."""
_EXACT = "/deterministic_"
"""Losses and checksums of a computation that is the same everywhere."""
_ALIKE = 3
"""So many others must have the same value before one that differs is wrong."""
_LARGEST = 1.7e308
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

    def read_file(self, text: bytes, directory: str = "") -> None:
        """A whole file; `directory` is the name of the one it is in."""
        found = _decoded(text)
        if isinstance(found, list):
            for one in found:
                self._object(one)
        elif isinstance(found, dict) and any("/" in name for name in found):
            self._object({"node": directory} | found if "node" not in found else found)
        else:
            self.read(text.splitlines())

    def read(self, lines: Iterable[str | bytes]) -> None:
        for line in lines:
            if line.strip():
                self._object(_decoded(line))

    def _object(self, found: object) -> None:
        if not isinstance(found, dict):
            self.left_out += 1
            return
        node = found.get("Index") or found.get("index") or found.get("node")
        if not isinstance(node, str) or not node:
            self.left_out += 1
            return
        category = found.get("Category") or found.get("diagnosis/category")
        details = found.get("Defective Details") or found.get("diagnosis/issue_details")
        if any(name.startswith("diagnosis/") or name in ("Category", "Defective Details") for name in found):
            # Its numbers are differences from a baseline, not measurements.
            said = f"{category or ''}: {details or ''}".strip(": ")
            if said and found.get("diagnosis/accept") is not True:
                self.defective[node] = said
            return
        numbers = {name: float(v) for name, v in list(found.items())[:MOST_METRICS] if _is_number(v)}
        self.values.setdefault(node, {}).update(numbers)


def _decoded(text: str | bytes) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None


def _is_number(value: object) -> TypeGuard[float]:
    """A number that a float can hold: in JSON a whole number may have any length."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= _LARGEST


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
    failed, not_run = _codes(measured)
    failed += [_differs(name, v, all_values[name]) for name, v in sorted(measured.items()) if _EXACT in name]
    wrong = [one for one in failed if one]
    metrics = [beside(name, v, all_values[name]) for name, v in measured.items() if _is_speed(name)]
    worst = sorted(metrics, key=_order)[:KEPT_METRICS]
    why = next(iter([*wrong, *not_run]), "")
    return TestResult(source=_SOURCE, passed=not wrong, why=why, metrics=tuple(worst), measured=len(metrics))


def _is_speed(name: str) -> bool:
    return not (_CODE.match(name) or name.startswith(_NOT_MEASURED) or _EXACT in name)


def _codes(measured: Mapping[str, float]) -> tuple[list[str], list[str]]:
    """Benchmarks that failed, and those that could not run, in words."""
    failed, not_run = [], []
    for name, value in sorted(measured.items()):
        found = _CODE.match(name)
        if found is None or value == 0:
            continue
        if value in _SET_UP_CODES:
            not_run.append(f"{found[1]} could not run (SuperBench's code {value:g})")
        else:
            failed.append(f"{found[1]} returned {value:g}" + (f" on GPU {found[2]}" if found[2] else ""))
    return failed, not_run


def _differs(name: str, value: float, values: Sequence[float]) -> str:
    """Why a result that must be the same everywhere is wrong; empty if it is not, or cannot be known."""
    others = [one for one in values if one != value]
    if len(others) != len(values) - 1 or len(others) < _ALIKE or len(set(others)) != 1:
        return ""
    return f"{name} differs from that of all {len(others)} others, which are the same"


def of_executed(files: Iterable[bytes]) -> TestResult | None:
    """The result of one device, from the `results.json` of every benchmark that `sb exec` ran on it; None if
    none could run. Several runs of a metric count as their mean."""
    measured: dict[str, float] = {}
    for text in files:
        found = _decoded(text)
        for one in found if isinstance(found, list) else ():
            if isinstance(one, dict) and isinstance(one.get("name"), str):
                measured |= _of_benchmark(one)
    failed, not_run = _codes(measured)
    metrics = [TestMetric(name=name, value=value) for name, value in measured.items() if _is_speed(name)]
    if not metrics and not failed:
        return None
    return TestResult(
        source=_SOURCE,
        passed=not failed,
        why=next(iter([*failed, *not_run]), ""),
        metrics=tuple(sorted(metrics, key=lambda one: one.name)[:KEPT_METRICS]),
        measured=len(metrics),
    )


def _of_benchmark(found: Mapping[str, object]) -> dict[str, float]:
    name, code, result = found["name"], found.get("return_code"), found.get("result")
    made: dict[str, float] = {f"{name}/return_code": float(code)} if _is_number(code) else {}
    for metric, values in list(result.items())[:MOST_METRICS] if isinstance(result, dict) else ():
        numbers = [float(one) for one in values if _is_number(one)] if isinstance(values, list) else []
        if numbers and metric != "return_code":
            made[f"{name}/{metric}"] = sum(numbers) / len(numbers)
    return made


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
