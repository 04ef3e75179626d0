"""Uneven shares of a global batch as a setting: which ranks take fewer samples of every step than the others.

The samples of a step stay the same, and so does their weight in the gradient, if the script multiplies its
loss by `loader.weight`. core/config/batch_shares.py owns the text and its meaning, order.py cuts a batch.
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol

from torchloom.core.config.batch_shares import HINT, BatchShares, read_shares, write_shares
from torchloom.errors import UsageError

NOT_WEIGHED = "the script does not multiply its loss by loader.weight: uneven shares would change its result"


class Sharing(Protocol):
    """A loader, as far as this is concerned."""

    shares: BatchShares

    @property
    def is_weighed(self) -> bool:
        """Whether the script took the weight of its last batch."""

    @property
    def world(self) -> int:
        """How many ranks share a batch."""


class ShareSetting:
    """`shares` of a job. Does not keep its loader alive (see batch.py)."""

    def __init__(self, loader: Sharing) -> None:
        self._of = weakref.ref(loader)

    @property
    def _loader(self) -> Sharing:
        loader = self._of()
        if loader is None:
            raise UsageError("the loader of these shares is gone")
        return loader

    def get(self) -> str:
        return write_shares(self._loader.shares)

    def check(self, value: Any) -> str:
        shares = read_shares(value)
        if shares.light and shares.world != self._loader.world:
            raise UsageError(
                f"the shares are for {shares.world} ranks, and {self._loader.world} share the batches",
                hint=HINT,
            )
        if shares.light and not self._loader.is_weighed:
            raise UsageError(NOT_WEIGHED, hint="multiply the loss by loader.weight in every step")
        return write_shares(shares)

    def set(self, value: Any) -> None:
        """From the next batch on. A schedule of an earlier generation may name another number of ranks: then
        it is kept, and every rank takes the same."""
        self._loader.shares = read_shares(value)
