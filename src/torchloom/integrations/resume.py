"""The checkpoint of a framework's trainer to resume from, if the job asks for that.

`loom run --resume auto` sets LOOM_RESUME=auto; `loom restore JOB --step N` sets LOOM_RESTORE_STEP. Without
either, nothing here has an effect and the script decides. Reads the index of what this job saved; for a job
that has saved nothing yet, a search in the framework's own directory takes its place.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from torchloom.checkpoint.store import trainer_index
from torchloom.integrations.training_loop import index_of


def wanted() -> bool:
    """Whether the job asks for it."""
    return os.environ.get("LOOM_RESUME") == "auto" or restore_step() is not None


def restore_step() -> int | None:
    """The training step that somebody wants back."""
    text = os.environ.get("LOOM_RESTORE_STEP", "")
    return int(text) if text.isdecimal() else None


def find(directory: str, search: Callable[[str, int | None], str | None]) -> str | None:
    """Path of the checkpoint to load; None: begin from the start.

    `search(directory, step)` looks at the framework's own files, and must return only complete ones.
    """
    if not wanted():
        return None
    step = restore_step()
    known = trainer_index.newest(trainer_index.read(index_of(directory)), step)
    if known is not None:
        return known.path
    return search(directory, step)
