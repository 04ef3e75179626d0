"""What a data worker is asked for, and how it answers: each sample read with its own random numbers.

Owns the question and the reading of one batch. Which samples those are is the loader's to decide.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torchloom.data.randomness import SeededReading
from torchloom.data.transforms import Pipeline, Transforms


class Wanted(NamedTuple):
    """What a data worker is asked for. Epoch and pipeline travel with the question, because persistent data
    workers keep the dataset of the first epoch, and a batch is made by what held when it was planned."""

    seed: int
    epoch: int
    numbers: int
    """How random numbers begin (randomness.py)."""
    pipeline: Pipeline
    indices: list[int]


class AskedSamples:
    """The dataset as the data workers see it: asked for a batch, seeded sample by sample."""

    def __init__(self, dataset: Any, seeds: bool, transforms: Transforms | None) -> None:
        self._dataset, self._transforms = dataset, transforms
        self._seeded = SeededReading() if seeds else None

    def __getitems__(self, wanted: Wanted) -> list[Any]:
        dataset, transforms = self._dataset, self._transforms
        seed, epoch, numbers, pipeline, indices = wanted
        if self._seeded is None:
            together = getattr(dataset, "__getitems__", None)
            found = together(indices) if together else list(map(dataset.__getitem__, indices))
            return [transforms.through(pipeline, sample) for sample in found] if transforms else found
        if transforms is None:
            return self._seeded.read(dataset.__getitem__, (seed, epoch), indices, numbers)

        def transformed(index: int) -> Any:
            return transforms.through(pipeline, dataset[index], (seed, epoch, index))

        return self._seeded.read(transformed, (seed, epoch), indices, numbers)
