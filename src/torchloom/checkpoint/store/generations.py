"""Which generations of a job have begun, their branches, and what each resumed from.

Owns two kinds of create-only records. `generations/<G>` says that generation G has begun: the *fence*, at
which writers of older generations stop. `generations/<G>.from` says which checkpoint G resumed from, or
that it began from nothing: the *choice*, made once and never changed. A live rollback begins the next branch
of the running generation, `<G>.b<B>`, with the same two records; to a reader it is as if a generation had
begun. Reading the choices back gives the line of states that led to the newest one (`line_of_descent`),
which is all that a restart may ever choose from. The argument why this holds against writers that wake up
late is in commit.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from torchloom.checkpoint.store.manifest import seal, unseal
from torchloom.checkpoint.store.names import (
    SCRATCH,
    Branch,
    CheckpointName,
    branch_key,
    choice_key,
    parse_branch,
    parse_name,
)
from torchloom.checkpoint.store.points import at
from torchloom.checkpoint.store.storage import Storage
from torchloom.errors import CheckpointDamaged, CheckpointExists, CheckpointFenced, CheckpointMissing

MAX_CLAIMS = 1000
Origin = Callable[[Branch], CheckpointName | None]


class Choices(Mapping[Branch, CheckpointName | None]):
    """What each branch resumed from; None: from nothing. Read from the store on demand.

    A choice that cannot be read is that of the first state saved on its branch, if there is one: its manifest
    names the state it grew from. Otherwise it counts as not made: nothing was built on it that could be lost.
    """

    def __init__(self, storage: Storage, job: str, recorded: frozenset[Branch], origin: Origin) -> None:
        self._storage = storage
        self._job = job
        self._recorded = recorded
        self._origin = origin
        self._read: dict[Branch, CheckpointName | None] = {}
        self.damaged: dict[str, str] = {}
        """Records that were looked at and cannot be read, and why."""

    def __getitem__(self, branch: Branch) -> CheckpointName | None:
        if branch not in self._recorded:
            raise KeyError(branch)
        if branch not in self._read:
            key = choice_key(self._job, branch)
            try:
                self._read[branch] = _choice(self._storage.get(key), key)
            except CheckpointMissing as error:
                raise KeyError(branch) from error
            except CheckpointDamaged as error:
                self._read[branch] = self._guess(branch, key.removeprefix(f"{self._job}/"), error.message)
        return self._read[branch]

    def _guess(self, branch: Branch, record: str, why: str) -> CheckpointName | None:
        self.damaged[record] = (
            f"{why}; nothing else records what its generation resumed from, so it is skipped"
        )
        origin = self._origin(branch)
        told = "nothing" if origin is None else str(origin)
        self.damaged[record] = f"{why}; by the first state saved on it, its generation resumed from {told}"
        return origin

    def __iter__(self) -> Iterator[Branch]:
        return iter(self._recorded)

    def __len__(self) -> int:
        return len(self._recorded)


def _choice(data: bytes, key: str) -> CheckpointName | None:
    """What a record says. Raises CheckpointDamaged."""
    text = unseal(data, key).get("from")
    name = parse_name(text) if isinstance(text, str) else None
    if name is None and text != SCRATCH:
        raise CheckpointDamaged(f"{key} is damaged (it names no checkpoint)")
    return name


def _unknown(branch: Branch) -> CheckpointName | None:
    raise KeyError(branch)


@dataclass(frozen=True, slots=True)
class Generations:
    """The records as of the listing of the store."""

    begun: frozenset[Branch]
    chosen: Mapping[Branch, CheckpointName | None]

    @property
    def newest(self) -> int:
        """The newest generation that has begun; -1 if none has."""
        return max((branch.generation for branch in self.begun), default=-1)

    @property
    def damaged(self) -> dict[str, str]:
        """Records of choices that were looked at and cannot be read, by file, and what was made of them."""
        return self.chosen.damaged if isinstance(self.chosen, Choices) else {}

    def has_settled(self, generation: int) -> bool:
        """Has this generation recorded what it resumed from?"""
        return Branch(generation) in self.chosen


def read_generations(
    storage: Storage, job: str, keys: Iterable[str] | None = None, origin: Origin = _unknown
) -> Generations:
    """The records; `keys` is a listing of the job if the caller has one already. `origin` returns
    what a branch whose record cannot be read resumed from, or raises KeyError."""
    prefix = f"{job}/generations/"
    if keys is None:
        keys = [stored.key for stored in storage.list(prefix)]
    found = [parse_branch(key.removeprefix(prefix)) for key in keys if key.startswith(prefix)]
    begun = frozenset(record[0] for record in found if record)
    recorded = frozenset(record[0] for record in found if record and record[1])
    return Generations(begun, Choices(storage, job, recorded, origin))


def begin(storage: Storage, job: str, generation: int) -> None:
    """Register a generation, before it looks for what to resume from. All ranks may call it."""
    check_fence(read_generations(storage, job), job, generation)
    storage.put_new(branch_key(job, Branch(generation)), seal({"generation": generation}))
    at("fence.registered")


def claim(storage: Storage, job: str, token: str) -> int:
    """Begin the next free generation: for a run outside torchloom, which has no numbers of its own."""
    generation = read_generations(storage, job).newest + 1
    for candidate in range(generation, generation + MAX_CLAIMS):
        data = seal({"generation": candidate, "by": token})
        if storage.put_new(branch_key(job, Branch(candidate)), data):
            return candidate
    raise CheckpointExists(f"{MAX_CLAIMS} other runs of {job} took every generation tried")


def claim_branch(storage: Storage, job: str, generation: int) -> Branch:
    """Begin the next branch of a generation; without a choice it is nothing, so it may be left at that.

    Raises CheckpointFenced if a newer generation has begun.
    """
    known = read_generations(storage, job)
    check_fence(known, job, generation)
    numbers = [branch.number for branch in known.begun if branch.generation == generation]
    for number in range(max(numbers, default=0) + 1, MAX_CLAIMS):
        branch = Branch(generation, number)
        if storage.put_new(branch_key(job, branch), seal({"generation": generation, "branch": number})):
            at("branch.registered")
            return branch
    raise CheckpointExists(f"generation {generation} of {job} was rolled back {MAX_CLAIMS} times")


def settle(storage: Storage, job: str, branch: Branch | int, choice: CheckpointName | None) -> None:
    """Record what a branch (of a generation: its first) resumes from: after every rank could load it, before
    it trains.

    Repeating it with the same choice is fine; with another it raises CheckpointExists. A record that cannot
    be read is written again: whoever comes here made that choice, and nobody else may speak for the branch.
    """
    branch = Branch(branch) if isinstance(branch, int) else branch
    text = SCRATCH if choice is None else str(choice)
    data, key = seal({"from": text}), choice_key(job, branch)
    if not storage.put_new(key, data) and (found := storage.get(key)) != data:
        try:
            other = _choice(found, key)
        except CheckpointDamaged:
            storage.put(key, [data])
        else:
            told = "nothing" if other is None else str(other)
            raise CheckpointExists(f"generation {branch} of {job} has already resumed from {told}")
    at("choice.recorded")


def check_fence(generations: Generations, job: str, generation: int) -> None:
    """Raises CheckpointFenced if a newer generation has begun."""
    if generations.newest > generation:
        raise CheckpointFenced(
            f"generation {generation} of {job} may no longer save, because "
            f"generation {generations.newest} has begun"
        )


def line_of_descent(
    names: Iterable[CheckpointName], generations: Generations, below: int | None = None
) -> list[CheckpointName]:
    """The checkpoints a restart may choose from, best first.

    From the newest branch of the newest generation (below `below`, if given) take its checkpoints, newest
    step first; then the branch it resumed from, but no further than the step it resumed from; and
    so on. What is left out are states that a later branch did not build on. A branch that made no choice
    built nothing and is passed over.
    """
    steps: dict[Branch, list[int]] = {}
    for name in names:
        steps.setdefault(name.on, []).append(name.step)
    known = sorted({*steps, *generations.chosen}, reverse=True)
    branch = next((b for b in known if below is None or b.generation < below), None)
    last_step: int | None = None
    line: list[CheckpointName] = []
    while branch is not None:
        for step in sorted(steps.get(branch, ()), reverse=True):
            if last_step is None or step <= last_step:
                line.append(CheckpointName(branch.generation, step, branch.number))
        if branch in generations.chosen:
            origin = generations.chosen[branch]
            if origin is None or origin.on >= branch:  # from nothing; a later one cannot be
                break
            branch, last_step = origin.on, origin.step
        else:
            branch, last_step = next((b for b in known if b < branch), None), None
    return line
