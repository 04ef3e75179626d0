"""Holds values over those of param groups.

Where nothing in the script writes a value, ours stays in the param group, so that a script which logs it, or
saves it, sees the value in force. Where the script does write it, ours is there for the time of a step only:
the pre-hook sets, the post-hook gives the script's own back, so a schedule sees what it set itself and
continues with it. The rules:

* A value counts as written if it differs from the one at the end of the optimizer's first step, or if it
  changed between two steps. A script's write is its own, and from then on ours is there during steps only.
* A value that is held from the first step on is watched for one step before it stays.
* torch's schedulers and `loom.Checkpoint` work on the script's own values (`hide` and `show`).
* A scaled value and a tensor are never left in the group: a script that saved a scaled value and loaded it
  again would scale it twice, and captured or compiled steps know a tensor by its identity.
* All of this depends on steps only, never on time, so that every rank does the same.

What the optimizer wrote during the step is its own and stays. A step that raised never came to its
post-hook; then the own values come back at the next chance. What a change may say is in
core/config/overrides.py. With nothing held, nothing here runs.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torchloom.core.config.overrides import HOLD, OWN, SCALE, Held, factor_of, in_effect, mode_of
from torchloom.core.config.settings import HYPERPARAMETERS, Address, parse_address
from torchloom.probe.observe.values import UNREAD, is_tensor, plain

_UNSEEN = object()


class _Place:
    """One value of one param group, and what is held over it."""

    __slots__ = ("at", "group", "left", "name", "ours", "own", "stays", "watched", "word")

    def __init__(self, at: int, name: str, word: object) -> None:
        self.at, self.name, self.word = at, name, word
        self.stays = False
        """Ours is in the group, also between steps, and the script's own is kept here."""
        self.own: Any = None
        self.ours: Any = None
        self.group: dict[str, Any] | None = None
        """The group that ours is in: loading a state replaces all groups."""
        self.watched = False
        self.left: Any = _UNSEEN
        """The script's own at the end of the last step, while it is watched."""

    def put(self, group: dict[str, Any], own: Any) -> None:
        self.stays, self.watched = True, False
        self.own, self.ours, self.group = own, _value(self.word, own), group
        group[self.name] = self.ours

    def is_in(self, group: dict[str, Any]) -> bool:
        """Whether ours is still there. A group made by loading a state that was saved with it counts."""
        current = group.get(self.name)
        return current is self.ours or (group is not self.group and _same(current, self.ours))


class _Plan:
    """What is held over the groups of one optimizer."""

    def __init__(self, optimizer: Any, places: list[_Place]) -> None:
        # A plan must not keep the parameters of an optimizer alive that the script has dropped.
        self._optimizer = weakref.ref(optimizer, lambda _: places.clear())
        self._count = len(optimizer.param_groups)
        self.places = places

    def fits(self, optimizer: Any) -> bool:
        return self._count == len(optimizer.param_groups) and self._optimizer() is optimizer

    def staying(self) -> Iterator[tuple[_Place, dict[str, Any]]]:
        """The places in which ours stays, with their groups."""
        optimizer: Any = self._optimizer()
        groups: list[dict[str, Any]] = [] if optimizer is None else optimizer.param_groups
        for place in self.places:
            if place.stays and place.at < len(groups):
                yield place, groups[place.at]


class _First:
    """The values of an optimizer at its first step."""

    __slots__ = ("ended", "groups")

    def __init__(self, optimizer: Any) -> None:
        self.ended = False
        """Whether that step is over. Before, nothing is known of what the script does between steps."""
        groups = optimizer.param_groups
        self.groups = [
            {name: value for name, value in group.items() if name in HYPERPARAMETERS}
            for group in (groups if isinstance(groups, list) else ())
        ]


