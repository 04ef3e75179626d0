"""Holds values over those of param groups.

Where nothing in the script writes a value, ours stays in the param group, so that a script which logs it, or
saves it, sees the value in force. Where the script does write it, ours is there for the time of a step only:
the pre-hook sets, the post-hook gives the script's own back, so a schedule sees what it set itself and
continues with it. The rules:

* A value counts as written if it differs from the one at the end of the optimizer's first step, or if it
  changed between two steps. A script's write is its own, and from then on ours is there during steps only.
* A value that is held from the first step on is watched for one step before it stays, unless it is known
  from before: a checkpoint has with it what was known when it was made (`record` and `restore`), and a
  worker is given what the one before it had found (LOOM_UNWRITTEN).
* torch's schedulers and `loom.Checkpoint` work on the script's own values (`hide` and `show`).
* A scaled value and a tensor are never left in the group: a script that saved a scaled value and loaded it
  again would scale it twice, and captured or compiled steps know a tensor by its identity.
* All of this depends on steps only, never on time, so that every rank does the same.

What the optimizer wrote during the step is its own and stays. A step that raised never came to its
post-hook; then the own values come back at the next chance. What a change may say is in
core/config/overrides.py. With nothing held, nothing here runs. Records of single values: places.py.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torchloom.core.config.overrides import OWN, SCALE, Held, factor_of, in_effect, mode_of
from torchloom.core.config.settings import Address, parse_address
from torchloom.probe.observe.values import UNREAD, is_tensor, plain
from torchloom.probe.steering.places import HeldPlaces, Place, ScriptWrites, same, value_for


class Overrides:
    """Those of one worker. `words` is what changes said: address → word, a later one over an earlier."""

    def __init__(self, unwritten: str = "") -> None:
        """`unwritten`: what the script never wrote in the worker before this one."""
        self._unwritten = frozenset(unwritten.split(","))
        self.words: dict[str, object] = {}
        self.busy = False
        """Whether hooks have anything to do. Read at every step, so a plain attribute."""
        self.stayed: Callable[[], None] = _nothing
        """Called when a value of ours stays in a group."""
        self._holds = False
        self._plans: dict[int, HeldPlaces] = {}
        self._writes: weakref.WeakKeyDictionary[Any, ScriptWrites] = weakref.WeakKeyDictionary()
        self._restored: dict[int, weakref.ref[Any]] = {}
        """Optimizers that were restored before their first step, by the number they had."""
        self._open: dict[int, list[tuple[Place, dict[str, Any], Any, Any]]] = {}
        """Per optimizer what was set and is not given back yet: place, group, the script's own, ours."""
        self._hidden: list[tuple[HeldPlaces, Place]] = []
        self._depth = 0

    def replace(self, words: Mapping[str, object]) -> None:
        """From the next step on these count."""
        for number in list(self._plans):
            self._give_back(number)
        self.words = dict(words)
        self._holds = any(mode_of(word) != OWN for word in self.words.values())
        self.busy = self._holds or bool(self._open)
        self._plans.clear()
        if self._holds:
            for number, optimizer in [(number, known()) for number, known in self._restored.items()]:
                if optimizer is not None:
                    self._put_at_once(number, optimizer)

    def meet(self, optimizer: Any, *, ended: bool = True) -> None:
        """This optimizer has made its first step, or begins it."""
        writes = self._writes.get(optimizer)
        if writes is None:
            writes = self._writes[optimizer] = ScriptWrites(optimizer)
        writes.ended = writes.ended or ended
        if ended and self._restored:
            self._forget_restored(optimizer)

    # -- around a step --------------------------------------------------------------------------
    def before(self, number: int, optimizer: Any) -> None:
        """Set what counts for this optimizer's step."""
        if self._open.get(number):
            self.after(number)  # the step before raised
        if self._restored:
            self._forget_restored(optimizer, number)
        groups = optimizer.param_groups
        plan = self._plan(number, optimizer)
        if not plan.places:
            return
        done = self._open[number] = []
        for place in plan.places:
            group = groups[place.at]
            fresh, place.is_fresh = place.is_fresh, False
            if place.stays and (place.is_in(group) or (fresh and same(group[place.name], place.own))):
                if group is not place.group or fresh:
                    place.put(group, place.own)
                continue
            own = group[place.name]
            if place.stays or (place.watched and not place.is_unwritten(own)):
                place.script_writes()
            if place.may_stay:
                place.put(group, own)
                self.stayed()
            elif is_tensor(own):
                with sys.modules["torch"].no_grad():
                    done.append((place, group, own.detach().clone(), own))
                    word = place.word
                    own.mul_(factor_of(word)) if mode_of(word) == SCALE else own.fill_(word)
            else:
                value = value_for(place.word, own)
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
                place.script_writes()
        self.busy = self._holds or bool(self._open)

    def _give_back(self, number: int) -> None:
        for place, group in self._plans[number].staying():
            if place.is_in(group):
                group[place.name] = place.own
            else:
                place.script_writes()
            place.stays = False

    # -- what is held where ---------------------------------------------------------------------
    def _plan(self, number: int, optimizer: Any) -> HeldPlaces:
        known = self._plans.get(number)
        if known is None or not known.fits(optimizer):
            if known is not None:
                self._give_back(number)
            known = self._plans[number] = HeldPlaces(optimizer, self._places(number, optimizer))
        return known

    def _places(self, number: int, optimizer: Any) -> list[Place]:
        self.meet(optimizer, ended=False)
        writes = self._writes[optimizer]
        said = [(parse_address(text), word) for text, word in self.words.items()]
        places: list[Place] = []
        for at, group in enumerate(optimizer.param_groups):
            words: dict[str, object] = {}
            for address, word in said:
                if address.name in group and address.covers(Address(address.name, number, at)):
                    words[address.name] = word
            for name, word in words.items():
                if mode_of(word) != OWN:
                    places.append(place := Place(at, name, word, writes))
                    known = str(Address(name, number, at)) in self._unwritten
                    place.judge(group[name], known)
        return places

    def _put_at_once(self, number: int, optimizer: Any) -> None:
        """The optimizer was restored: its groups hold what they held when the state was saved."""
        for place in self._plan(number, optimizer).places:
            if place.may_stay:
                group = optimizer.param_groups[place.at]
                place.put(group, group[place.name])
                place.is_fresh = True
                self.stayed()

    def _forget_restored(self, optimizer: Any, number: int | None = None) -> None:
        """It steps. Should it have another `number` than it had, ours leaves its groups for now."""
        for known in [known for known, one in self._restored.items() if one() is optimizer]:
            del self._restored[known]
            if number not in (None, known) and known in self._plans:
                self._give_back(known)
                del self._plans[known]

    # -- with a checkpoint ----------------------------------------------------------------------
    def record(self, number: int, optimizer: Any) -> dict[str, Any] | None:
        """What is known of the script's writes, to be saved with the optimizer's state; None: nothing."""
        writes = self._writes.get(optimizer)
        if writes is None:
            return None
        self.hide()
        try:
            return writes.record(optimizer, number)
        finally:
            self.show()

    def restore(self, optimizer: Any, told: Mapping[str, Any], *, stepped: bool) -> None:
        """The optimizer has loaded a state, and this was recorded with it. Between `hide` and `show`."""
        writes = self._writes.get(optimizer)
        if writes is None:
            writes = self._writes[optimizer] = ScriptWrites(optimizer)
        writes.restore(optimizer, told)
        if not stepped:
            self._restored[int(told["number"])] = weakref.ref(optimizer)
        for plan in self._plans.values():
            if plan.fits(optimizer):
                self._judge_again(plan, optimizer)

    def _judge_again(self, plan: HeldPlaces, optimizer: Any) -> None:
        self._hidden = [(known, place) for known, place in self._hidden if known is not plan]
        for place in plan.places:
            group = optimizer.param_groups[place.at]
            own = group[place.name]
            place.judge(own)
            if place.may_stay:
                place.put(group, own)
                group[place.name] = own  # until `show`
                self._hidden.append((plan, place))

    # -- for those who work on the script's own values ------------------------------------------
    def hide(self) -> None:
        """Put the script's own values where ours stay, until `show`."""
        self._depth += 1
        if self._depth > 1:
            return
        for plan in self._plans.values():
            for place, group in plan.staying():
                if place.is_in(group):
                    group[place.name] = place.own
                    self._hidden.append((plan, place))
                else:
                    place.script_writes()

    def show(self, loaded: bool = False) -> None:
        """Put ours back where the script's own is as it was. `loaded`: what is there now is its own."""
        self._depth -= 1
        if self._depth > 0:
            return
        hidden, self._hidden = self._hidden, []
        for plan, place in hidden:
            for one, group in plan.staying():
                if one is not place:
                    continue
                now = group.get(place.name)
                if not is_tensor(now) and (loaded or same(now, place.own)):
                    place.put(group, now)
                else:
                    place.script_writes()

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
                found[address] = Held(in_effect(word, own), mode_of(word), own, factor, place.stays)
        return found

    def in_force(self, number: int, optimizer: Any, name: str, group: int) -> Any:
        """What the optimizer's next step uses, as far as is known now."""
        if self._holds:
            for place in self._plan(number, optimizer).places:
                if (place.at, place.name) == (group, name):
                    own = self._own(number, optimizer.param_groups[group], place)
                    return value_for(place.word, own)
        return optimizer.param_groups[group][name]

    def _own(self, number: int, group: dict[str, Any], place: Place) -> Any:
        for opened, touched, own, _ in self._open.get(number, ()):
            if touched is group and opened.name == place.name:
                return own
        return place.own if place.stays and place.is_in(group) else group[place.name]


def _plain(value: Any) -> Any:
    taken = plain(value)
    return None if taken is UNREAD else taken


def _nothing() -> None:
    """Nobody wants to know."""
