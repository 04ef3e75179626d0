"""What a host knows of the line of descent, for the time when the store is away.

States in memory say which branch they lie on, not whether that branch was left since. So beside them lies a
small file, `line`, with the generations that began on this host and what each branch resumed from. A choice
is noted here before it is recorded in the store: whatever the store knows of a generation that trained on
this host, the host knows too. Owns that file and the question what may be restored by it alone. A missing or
damaged file means that nothing is known, and then nothing is chosen. Generations have the store's
numbers.
"""

from __future__ import annotations

import os
from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from torchloom.checkpoint.memory import tier
from torchloom.checkpoint.store.generations import Generations, line_of_descent
from torchloom.checkpoint.store.manifest import seal, unseal
from torchloom.checkpoint.store.names import Branch, CheckpointName, parse_branch, parse_name
from torchloom.errors import CheckpointDamaged
from torchloom.private import make_private

_MOST = 256
"""Records kept; a job that was restarted more often has long been in its store again."""


@dataclass(frozen=True)
class Known:
    """What one host, or all hosts together, know."""

    begun: frozenset[int] = frozenset()
    chosen: Mapping[Branch, CheckpointName | None] = field(default_factory=dict)

    def beside(self, recorded: Generations) -> Generations:
        """The store's records, and what only the hosts know."""
        # Read on demand: the host may know better about an unreadable record.
        chosen = ChainMap(cast("dict[Branch, CheckpointName | None]", recorded.chosen), dict(self.chosen))
        return Generations(recorded.begun, chosen)

    def safe(self, in_memory: Iterable[CheckpointName], generation: int) -> list[CheckpointName]:
        """States in memory that a generation may resume from without the store, best first.

        Those on the line of the newest generation that made a choice, if every one since is known to have
        made none. One that is not known at all may have run elsewhere and gone anywhere.
        """
        settled = [branch for branch in self.chosen if branch.generation <= generation]
        newest = max((branch.generation for branch in settled), default=None)
        if newest is None or any(g not in self.begun for g in range(newest + 1, generation)):
            return []
        names = [name for name in in_memory if name.on in self.chosen]
        known = Generations(frozenset(settled), dict(self.chosen))
        return line_of_descent(names, known, generation + 1)

    def owed(self, name: CheckpointName | None, recorded: Generations) -> dict[Branch, CheckpointName | None]:
        """The choices on the way to a state that the store should know and does not."""
        missing: dict[Branch, CheckpointName | None] = {}
        while name is not None and name.on not in missing:
            branch = name.on
            if branch in recorded.chosen:
                name = recorded.chosen[branch]
            elif branch in self.chosen:
                name = missing[branch] = self.chosen[branch]
            else:
                break
        return missing


class HostLine:
    """The file of this host; all its ranks read it, one writes."""

    def __init__(self, directory: Path, writes: bool) -> None:
        self._path, self.writes = tier.line_file(directory), writes

    def read(self) -> Known:
        try:
            body = unseal(self._path.read_bytes(), "the line of this host")
            branches = {parse_branch(str(text)): parse_name(str(name)) for text, name in body["from"].items()}
            chosen = {found[0]: name for found, name in branches.items() if found is not None}
            return Known(frozenset(int(number) for number in body["begun"]), chosen)
        except (OSError, CheckpointDamaged, KeyError, TypeError, ValueError, AttributeError, OverflowError):
            return Known()

    def begin(self, generation: int) -> None:
        """A generation has begun here; before it looks at anything."""
        known = self.read()
        if generation not in known.begun:
            self._write(Known(known.begun | {generation}, known.chosen))

    def choose(self, branch: Branch, origin: CheckpointName | None) -> None:
        """Record what a branch resumes from, before the store does. As there, the first record counts."""
        known = self.read()
        if branch not in known.chosen:
            self._write(Known(known.begun | {branch.generation}, {**known.chosen, branch: origin}))

    def _write(self, known: Known) -> None:
        """Replace the file whole. Raises OSError."""
        if not self.writes:
            return
        newest = sorted(known.chosen, reverse=True)[:_MOST]
        document = {
            "begun": sorted(known.begun)[-_MOST:],
            "from": {str(branch): str(known.chosen[branch] or "") for branch in newest},
        }
        make_private(self._path.parent)
        written = self._path.with_suffix(".new")
        written.write_bytes(seal(document))
        os.replace(written, self._path)


def together(everyone: Iterable[Known]) -> Known:
    """What all hosts know, taken together."""
    begun: frozenset[int] = frozenset()
    chosen: dict[Branch, CheckpointName | None] = {}
    for known in everyone:
        begun |= known.begun
        chosen |= known.chosen
    return Known(begun, chosen)