class Overrides:
    """Those of one worker. `words` is what changes said: address → word, a later one over an earlier."""

    def __init__(self) -> None:
        self.words: dict[str, object] = {}
        self.busy = False
        """Whether hooks have anything to do. Read at every step, so a plain attribute."""
        self.stayed: Callable[[], None] = _nothing
        """Called when a value of ours stays in a group."""
        self._holds = False
        self._plans: dict[int, _Plan] = {}
        self._first: weakref.WeakKeyDictionary[Any, _First] = weakref.WeakKeyDictionary()
        self._written: set[tuple[int, int, str]] = set()
        """Optimizer, group and name of what the script writes."""
        self._open: dict[int, list[tuple[_Place, dict[str, Any], Any, Any]]] = {}
        """Per optimizer what was set and is not given back yet: place, group, the script's own, ours."""
        self._hidden: list[tuple[int, _Plan, _Place]] = []
        self._depth = 0

    def replace(self, words: Mapping[str, object]) -> None:
        """From the next step on these count."""
        for number in list(self._plans):
            self._give_back(number)
        self.words = dict(words)
        self._holds = any(mode_of(word) != OWN for word in self.words.values())
        self.busy = self._holds or bool(self._open)
        self._plans.clear()

    def meet(self, optimizer: Any, *, ended: bool = True) -> None:
        """This optimizer has made its first step, or begins it."""
        first = self._first.get(optimizer)
        if first is None:
            first = self._first[optimizer] = _First(optimizer)
        first.ended = first.ended or ended

    # -- around a step --------------------------------------------------------------------------
    def before(self, number: int, optimizer: Any) -> None:
        """Set what counts for this optimizer's step."""
        if self._open.get(number):
            self.after(number)  # the step before raised
        groups = optimizer.param_groups
        plan = self._plan(number, optimizer)
        if not plan.places:
            return
        done = self._open[number] = []
        for place in plan.places:
            group = groups[place.at]
            if place.stays and place.is_in(group):
                if group is not place.group:
                    place.put(group, place.own)
                continue
            own = group[place.name]
            if place.stays or (place.watched and not self._is_unwritten(place, own)):
                self._script_writes(number, place)
            if place.watched and place.left is not _UNSEEN:
                place.put(group, own)
                self.stayed()
            elif is_tensor(own):
                with sys.modules["torch"].no_grad():
                    done.append((place, group, own.detach().clone(), own))
                    word = place.word
                    own.mul_(factor_of(word)) if mode_of(word) == SCALE else own.fill_(word)
            else:
                value = _value(place.word, own)
                done.append((place, group, own, value))
                group[place.name] = value

    def after(self, number: int) -> None:
        """Give back the script's own values that do not stay under ours."""
        for place, group, own, ours in reversed(self._open.pop(number, ())):
            if is_tensor(ours):
                with sys.modules["torch"].no_grad():
                    ours.copy_(own)
            elif group.get(place.name) is ours:
                group[place.name] = own
                place.left = own
            else:
                self._script_writes(number, place)
        self.busy = self._holds or bool(self._open)

    def _is_unwritten(self, place: _Place, own: Any) -> bool:
        return place.left is _UNSEEN or _same(place.left, own)

    def _script_writes(self, number: int, place: _Place) -> None:
        place.stays = place.watched = False
        self._written.add((number, place.at, place.name))

    def _give_back(self, number: int) -> None:
        for place, group in self._plans[number].staying():
            if place.is_in(group):
                group[place.name] = place.own
            else:
                self._script_writes(number, place)
            place.stays = False

    # -- what is held where ---------------------------------------------------------------------
    def _plan(self, number: int, optimizer: Any) -> _Plan:
        known = self._plans.get(number)
        if known is None or not known.fits(optimizer):
            if known is not None:
                self._give_back(number)
            known = self._plans[number] = _Plan(optimizer, self._places(number, optimizer))
        return known

    def _places(self, number: int, optimizer: Any) -> list[_Place]:
        self.meet(optimizer, ended=False)
        first = self._first[optimizer]
        said = [(parse_address(text), word) for text, word in self.words.items()]
        places: list[_Place] = []
        for at, group in enumerate(optimizer.param_groups):
            words: dict[str, object] = {}
            for address, word in said:
                if address.name in group and address.covers(Address(address.name, number, at)):
                    words[address.name] = word
            for name, word in words.items():
                if mode_of(word) != OWN:
                    places.append(place := _Place(at, name, word))
                    self._judge(number, place, group[name], first)
        return places

    def _judge(self, number: int, place: _Place, own: Any, first: _First) -> None:
        """Decide whether ours may stay: at once, after a step in which it is watched, or not at all."""
        if mode_of(place.word) != HOLD or is_tensor(own):
            return
        if (number, place.at, place.name) in self._written:
            return
        known = first.groups[place.at] if place.at < len(first.groups) else {}
        if place.name in known and not _same(known[place.name], own):
            self._script_writes(number, place)
            return
        place.watched = True
        if first.ended and place.name in known:
            place.left = own

    # -- for those who work on the script's own values ------------------------------------------
    def hide(self) -> None:
        """Put the script's own values where ours stay, until `show`."""
        self._depth += 1
        if self._depth > 1:
            return
        for number, plan in self._plans.items():
            for place, group in plan.staying():
                if place.is_in(group):
                    group[place.name] = place.own
                    self._hidden.append((number, plan, place))
                else:
                    self._script_writes(number, place)

    def show(self, loaded: bool = False) -> None:
        """Put ours back where the script's own is as it was. `loaded`: what is there now is its own."""
        self._depth -= 1
        if self._depth > 0:
            return
        hidden, self._hidden = self._hidden, []
        for number, plan, place in hidden:
            for one, group in plan.staying():
                if one is not place:
                    continue
                now = group.get(place.name)
                if not is_tensor(now) and (loaded or _same(now, place.own)):
                    place.put(group, now)
                else:
                    self._script_writes(number, place)

    # -- reports --------------------------------------------------------------------------------
    def held(self, optimizers: Iterable[tuple[int, Any]]) -> dict[str, Held]:
        """Every place where something else holds than the script set, by its address."""
        found: dict[str, Held] = {}
        if not self._holds:
            return found
        for number, optimizer in optimizers:
            for place in self._plan(number, optimizer).places:
                own = _plain(self._own(number, optimizer.param_groups[place.at], place))
                word = place.word
                factor = factor_of(word) if mode_of(word) == SCALE else None
                address = str(Address(place.name, number, place.at))
                found[address] = Held(in_effect(word, own), mode_of(word), own, factor)
        return found

    def in_force(self, number: int, optimizer: Any, name: str, group: int) -> Any:
        """What the optimizer's next step uses, as far as is known now."""
        if self._holds:
            for place in self._plan(number, optimizer).places:
                if (place.at, place.name) == (group, name):
                    own = self._own(number, optimizer.param_groups[group], place)
                    return _value(place.word, own)
        return optimizer.param_groups[group][name]

    def _own(self, number: int, group: dict[str, Any], place: _Place) -> Any:
        for opened, touched, own, _ in self._open.get(number, ()):
            if touched is group and opened.name == place.name:
                return own
        return place.own if place.stays and place.is_in(group) else group[place.name]


def _value(word: object, own: Any) -> Any:
    """What to put where the script has `own`."""
    if mode_of(word) == HOLD:
        return tuple(word) if isinstance(word, list) and isinstance(own, tuple) else word
    factor = factor_of(word)
    return own * factor if factor is not None else own


def _same(one: Any, other: Any) -> bool:
    return one is other or (not is_tensor(one) and not is_tensor(other) and bool(one == other))


def _plain(value: Any) -> Any:
    taken = plain(value)
    return None if taken is UNREAD else taken


def _nothing() -> None:
    """Nobody wants to know."""
