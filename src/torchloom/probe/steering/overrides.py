"""Holds values over those of param groups, for the time of a step only.

The pre-hook sets, the post-hook gives the script's own back: so a scheduler, a state_dict and the script see
what they set themselves, and go on with it. What the script or the optimizer wrote during the step is theirs
and stays. A step that raised never came to its post-hook; then the own values come back at the next chance.
Tensors are filled in place, because captured and compiled steps know them by identity.

What a change may say is in core/config/overrides.py. With nothing held, nothing here runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torchloom.core.config.overrides import HOLD, OWN, SCALE, Held, factor_of, in_effect, mode_of
from torchloom.core.config.settings import Address, parse_address
from torchloom.probe.observe.values import UNREAD, is_tensor, plain

_Place = tuple[int, str, object]
"""Group, name, word."""


class Overrides:
    """Those of one worker. `words` is what changes said: address → word, a later one over an earlier."""

    def __init__(self) -> None:
        self.words: dict[str, object] = {}
        self.busy = False
        """Whether hooks have anything to do. Read at every step, so a plain attribute."""
        self._holds = False
        self._plans: dict[int, tuple[int, list[_Place]]] = {}
        self._open: dict[int, list[tuple[dict[str, Any], str, Any, Any]]] = {}
        """Per optimizer what was set and is not given back yet: group, name, the script's own, ours."""

    def replace(self, words: Mapping[str, object]) -> None:
        """From the next step on these count."""
        self.words = dict(words)
        self._holds = any(mode_of(word) != OWN for word in self.words.values())
        self.busy = self._holds or bool(self._open)
        self._plans.clear()

    # -- around a step --------------------------------------------------------------------------
    def before(self, number: int, optimizer: Any) -> None:
        """Set what counts for this optimizer's step."""
        if self._open.get(number):
            self.after(number)  # the step before raised
        groups = optimizer.param_groups
        plan = self._plan(number, groups)
        if not plan:
            return
        done = self._open[number] = []
        for at, name, word in plan:
            group = groups[at]
            own = group[name]
            if is_tensor(own):
                with sys.modules["torch"].no_grad():
                    done.append((group, name, own.detach().clone(), own))
                    own.mul_(factor_of(word)) if mode_of(word) == SCALE else own.fill_(word)
            else:
                value = _value(word, own)
                done.append((group, name, own, value))
                group[name] = value

    def after(self, number: int) -> None:
        """Give the script's own values back."""
        for group, name, own, ours in reversed(self._open.pop(number, ())):
            if is_tensor(ours):
                with sys.modules["torch"].no_grad():
                    ours.copy_(own)
            elif group.get(name) is ours:
                group[name] = own
        self.busy = self._holds or bool(self._open)

    def _plan(self, number: int, groups: list[dict[str, Any]]) -> list[_Place]:
        known = self._plans.get(number)
        if known is None or known[0] != len(groups):
            known = self._plans[number] = (len(groups), list(self._places(number, groups)))
        return known[1]

    def _places(self, number: int, groups: list[dict[str, Any]]) -> Iterator[_Place]:
        said = [(parse_address(text), word) for text, word in self.words.items()]
        for at, group in enumerate(groups):
            words: dict[str, object] = {}
            for address, word in said:
                if address.name in group and address.covers(Address(address.name, number, at)):
                    words[address.name] = word
            yield from ((at, name, word) for name, word in words.items() if mode_of(word) != OWN)

    # -- reports --------------------------------------------------------------------------------
    def held(self, optimizers: Iterable[tuple[int, Any]]) -> dict[str, Held]:
        """Every place where something else holds than the script set, by its address."""
        found: dict[str, Held] = {}
        if not self._holds:
            return found
        for number, optimizer in optimizers:
            for at, name, word in self._plan(number, optimizer.param_groups):
                own = self._own(number, optimizer.param_groups[at], name)
                factor = factor_of(word) if mode_of(word) == SCALE else None
                found[str(Address(name, number, at))] = Held(in_effect(word, own), mode_of(word), own, factor)
        return found

    def _own(self, number: int, group: dict[str, Any], name: str) -> Any:
        for touched, its_name, own, _ in self._open.get(number, ()):
            if touched is group and its_name == name:
                return _plain(own)
        return _plain(group[name])


def _value(word: object, own: Any) -> Any:
    """What to put where the script has `own`."""
    if mode_of(word) == HOLD:
        return tuple(word) if isinstance(word, list) and isinstance(own, tuple) else word
    factor = factor_of(word)
    return own * factor if factor is not None else own


def _plain(value: Any) -> Any:
    taken = plain(value)
    return None if taken is UNREAD else taken
