"""Which generations of a job have begun, and what each resumed from.

Owns two kinds of create-only records. `generations/<G>` says that generation G has begun: the *fence*, at
which writers of older generations stop. `generations/<G>.from` says which checkpoint G resumed from, or
that it began from nothing: the *choice*, made once and never changed. Reading the choices back gives the
line of states that led to the newest one (`line_of_descent`), which is all that a restart may ever choose
from. The argument why this holds against writers that wake up late is in commit.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from torchloom.checkpoint.manifest import seal, unseal
from torchloom.checkpoint.names import (
    SCRATCH,
    CheckpointName,
    choice_key,
    generation_key,
    parse_generation,
    parse_name,
)
from torchloom.checkpoint.points import at
from torchloom.checkpoint.storage import Storage
from torchloom.errors import CheckpointDamaged, CheckpointExists, CheckpointFenced, CheckpointMissing

MAX_CLAIMS = 1000


class Choices(Mapping[int, CheckpointName | None]):
    """What each generation resumed from; None: from nothing. Read from the store when asked for.

    A choice that cannot be read counts as not made: a generation that fails to record it never trains.
    """

    def __init__(self, storage: Storage, job: str, recorded: frozenset[int]) -> None:
        self._storage = storage
        self._job = job
        self._recorded = recorded
        self._read: dict[int, CheckpointName | None] = {}

    def __getitem__(self, generation: int) -> CheckpointName | None:
        if generation not in self._recorded:
            raise KeyError(generation)
        if generation not in self._read:
            key = choice_key(self._job, generation)
            try:
                text = unseal(self._storage.get(key), key)["from"]
            except (CheckpointDamaged, CheckpointMissing) as error:
                raise KeyError(generation) from error
            self._read[generation] = parse_name(str(text))
        return self._read[generation]

    def __iter__(self) -> Iterator[int]:
        return iter(self._recorded)

    def __len__(self) -> int:
        return len(self._recorded)


@dataclass(frozen=True, slots=True)
class Generations:
    """The records as they stood when the store was listed."""

    begun: frozenset[int]
    chosen: Mapping[int, CheckpointName | None]

    @property
    def newest(self) -> int:
        """The newest generation that has begun; -1 if none has."""
        return max(self.begun, default=-1)


def read_generations(storage: Storage, job: str, keys: Iterable[str] | None = None) -> Generations:
    """The records; `keys` is a listing of the job if the caller has one already."""
    prefix = f"{job}/generations/"
    if keys is None:
        keys = [stored.key for stored in storage.list(prefix)]
    found = [parse_generation(key.removeprefix(prefix)) for key in keys if key.startswith(prefix)]
    begun = frozenset(record[0] for record in found if record)
    recorded = frozenset(record[0] for record in found if record and record[1])
    return Generations(begun, Choices(storage, job, recorded))


def begin(storage: Storage, job: str, generation: int) -> None:
    """Register a generation, before it looks for what to resume from. All ranks may call it."""
    check_fence(read_generations(storage, job), job, generation)
    storage.put_new(generation_key(job, generation), seal({"generation": generation}))
    at("fence.registered")


def claim(storage: Storage, job: str, token: str) -> int:
    """Begin the next free generation: for a run outside torchloom, which has nobody to number it."""
    generation = read_generations(storage, job).newest + 1
    for candidate in range(generation, generation + MAX_CLAIMS):
        if storage.put_new(generation_key(job, candidate), seal({"generation": candidate, "by": token})):
            return candidate
    raise CheckpointExists(f"{MAX_CLAIMS} other runs of {job} took every generation tried")


def settle(storage: Storage, job: str, generation: int, choice: CheckpointName | None) -> None:
    """Record what a generation resumes from: after every rank could load it, before it trains.

    Repeating it with the same choice is fine; with another it raises CheckpointExists.
    """
    text = SCRATCH if choice is None else str(choice)
    data, key = seal({"from": text}), choice_key(job, generation)
    if not storage.put_new(key, data) and (found := storage.get(key)) != data:
        other = str(unseal(found, f"the choice of generation {generation}").get("from")) or "nothing"
        raise CheckpointExists(f"generation {generation} of {job} has already resumed from {other}")
    at("choice.recorded")


def check_fence(generations: Generations, job: str, generation: int) -> None:
    """Raises CheckpointFenced if a newer generation has begun."""
    if generations.newest > generation:
        raise CheckpointFenced(
            f"generation {generation} of {job} may not save any more, because "
            f"generation {generations.newest} has begun"
        )


def line_of_descent(
    names: Iterable[CheckpointName], generations: Generations, below: int | None = None
) -> list[CheckpointName]:
    """The checkpoints a restart may choose from, best first.

    From the newest generation (below `below`, if given) take its checkpoints, newest step first; then go on
    with the generation it resumed from, but no further than the step it resumed from; and so on. What is left
    out are branches that a later generation did not build on. A generation that made no choice built nothing
    and is passed over.
    """
    steps: dict[int, list[int]] = {}
    for name in names:
        steps.setdefault(name.generation, []).append(name.step)
    known = sorted({*steps, *generations.chosen}, reverse=True)
    generation = next((g for g in known if below is None or g < below), None)
    last_step: int | None = None
    line: list[CheckpointName] = []
    while generation is not None:
        for step in sorted(steps.get(generation, ()), reverse=True):
            if last_step is None or step <= last_step:
                line.append(CheckpointName(generation, step))
        if generation in generations.chosen:
            origin = generations.chosen[generation]
            if origin is None or origin.generation >= generation:  # from nothing; a later one cannot be
                break
            generation, last_step = origin
        else:
            generation, last_step = next((g for g in known if g < generation), None), None
    return line
