"""Hashing parameters: ranks choose alike, every bit counts, and the cost stays small."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from torchloom.probe.observe.parameter_hashes import FIRST, MOST_SEGMENTS, ParameterHashes, cut, parts_at
from torchloom.wire.blackbox import SIZE, Hash, Progress, View


@pytest.fixture(autouse=True)
def looks_that_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """How often is looked depends on what a look took."""
    clocks(monkeypatch, cpu=lambda: 0)


def clocks(monkeypatch: pytest.MonkeyPatch, cpu: Callable[[], int]) -> None:
    """As on a host where every look has to wait for a core for a second."""
    wall = count(0, 10**9)
    both = SimpleNamespace(thread_time_ns=cpu, monotonic_ns=lambda: next(wall))
    monkeypatch.setattr("torchloom.probe.observe.parameter_hashes.time", both)


def box(step_ns: int = 300_000_000) -> View:
    view = View(memoryview(bytearray(SIZE)))
    view.set_progress(Progress.STEP_NS, step_ns)
    return view


def hashes(model: torch.nn.Module, steps: int = 64) -> dict[tuple[int, int], int]:
    view = box()
    replicas, optimizer = (
        ParameterHashes(view, lambda *told: None),
        torch.optim.SGD(model.parameters(), lr=0.1),
    )
    found: dict[tuple[int, int], int] = {}
    due = FIRST
    for step in range(steps):
        if step >= due:
            due = replicas.look(step, optimizer)
            assert due > step
            found |= {(h.step, h.part): h.hash for h in view.hashes()}
    return found


@pytest.mark.parametrize("sizes", [[1], [64, 8], [7] * 1000, [10**6, 3, 10**6], [4_000_000_000]])
def test_all_of_the_parameters_are_in_exactly_one_part(sizes: list[int]) -> None:
    parts = cut(sizes)
    assert len(parts) < 1 << 16 and all(len(part) <= MOST_SEGMENTS for part in parts)
    for index, size in enumerate(sizes):
        mine = [s for part in parts for s in part if s.parameter == index]
        assert mine[0].start == 0 and mine[-1].stop == size
        assert all(a.stop == b.start for a, b in pairwise(mine))


@pytest.mark.parametrize("apart", [1, 2, 8, 64, 4096])
@pytest.mark.parametrize("parts", [1, 3, 8, 64, 1000])
def test_over_time_all_parts_are_looked_at_however_seldom(parts: int, apart: int) -> None:
    seen: set[int] = set()
    for look in range(4 * parts + 8):
        seen |= set(parts_at(look * apart, parts))
    assert seen == set(range(parts))


def test_equal_models_have_equal_hashes_and_one_bit_changes_its_part_only() -> None:
    torch.manual_seed(0)
    one, other = torch.nn.Linear(40, 40), torch.nn.Linear(40, 40)
    other.load_state_dict(one.state_dict())
    before, same = hashes(one), hashes(other)
    both = before.keys() & same.keys()
    assert both and all(before[key] == same[key] for key in both)
    with torch.no_grad():
        other.weight.view(-1)[700:701].view(torch.int32).bitwise_xor_(1)
    after = hashes(other)
    both = before.keys() & after.keys()
    assert len({part for step, part in both if before[step, part] != after[step, part]}) == 1


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.float32]
)
def test_every_kind_of_number_has_a_hash(dtype: torch.dtype) -> None:
    model = torch.nn.Module()
    model.w = torch.nn.Parameter(torch.ones(7, 3, dtype=dtype))
    assert hashes(model)


def test_other_memory_formats_are_hashed_and_what_is_no_ordinary_tensor_is_left_out() -> None:
    convolution = torch.nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last)
    assert hashes(convolution)

    class Shard(torch.nn.Parameter):  # type: ignore[misc]
        pass

    model = torch.nn.Module()
    model.w = Shard(torch.ones(100))
    assert hashes(model) == {}


def test_looks_are_powers_of_two_apart_and_seldom_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10**15, 3_000_000))  # every look seems to take 3 ms
    clocks(monkeypatch, cpu=lambda: next(clock))
    view = box(step_ns=10_000_000)
    replicas, optimizer = (
        ParameterHashes(view, lambda *told: None),
        torch.optim.SGD([torch.nn.Parameter(torch.ones(4))], lr=0.1),
    )
    due: Any = FIRST
    looked = []
    for step in range(1200):
        if step >= due:
            due = replicas.look(step, optimizer)
            looked.append(step)
    assert looked[-1] - looked[-2] == 256  # 3 ms of 2.56 s are 0.12 %
    assert all(step % 256 == 0 for step in looked[4:])


def test_a_record_that_is_being_written_is_not_read() -> None:
    view = box()
    view.write_hash(0, Hash(8, 1, 2**64 - 1))
    view.write_hash(1, Hash(16, 1, 5))
    assert view.hashes() == [Hash(8, 1, 2**64 - 1), Hash(16, 1, 5)]
    view.words[(3072 + 128) // 8 + 2] = 9
    assert view.hashes() == [Hash(16, 1, 5)]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.complex64])
def test_parameters_that_stop_being_numbers_are_told_once_and_so_is_their_recovery(
    dtype: torch.dtype, bad: float
) -> None:
    weight = torch.nn.Parameter(torch.ones(100, 70, dtype=dtype))
    told: list[tuple[bool, int]] = []
    replicas = ParameterHashes(box(), lambda finite, step: told.append((finite, step)))
    optimizer = torch.optim.SGD([weight, torch.nn.Parameter(torch.ones(3))], lr=0.1)
    mask = torch.nn.Parameter(torch.full((4,), -torch.inf))
    optimizer.add_param_group({"params": [mask]})

    def look(steps: range) -> None:
        for step in steps:
            replicas.look(step, optimizer)

    look(range(64))
    assert told == [], "a mask has infinities from the start"
    with torch.no_grad():
        weight[50, 3] = bad
    look(range(64, 192))
    assert [finite for finite, _ in told] == [False] and 64 <= told[0][1] < 192
    with torch.no_grad():
        weight[50, 3] = 1.0
    look(range(192, 320))
    assert [finite for finite, _ in told] == [False, True]


def test_who_has_nobody_to_compare_with_hashes_nothing_and_still_sees_what_is_no_number() -> None:
    view, told = box(), list[bool]()
    replicas = ParameterHashes(view, lambda finite, step: told.append(finite), compare=False)
    weight = torch.nn.Parameter(torch.ones(1000))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for step in range(64):
        replicas.look(step, optimizer)
    with torch.no_grad():
        weight[700] = torch.nan
    for step in range(64, 192):
        replicas.look(step, optimizer)
    assert told == [False] and view.hashes() == []


def test_what_was_told_of_old_parameters_ends_with_them() -> None:
    told: list[bool] = []
    replicas = ParameterHashes(box(), lambda finite, step: told.append(finite))
    weight = torch.nn.Parameter(torch.ones(10))
    for step in range(64):
        replicas.look(step, torch.optim.SGD([weight], lr=0.1))
    with torch.no_grad():
        weight.fill_(torch.nan)
    for step in range(64, 128):
        replicas.look(step, torch.optim.SGD([weight], lr=0.1))
    assert told == [False]
    fresh = torch.nn.Parameter(torch.ones(10))
    for step in range(128, 192):
        replicas.look(step, torch.optim.SGD([fresh], lr=0.1))
    assert told == [False, True]


def test_large_numbers_are_numbers() -> None:
    told: list[tuple[bool, int]] = []
    weights = [torch.ones(1000), torch.ones(1000, dtype=torch.float16)]
    optimizer = torch.optim.SGD([torch.nn.Parameter(w) for w in weights], lr=0.1)
    replicas = ParameterHashes(box(), lambda finite, step: told.append((finite, step)))
    for step in range(64):
        replicas.look(step, optimizer)
    with torch.no_grad():
        for weight, value in zip(optimizer.param_groups[0]["params"], (3e38, 6e4), strict=True):
            weight.fill_(value)
    for step in range(64, 192):
        replicas.look(step, optimizer)
    assert told == []
