"""One value of one param group, what is held over it, and what is known of the script's own writes there.

Records and their small rules; when they apply is overrides.py's.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from torchloom.core.config.overrides import HOLD, factor_of, mode_of
from torchloom.core.config.settings import HYPERPARAMETERS
from torchloom.probe.observe.values import is_tensor

UNSEEN = object()


class ScriptWrites:
    """Which values of one optimizer the script writes: those that differ from its first step, and those that
    were seen to change since."""

    __slots__ = ("ended", "groups", "written")

    def __init__(self, optimizer: Any) -> None:
        self.ended = False
        """Whether the first step is over. Before, nothing is known of what the script does between steps."""
        self.groups = _own_values(optimizer)
        """At the first step."""
        self.written: set[tuple[int, str]] = set()
        """Group and name of what was seen to change."""

    def differs(self, at: int, name: str, own: Any) -> bool:
        return self.knows(at, name) and not same(self.groups[at][name], own)

    def knows(self, at: int, name: str) -> bool:
        return at < len(self.groups) and name in self.groups[at]

    def record(self, optimizer: Any, number: int) -> dict[str, Any] | None:
        """For a checkpoint, while the groups hold the script's own values; None before the first step ended.
        First values are recorded where they differ: elsewhere they are in the optimizer's own state."""
        if not self.ended:
            return None
        first = [
            [at, name, self.groups[at][name]]
            for at, group in enumerate(_own_values(optimizer))
            for name, own in group.items()
            if self.differs(at, name, own) and not is_tensor(self.groups[at][name])
        ]
        return {"number": number, "written": sorted(map(list, self.written)), "first": first}

    def restore(self, optimizer: Any, told: Mapping[str, Any]) -> None:
        """What `record` said of the state that the optimizer has just loaded."""
        groups = _own_values(optimizer)
        for at, name, value in told["first"]:
            if at < len(groups):
                groups[at][name] = value
        self.written = {(int(at), str(name)) for at, name in told["written"]}
        self.groups, self.ended = groups, True


def _own_values(optimizer: Any) -> list[dict[str, Any]]:
    groups = optimizer.param_groups
    return [
        {name: value for name, value in group.items() if name in HYPERPARAMETERS}
        for group in (groups if isinstance(groups, list) else ())
    ]


class Place:
    """One value of one param group, and what is held over it."""

    __slots__ = (
        "at",
        "group",
        "is_fresh",
        "left",
        "name",
        "ours",
        "own",
        "stays",
        "watched",
        "word",
        "writes",
    )

    def __init__(self, at: int, name: str, word: object, writes: ScriptWrites) -> None:
        self.at, self.name, self.word, self.writes = at, name, word, writes
        self.stays = False
        """Ours is in the group, also between steps, and the script's own is kept here."""
        self.own: Any = None
        self.ours: Any = None
        self.group: dict[str, Any] | None = None
        """The group that ours is in: loading a state replaces all groups."""
        self.is_fresh = False
        """Ours was put there by a restore, and no step was made since."""
        self.watched = False
        self.left: Any = UNSEEN
        """The script's own at the end of the last step, while it is watched."""

    def judge(self, own: Any, unwritten: bool = False) -> None:
        """Decide whether ours may stay: at once, after a step in which it is watched, or not at all.
        `unwritten`: an earlier process of this script never wrote it."""
        self.stays = self.watched = False
        self.left = UNSEEN
        if mode_of(self.word) != HOLD or is_tensor(own) or (self.at, self.name) in self.writes.written:
            return
        if self.writes.differs(self.at, self.name, own):
            self.script_writes()
            return
        self.watched = True
        if unwritten or (self.writes.ended and self.writes.knows(self.at, self.name)):
            self.left = own

    @property
    def may_stay(self) -> bool:
        """Whether it is known that nothing in the script writes it."""
        return self.watched and self.left is not UNSEEN

    def is_unwritten(self, own: Any) -> bool:
        return self.left is UNSEEN or same(self.left, own)

    def script_writes(self) -> None:
        self.stays = self.watched = self.is_fresh = False
        self.writes.written.add((self.at, self.name))

    def put(self, group: dict[str, Any], own: Any) -> None:
        self.stays, self.watched = True, False
        self.own, self.ours, self.group = own, value_for(self.word, own), group
        group[self.name] = self.ours

    def is_in(self, group: dict[str, Any]) -> bool:
        """Whether ours is still there. A group made by loading a state that was saved with it counts."""
        current = group.get(self.name)
        return current is self.ours or (group is not self.group and same(current, self.ours))


class HeldPlaces:
    """What is held over the groups of one optimizer."""

    def __init__(self, optimizer: Any, places: list[Place]) -> None:
        # A plan must not keep the parameters of an optimizer alive that the script has dropped.
        self._optimizer = weakref.ref(optimizer, lambda _: places.clear())
        self._count = len(optimizer.param_groups)
        self.places = places

    def fits(self, optimizer: Any) -> bool:
        return self._count == len(optimizer.param_groups) and self._optimizer() is optimizer

    def staying(self) -> Iterator[tuple[Place, dict[str, Any]]]:
        """The places in which ours stays, with their groups."""
        optimizer: Any = self._optimizer()
        groups: list[dict[str, Any]] = [] if optimizer is None else optimizer.param_groups
        for place in self.places:
            if place.stays and place.at < len(groups):
                yield place, groups[place.at]


def value_for(word: object, own: Any) -> Any:
    """What to put where the script has `own`."""
    if mode_of(word) == HOLD:
        return tuple(word) if isinstance(word, list) and isinstance(own, tuple) else word
    factor = factor_of(word)
    return own * factor if factor is not None else own


def same(one: Any, other: Any) -> bool:
    return one is other or (not is_tensor(one) and not is_tensor(other) and bool(one == other))
