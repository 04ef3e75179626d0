"""What holds in this worker: over its param groups, in the script's own settings, as its last step.

Owns applying a change and taking it back, and following the schedule that the worker was given at its start.
When a change counts is decided elsewhere (control.py and the ranks' store); names, types and bounds are
core/config/settings.py's.

A schedule is followed without asking anybody, because every rank has the same one: what was in force at the
last step made holds before the first forward pass, what came at a later step is applied at its boundary, the
very place where it was applied first. So a training that was restored sees every value where it saw it then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchloom.core.config import schedule as schedules
from torchloom.core.config.box_codec import ToldSettings, pack_settings, unpack_schedule
from torchloom.core.config.overrides import Held
from torchloom.core.config.settings import HYPERPARAMETERS, MAX_STEPS, KnownSettings, parse_address, resolve
from torchloom.errors import UsageError
from torchloom.model.transaction.config import Entry, Schedule
from torchloom.model.transaction.messages import Changed
from torchloom.probe.observe.hyperparameters import describe
from torchloom.probe.steering.declared import Registry
from torchloom.probe.steering.overrides import Overrides
from torchloom.wire.blackbox import SCHEDULE, SETTINGS, Progress, View

ONLY_BY_HANDLER = "needs two phases, because it is carried out by code of the script's"


@dataclass
class Before:
    """What held before a change, in the order in which it must be put back."""

    holding: schedules.Holding
    max_steps: int | None
    version: int
    history: Schedule
    following: Schedule
    pending: dict[str, object]
    declared: list[tuple[str, object]] = field(default_factory=list)


class Config:
    """The settings of one worker. `optimizers` yields (number, optimizer) of those that have stepped."""

    def __init__(
        self,
        view: View,
        overrides: Overrides,
        registry: Registry,
        optimizers: Callable[[], list[tuple[int, Any]]],
    ) -> None:
        self._view = view
        self._overrides = overrides
        self._registry = registry
        self._optimizers = optimizers
        self.max_steps: int | None = None
        self.version = 0
        self._holding: schedules.Holding = {}
        """Every value that a change gave, by its address, with the version that decided it."""
        self._history: Schedule = ()
        """Every change that this generation was given or has made, by training step."""
        self._following: Schedule = ()
        self._pending: dict[str, object] = {}
        """Values of settings that the script has not declared yet."""
        self._written = b""

    # -- reports --------------------------------------------------------------------------------
    def known(self) -> KnownSettings:
        """What can be set here, now."""
        held = self.held()
        return KnownSettings(
            optimizers=self._groups(held),
            declared=(MAX_STEPS, *(d.setting for d in self._registry.by_name.values())),
            values=self._values(),
            held=held,
        )

    def held(self) -> dict[str, Held]:
        return self._overrides.held(self._optimizers())

    def _values(self) -> dict[str, object]:
        declared = {name: d.told() for name, d in self._registry.by_name.items()}
        return {MAX_STEPS.name: self.max_steps, **declared}

    def _groups(self, held: Mapping[str, Held]) -> list[list[dict[str, Any]]]:
        numbered = dict(self._optimizers())
        present = [numbered.get(number) for number in range(max(numbered, default=-1) + 1)]
        return [optimizer["groups"] for optimizer in describe(present, held)[0]]

    def write(self) -> None:
        """Bring the SETTINGS blob up to date."""
        settings = (MAX_STEPS, *(d.setting for d in self._registry.by_name.values()))
        text = pack_settings(ToldSettings(settings, self._values(), self.held()))
        if text != self._written:
            self._view.write_blob(SETTINGS, text)
            self._written = text
        self._view.set_progress(Progress.CONFIG_VERSION, self.version)

    # -- a change -------------------------------------------------------------------------------
    def problem(self, values: Mapping[str, object], *, two_phase: bool) -> str:
        """Why this worker could not apply these values; empty when it can."""
        try:
            checked, _ = resolve(values, self.known())
            by_handler = [name for name in checked if name in self._registry.by_name]
            for name in by_handler:
                self._registry.by_name[name].check(checked[name])
        except UsageError as error:
            return str(error)
        return f"{by_handler[0]} {ONLY_BY_HANDLER}" if by_handler and not two_phase else ""

    def has(self, version: int) -> bool:
        """Whether this change is in force here, or will be at its step."""
        return any(entry.version == version for entry in self._history)

    def snapshot(self) -> Before:
        return Before(
            holding=self._holding,
            max_steps=self.max_steps,
            version=self.version,
            history=self._history,
            following=self._following,
            pending=dict(self._pending),
        )

    def apply(
        self, before: Before, version: int, values: Mapping[str, object], step: int | None
    ) -> tuple[Changed, ...]:
        """Make these values hold; raises what a handler raises. `before` collects what must be put back.

        `step` is the training step that uses them first, if it is known.
        """
        checked, differences = resolve(values, self.known())
        newer = [parse_address(text) for text, (decided, _) in self._holding.items() if decided > version]
        self._put(before, Entry(version, step or 0, checked))
        if step is not None:
            self._history = schedules.record(self._history, Entry(version, step, checked))
        return tuple(
            (d.address, d.before, d.after)
            for d in differences
            if not any(address.covers(parse_address(d.address)) for address in newer)
        )

    def undo(self, before: Before) -> None:
        """Put back what held; raises what a handler raises."""
        for name, value in reversed(before.declared):
            self._registry.by_name[name].set(value)
        self._hold(before.holding)
        self.max_steps, self.version = before.max_steps, before.version
        self._history, self._following = before.history, before.following
        self._pending = before.pending

    def _put(self, before: Before, entry: Entry) -> None:
        """Make the values hold that no newer decision covers. Handlers first: they can fail; nothing after
        them can."""
        self._remember_initial()
        holding = schedules.lay_over(self._holding, entry)
        values = {
            text: value for text, value in entry.values.items() if holding.get(text) == (entry.version, value)
        }
        for name, value in values.items():
            declared = self._registry.by_name.get(name)
            if declared is not None:
                before.declared.append((name, declared.value))
                declared.set(value)
                self._pending.pop(name, None)
        self._hold(holding)
        if MAX_STEPS.name in values:
            limit = values[MAX_STEPS.name]
            self.max_steps = limit if isinstance(limit, int) else None
        self.version = max(self.version, entry.version)

    def _hold(self, holding: schedules.Holding) -> None:
        self._holding = holding
        words = {text: word for text, (_, word) in holding.items() if _is_group(text)}
        if list(words.items()) != list(self._overrides.words.items()):
            self._overrides.replace(words)

    # -- the schedule ---------------------------------------------------------------------------
    def begin(self, made: int | None) -> None:
        """Training resumes after step `made`; None: unknown. Raises what a handler raises."""
        self._history = unpack_schedule(self._view.read_blob(SCHEDULE) or b"")
        start = schedules.begin(self._history, made)
        self._hold_exactly(self.snapshot(), start)

    def follow(self, step: int) -> None:
        """Apply what the schedule has for the boundary of this training step."""
        due = tuple(entry for entry in self._following if entry.step <= step)
        self._following = self._following[len(due) :]
        for entry in due:
            self._leave_for_later(entry)
            self._put(self.snapshot(), entry)
        self._put_pending()

    @property
    def next_step(self) -> int | None:
        """The training step at whose boundary `follow` has something to do."""
        if any(name in self._registry.by_name for name in self._pending):
            return 0
        return self._following[0].step if self._following else None

    def rebase(
        self,
        before: Before,
        made: int,
        choice: str,
        *,
        today: int | None = None,
        version: int | None = None,
    ) -> tuple[Changed, ...]:
        """The training was rolled back to the end of step `made`: hold what held there, and let the rest
        follow; or give the rest up ("revert"), or keep the values of step `today` ("keep"). `version` is the
        newest that the restored state was made with, if it is known."""
        if choice == "keep":
            self._history = schedules.roll_back(self._history, made + 1, "keep", today=today)
            self._following = () if today is None else schedules.ahead(self._history, today)
            return ()
        if choice == "revert":
            self._history = schedules.roll_back(self._history, made + 1, "revert", version=version)
        values, held = self._values(), self.held()
        self._hold_exactly(before, schedules.begin(self._history, made))
        return tuple(_changes(values, self._values(), held, self.held()))

    def _hold_exactly(self, before: Before, start: schedules.GenerationConfig) -> None:
        """These values and no others hold; the rest is as the script began."""
        self._remember_initial()
        self._pending = {}
        for text, (version, value) in start.holding.items():
            self._leave_for_later(Entry(version, 0, {text: value}))
        self._hold(start.holding)
        limit = start.values.get(MAX_STEPS.name)
        self.max_steps = limit if isinstance(limit, int) else None
        for name, known in self._registry.by_name.items():
            wanted = start.values.get(name, known.initial)
            if wanted != known.value:
                before.declared.append((name, known.value))
                known.set(wanted)
        self.version, self._following = start.version, start.following

    def _leave_for_later(self, entry: Entry) -> None:
        """What the script has not declared (yet): it may do so in the midst of training."""
        for text, value in entry.values.items():
            known = _is_group(text) or text == MAX_STEPS.name or text in self._registry.by_name
            newer = text in self._holding and self._holding[text][0] > entry.version
            if not known and not newer:
                self._pending[text] = value

    def _put_pending(self) -> None:
        for name in [name for name in self._pending if name in self._registry.by_name]:
            self._remember_initial()
            self._registry.by_name[name].set(self._pending.pop(name))

    def _remember_initial(self) -> None:
        """What the script began with, before we touch it for the first time."""
        for declared in self._registry.by_name.values():
            if not declared.is_remembered:
                declared.initial, declared.is_remembered = declared.value, True


def _is_group(text: str) -> bool:
    return parse_address(text).name in HYPERPARAMETERS


def _changes(
    values: Mapping[str, object],
    new_values: Mapping[str, object],
    held: Mapping[str, Held],
    new_held: Mapping[str, Held],
) -> list[Changed]:
    """What differs after a rollback, place by place."""
    found: list[Changed] = [
        (name, before, new_values[name]) for name, before in values.items() if before != new_values[name]
    ]
    for place in dict.fromkeys((*held, *new_held)):
        old, new = held.get(place), new_held.get(place)
        before = old.value if old else new.own if new else None
        after = new.value if new else old.own if old else None
        if before != after:
            found.append((place, before, after))
    return found
