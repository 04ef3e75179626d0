"""The delay matrix as the API shows it: its schemas, and records turned into them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from torchloom.model.links import LinkMatrix


class LinkDelayView(BaseModel):
    sender: int
    receiver: int
    delay_s: float
    """Of a small message, one way."""
    transfer_s: float
    """Of a megabyte, until the receiver has said that it has it."""


class LinkMatrixView(BaseModel):
    source: Literal["probe", "training"]
    """`training`: what the job's own sends and receives took."""
    operation: str
    generation: int
    at_ns: int
    at_step: int | None
    verdict: str
    """Which link, sender or receiver stands out, or that none does."""
    delays: list[LinkDelayView]
    silent: dict[int, str]
    """Ranks that measured nothing, and why."""


def link_matrix_view(matrix: LinkMatrix) -> LinkMatrixView:
    return LinkMatrixView(
        source=matrix.source,
        operation=matrix.operation,
        generation=matrix.generation,
        at_ns=matrix.at_ns,
        at_step=matrix.at_step,
        verdict=matrix.verdict,
        delays=[
            LinkDelayView(
                sender=one.sender, receiver=one.receiver, delay_s=one.delay_s, transfer_s=one.transfer_s
            )
            for one in matrix.delays
        ],
        silent=dict(matrix.silent),
    )
