"""The copy that training waits for: all kinds of tensors arrive, also while other threads hold it up."""

from __future__ import annotations

import pytest
import torch

from torchloom.checkpoint.state import moving
from torchloom.checkpoint.state.moving import INLINE, PIECE, SMALL, move


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
    "of another class": torch.randn(300, 300).as_subclass(Other),
}


@pytest.mark.parametrize("names", [[name] for name in SOURCES] + [list(SOURCES)], ids=", ".join)
def test_every_kind_of_tensor_arrives(names: list[str]) -> None:
    sources = [SOURCES[name] for name in names]
    targets = [torch.zeros(source.shape, dtype=source.dtype) for source in sources]
    with torch.no_grad():
        move(targets, sources)
    assert all(torch.equal(target, source) for target, source in zip(targets, sources, strict=True))


def test_a_thread_that_is_held_up_leaves_its_pieces_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two threads takes nothing: the copy is whole all the same."""

    def one_of_two(threads: int, work: object) -> None:
        assert threads >= 1 and callable(work)
        work(1)

    monkeypatch.setattr(moving, "work_on", one_of_two)
    monkeypatch.setattr(moving, "at_once", lambda: 2)
    source = torch.randn(INLINE)
    target = torch.zeros_like(source)
    move([target], [source])
    assert torch.equal(target, source)
