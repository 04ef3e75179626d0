"""Memory of tensors that a restore makes: ordinary tensors, whose pages are made before they are written."""

from __future__ import annotations

import copy
import io
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from torchloom.checkpoint.state.new_memory import CHUNK, OWN_MAPPING, PATIENCE_S, NewMemory

SHAPE = (3, CHUNK // 4)
SIZE = 3 * CHUNK


def of_mapping(tensor: torch.Tensor) -> dict[str, str]:
    """What the kernel says of the mapping that holds the tensor; nothing if there is none."""
    found: dict[str, str] = {}
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if bounds := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            first, last = (int(one, 16) for one in bounds.groups())
            inside = first <= tensor.data_ptr() < last
        elif inside:
            name, _, value = line.partition(":")
            found[name] = value.strip()
    return found


def resident(tensor: torch.Tensor) -> int:
    return int(of_mapping(tensor)["Rss"].split()[0]) << 10


def test_a_tensor_is_like_any_other() -> None:
    made = NewMemory().empty(SHAPE, torch.float32)
    assert made.shape == SHAPE and made.dtype == torch.float32 and made.is_contiguous()
    assert made._base is None and made.storage_offset() == 0
    assert made.untyped_storage().nbytes() == SIZE
    values = torch.randn(SHAPE)
    made.copy_(values)
    assert torch.equal(copy.deepcopy(made), values)
    file = io.BytesIO()
    torch.save(made, file)
    file.seek(0)
    assert torch.equal(torch.load(file), values)
    made.share_memory_()
    assert made.is_shared() and torch.equal(made, values)


def test_its_memory_goes_with_it_and_not_with_the_others() -> None:
    memory = NewMemory()
    made = [memory.empty(SHAPE, torch.float32) for _ in range(3)]
    for tensor in made:
        tensor.fill_(1)
    before = _anonymous()
    del made[1], tensor
    assert before - _anonymous() >= SIZE - CHUNK
    assert all(bool((tensor == 1).all()) for tensor in made)


def test_a_view_keeps_its_memory() -> None:
    view = NewMemory().empty(SHAPE, torch.float32).fill_(7)[1]
    assert bool((view == 7).all())


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (OWN_MAPPING // 4 - 1,)])
def test_small_ones_are_left_to_the_allocator(shape: tuple[int, ...]) -> None:
    made = NewMemory().empty(shape, torch.float32)
    assert made.shape == shape and made.untyped_storage().resizable()


def test_without_room_for_a_mapping_the_allocator_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> Any:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("mmap.mmap", refuse)
    made = NewMemory().empty(SHAPE, torch.float32)
    assert made.shape == SHAPE and made.untyped_storage().resizable()


def test_pages_are_made_where_they_are_asked_for_and_hold_what_they_held() -> None:
    memory = NewMemory()
    made = memory.empty((16, CHUNK // 4), torch.float32)
    made[5].fill_(3)
    before = resident(made)
    memory.make(made.data_ptr(), 0, 4 * CHUNK)
    if not memory._works:
        pytest.skip("this kernel makes no pages on request")
    assert resident(made) - before >= 3 * CHUNK
    assert resident(made) < 14 * CHUNK
    memory.make(made.data_ptr(), 4 * CHUNK, 16 * CHUNK)
    assert resident(made) >= 16 * CHUNK
    assert bool((made[5] == 3).all())


def test_memory_of_others_is_left_alone() -> None:
    other = torch.empty(16, CHUNK // 4)
    before = resident(other)
    NewMemory().make(other.data_ptr(), 0, 16 * CHUNK)
    assert resident(other) == before


def clock(each_s: float) -> Iterator[float]:
    return itertools.count(step=each_s)  # type: ignore[arg-type, return-value]


has_large = pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this kernel has no large pages"
)


@has_large
@pytest.mark.parametrize(("each_s", "kind"), [(PATIENCE_S * 2, "nh"), (PATIENCE_S / 100, "hg")])
def test_large_pages_are_asked_for_until_they_take_longer_than_small_ones(each_s: float, kind: str) -> None:
    now = clock(each_s)
    memory = NewMemory(lambda: next(now))
    made = [memory.empty((4, CHUNK // 4), torch.float32) for _ in range(3)]
    assert all("hg" in of_mapping(tensor)["VmFlags"].split() for tensor in made)
    memory.make(made[0].data_ptr(), 0, 2 * CHUNK)
    if not memory._works:
        pytest.skip("this kernel makes no pages on request")
    assert all(kind in of_mapping(tensor)["VmFlags"].split() for tensor in made)


@has_large
def test_a_slow_one_among_quick_ones_changes_nothing() -> None:
    times = itertools.chain.from_iterable((0.0, 0.003 if n % 6 == 0 else 0.0001) for n in itertools.count())
    memory = NewMemory(lambda: next(times))
    made = memory.empty((24, CHUNK // 4), torch.float32)
    memory.make(made.data_ptr(), 0, 24 * CHUNK)
    assert "hg" in of_mapping(made)["VmFlags"].split()


def _anonymous() -> int:
    found = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10
