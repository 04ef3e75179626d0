"""The copy that training waits for: all kinds of tensors arrive, also while other threads hold it up."""

from __future__ import annotations

import random

import pytest
import torch

from torchloom import compiled
from torchloom.checkpoint.native import COPIER, copy_past_cache
from torchloom.checkpoint.state import moving
from torchloom.checkpoint.state.moving import INLINE, PIECE, SMALL, move, place, prepare


class Other(torch.Tensor):
    pass


SOURCES = {
    "small": torch.arange(5, dtype=torch.bfloat16),
    "just large": torch.arange(SMALL, dtype=torch.uint8),
    "many pieces, an odd end": torch.randn((INLINE + PIECE) // 4 + 3),
    "with gaps": torch.randn(400, 300)[:, ::2],
    "transposed": torch.randn(300, 400).t(),
    "negated": torch.imag(torch.conj(torch.randn(40_000, dtype=torch.complex64))),
    "a parameter": torch.nn.Parameter(torch.randn(300, 300)),
    "empty": torch.empty(0),
    "a number": torch.tensor(3.5, dtype=torch.float64),
    "of another class": torch.randn(300, 300).as_subclass(Other),
}


def laid_out(sources: list[torch.Tensor]) -> tuple[list[int], torch.Tensor]:
    """Places with gaps between them, and memory for all."""
    places, end = [], 64
    for source in sources:
        places.append(end)
        end += (source.numel() * source.element_size() // 64 + 2) * 64
    return places, torch.zeros(end, dtype=torch.uint8)


@pytest.mark.parametrize("past_cache", [False, True], ids=["", "past the cache"])
@pytest.mark.parametrize("names", [[name] for name in SOURCES] + [list(SOURCES)], ids=", ".join)
def test_every_kind_of_tensor_arrives(
    names: list[str], past_cache: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "PAST_CACHE", 1 if past_cache else 1 << 62)
    sources = [SOURCES[name] for name in names]
    places, memory = laid_out(sources)
    move(memory, 0, [prepare(places, sources)])
    for at, source in zip(places, sources, strict=True):
        assert torch.equal(place(memory, at, source), source)
    free = torch.ones(len(memory), dtype=torch.bool)
    for at, source in zip(places, sources, strict=True):
        free[at : at + source.numel() * source.element_size()] = False
    assert not memory[free].any()  # nothing was written beside them


@pytest.mark.parametrize("at", [-64, 0, 192])
def test_what_does_not_fit_is_refused_before_a_byte_is_written(at: int) -> None:
    memory = torch.zeros(256, dtype=torch.uint8)
    with pytest.raises(ValueError, match="do not fit"):
        move(memory, 0, [prepare([at], [torch.ones(65)])])
    assert not memory.any()


def test_a_thread_that_is_held_up_leaves_its_pieces_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two threads takes nothing: the copy is whole all the same."""

    def one_of_two(threads: int, work: object) -> None:
        assert threads >= 1 and callable(work)
        work(1)

    monkeypatch.setattr(moving, "work_on", one_of_two)
    monkeypatch.setattr(moving, "at_once", lambda: 2)
    source = torch.randn(INLINE)
    (at,), memory = laid_out([source])
    move(memory, 0, [prepare([at], [source])])
    assert torch.equal(place(memory, at, source), source)


def test_a_copy_past_the_cache_takes_any_place_and_length_and_writes_nothing_else() -> None:
    if compiled.build(COPIER).library is None:
        pytest.skip("no C++ compiler")
    copy_past_cache.cache_clear()
    copy = copy_past_cache()
    assert copy is not None
    source = torch.randint(0, 256, (4096,), dtype=torch.uint8)
    chosen = random.Random(7)
    cases = [(at, out, n) for at in (0, 1, 15, 16, 17) for out in (0, 3) for n in (0, 1, 15, 16, 63, 64, 65)]
    cases += [(chosen.randrange(64), chosen.randrange(64), chosen.randrange(3000)) for _ in range(500)]
    for at, out, length in cases:
        memory = torch.full((4096,), 7, dtype=torch.uint8)
        copy(memory.data_ptr() + at, source.data_ptr() + out, length)
        wanted = torch.full((4096,), 7, dtype=torch.uint8)
        wanted[at : at + length] = source[out : out + length]
        assert torch.equal(memory, wanted), (at, out, length)


def test_without_a_compiled_library_the_ordinary_copy_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "copy_past_cache", lambda: None)
    test_every_kind_of_tensor_arrives(list(SOURCES), True, monkeypatch)
