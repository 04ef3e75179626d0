"""Shows the native recorder where a batch of operations (torch's coalescing) begins and ends.

A backend gives the operations of a batch no work of their own; `batch_isend_irecv` on NCCL makes such
batches, so every pipeline does. The work of the whole batch is returned by a method that the dispatcher does
not see, hence this wrapper around it. A failure of ours leaves the operations without a recorded end.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

_FAILURES = (RuntimeError, TypeError, AttributeError, ValueError)
_watched = False


def watch() -> None:
    """Wrap the two methods of ProcessGroup, once per process. Needs the native recorder to be loaded."""
    global _watched
    torch: Any = sys.modules.get("torch")
    group: Any = getattr(importlib.import_module("torch.distributed"), "ProcessGroup", None)
    if _watched or group is None or not hasattr(group, "_end_coalescing") or not hasattr(group, "boxed"):
        return
    _watched = True
    begin, end = group._start_coalescing, group._end_coalescing
    work_type: Any = importlib.import_module("torch.distributed").Work
    ours = torch.ops.torchloom

    def start_coalescing(self: Any, device: Any) -> None:
        begin(self, device)
        try:
            ours.batch_begins(self.boxed())
        except _FAILURES:
            return

    def end_coalescing(self: Any, device: Any) -> Any:
        work = end(self, device)
        try:
            if work is None:
                ours.sync_batch_ended(self.boxed())
                return None
            return work_type.unbox(ours.batch_ended(self.boxed(), work.boxed()))
        except _FAILURES:
            return work

    group._start_coalescing, group._end_coalescing = start_coalescing, end_coalescing
