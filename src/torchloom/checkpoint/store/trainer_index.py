"""The checkpoints that a framework's trainer saved by itself, as a small file that names them.

Hugging Face, Lightning and accelerate keep their own files, in places of their own; torchloom neither moves
nor deletes them. Rank 0 records each finished save here, so that a catalogue can list them and a restart can
find the newest one that is complete. Owns that file and nothing else.

    {"checkpoints": [{"step": 40, "generation": 1, "path": "/…/checkpoint-40", "at_s": …, "size": …,
                      "world": 2, "epoch": 1, "metrics": {"loss": 0.5}}]}
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

MOST = 1000
"""Entries that are kept; the oldest go first."""
SUFFIX = ".trainer.json"


@dataclass(frozen=True)
class TrainerCheckpoint:
    """One finished save."""

    step: int
    generation: int
    path: str
    at_s: float = 0.0
    size: int = 0
    world: int = 0
    epoch: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As the catalogue shows it."""
        return f"step-{self.step}.g{self.generation}"


def index_path(directory: str, job: str) -> Path:
    """The index of a job in the directory that LOOM_CHECKPOINT_DIR names."""
    return Path(directory) / f"{job}{SUFFIX}"


def read(path: Path) -> list[TrainerCheckpoint]:
    """All that were recorded and still exist, newest step last; none if the file is missing or damaged."""
    try:
        found = json.loads(path.read_text())["checkpoints"]
        entries = [_entry(one) for one in found]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return sorted((one for one in entries if os.path.exists(one.path)), key=_age)


def newest(entries: Iterable[TrainerCheckpoint], step: int | None = None) -> TrainerCheckpoint | None:
    """The one to resume from: of `step` if given, else the newest."""
    wanted = [one for one in entries if step is None or one.step == step]
    return max(wanted, key=_age, default=None)


def record(path: Path, saved: TrainerCheckpoint) -> None:
    """Add one, in place of an earlier save to the same path. Raises OSError."""
    entries = [one for one in read(path) if one.path != saved.path]
    kept = [*entries, saved][-MOST:]
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        made.write_text(json.dumps({"checkpoints": [asdict(one) for one in kept]}))
        made.replace(path)
    finally:
        with contextlib.suppress(OSError):
            made.unlink()


def size_of(path: str) -> int:
    """Bytes of a file, or of all files below a directory."""
    with contextlib.suppress(OSError):
        if not os.path.isdir(path):
            return os.path.getsize(path)
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.path.getsize(os.path.join(folder, name))
    return total


def _age(one: TrainerCheckpoint) -> tuple[int, float]:
    return one.step, one.at_s


def _entry(told: Mapping[str, Any]) -> TrainerCheckpoint:
    metrics = {
        str(name): float(value)
        for name, value in (told.get("metrics") or {}).items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
    return TrainerCheckpoint(
        step=int(told["step"]),
        generation=int(told.get("generation") or 0),
        path=str(told["path"]),
        at_s=float(told.get("at_s") or 0.0),
        size=int(told.get("size") or 0),
        world=int(told.get("world") or 0),
        epoch=int(told.get("epoch") or 0),
        metrics=metrics,
    )
