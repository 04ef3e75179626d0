"""Chooses the state to resume from, among those in memory and those in the store.

Owns the choice that one rank makes for all. Loads and records nothing: restore.py and rollback.py do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field

from torchloom.checkpoint.store.generations import Generations, line_of_descent
from torchloom.checkpoint.store.manifest import Manifest
from torchloom.checkpoint.store.names import Branch, CheckpointName, parse_name
from torchloom.checkpoint.store.reader import Listing
from torchloom.errors import CheckpointDamaged, CheckpointError, CheckpointMissing


@dataclass(frozen=True)
class Choice:
    """What rank 0 decided."""

    generation: int
    name: CheckpointName | None = None
    manifest: Manifest | None = None
    """Set if it comes from the store; else it is in memory."""
    problem: CheckpointError | None = None
    notes: tuple[str, ...] = ()
    """What was decided on the way, for a person."""
    rejected: tuple[tuple[str, str], ...] = ()
    """Checkpoints that were passed over, and why."""
    owed: Mapping[Branch, CheckpointName | None] = field(default_factory=dict)
    """Choices on the way to it that the store does not know."""
    series: str = ""
    """Begins the names of the saves that follow (saver.py)."""
    damaged: tuple[tuple[str, str], ...] = ()
    """Small records that cannot be read, and what was made of them."""

    @property
    def where(self) -> str:
        return "memory" if self.manifest is None else "the store"


def pick(
    listing: Listing,
    generation: int,
    in_memory: Set[CheckpointName],
    wanted: int | str | None = None,
    bad: Collection[CheckpointName] = (),
    generations: Generations | None = None,
) -> Choice:
    """The newest state on the generation's line, or the `wanted` one: a step, or a name.

    One in memory is taken before the store's copy. A wanted one may also lie on a branch that was left; the
    line comes first where a step is on both. Raises CheckpointMissing if a wanted one is not there; finds
    nothing (no name) if there is nothing at all. `generations`: what is known beyond the listing.
    """
    generations = generations or listing.generations
    settled = generations.has_settled(generation)
    committed = set(listing.committed)
    names = committed | in_memory
    line = line_of_descent(names, generations, generation + 1 if settled else generation)
    if wanted is not None:
        newest_first = sorted(names, key=lambda name: name.age, reverse=True)
        everything = [*line, *(name for name in newest_first if name not in set(line))]
        line = [name for name in everything if _is(name, wanted)]
        if not line:
            what = wanted if isinstance(wanted, str) else f"of step {wanted}"
            raise CheckpointMissing(f"{listing.job} has no checkpoint {what}")
    notes: list[str] = []
    rejected: list[tuple[str, str]] = []
    for name in line:
        if name in in_memory:
            return Choice(generation, name, notes=tuple(notes), rejected=tuple(rejected))
        if name in bad or name not in committed:
            continue
        try:
            manifest = listing.judge(name)
        except (CheckpointDamaged, CheckpointMissing) as error:
            notes.append(f"checkpoint {name} is passed over: {error}")
            rejected.append((str(name), str(error)))
        else:
            return Choice(generation, name, manifest, notes=tuple(notes), rejected=tuple(rejected))
    return Choice(generation, notes=tuple(notes), rejected=tuple(rejected))


def _is(name: CheckpointName, wanted: int | str) -> bool:
    return name.step == wanted if isinstance(wanted, int) else name == parse_name(wanted)
