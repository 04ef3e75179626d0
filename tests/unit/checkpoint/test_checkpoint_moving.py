"""The copy that training waits for: all kinds of tensors arrive, also while other threads hold it up."""

from __future__ import annotations

import pytest
import torch

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


@pytest.mark.parametrize("names", [[name] for name in SOURCES] + [list(SOURCES)], ids=", ".join)
def test_every_kind_of_tensor_arrives(names: list[str]) -> None:
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
