"""The global batch as a thing that can be set while training (see `live`): one meaning for both loaders."""

from __future__ import annotations

import weakref
from typing import Any, Protocol

from torchloom.errors import UsageError


class Batching(Protocol):
    """A loader, as far as this is concerned."""

    @property
    def global_batch(self) -> int:
        """Samples of one step, over all ranks."""

    def set_global_batch(self, global_batch: int) -> None:
        """From the next batch on."""

    def check_global_batch(self, global_batch: int) -> None:
        """Raises UsageError if that is impossible."""


class GlobalBatch:
    """`batch_size` of a job: samples of one step over all ranks.

    Does not keep its loader alive. A cycle would be ended by the garbage collector, in the midst of a step,
    which closes the queues of torch's data workers first: then each of them is waited for for five seconds.
    """

    def __init__(self, loader: Batching) -> None:
        self._of = weakref.ref(loader)

    @property
    def _loader(self) -> Batching:
        loader = self._of()
        if loader is None:
            raise UsageError("the loader of this batch size is gone")
        return loader

    def get(self) -> int:
        return self._loader.global_batch

    def check(self, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise UsageError(f"a batch of {str(value)[:40]} is impossible", hint="give a whole number")
        self._loader.check_global_batch(value)
        return value

    def set(self, value: int) -> None:
        """Let it hold from the next batch on; no sample is lost or repeated, and what was read ahead in the
        old size is discarded and read again."""
        self._loader.set_global_batch(self.check(value))
