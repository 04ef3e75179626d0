"""Ranks of a job as an agent sees them, for tests of steering that need no worker: they answer mail at once.

They hold values, count steps while nobody looks, and can be told to refuse, to fail or to keep silent.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from torchloom.core.config.box_codec import ToldSettings, pack_settings
from torchloom.core.config.overrides import Held, in_effect, mode_of
from torchloom.core.config.settings import MAX_STEPS, Setting, Type, parse_address
from torchloom.core.transaction.packing import pack_answers, unpack_mail
from torchloom.model.messages import WorkerPulse
from torchloom.model.transaction.messages import Answer, Changed, Kind, Mail, Phase, Said
from torchloom.model.worker import WorkerRef

DROPOUT = Setting("dropout", Type.FLOAT, minimum=0.0, below=1.0, description="share of units left out")
SCHEDULER = Setting("scheduler", Type.CHOICE, choices=("cosine", "linear"))
OFFSET = 100
"""The training step is ahead of the count, as after a restart."""


@dataclass
class Ranks:
    """All ranks of one job on one node; what one does, all do."""

    groups: list[dict[str, object]] = field(
        default_factory=lambda: [{"lr": 0.1, "betas": [0.9, 0.999]}, {"lr": 0.2, "betas": [0.9, 0.999]}]
    )
    own: dict[str, object] = field(default_factory=lambda: {"dropout": 0.1, "scheduler": "cosine"})
    held: dict[str, Held] = field(default_factory=dict)
    step: int = 11
    """About to be made."""
    offset: int | None = OFFSET
    """To the training step; None: the script does not tell that."""
    version: int = 0
    paused: bool = False
    refuse: str = ""
    fail: dict[int, str] = field(default_factory=dict)
    """By rank the traceback with which it cannot apply."""
    silent: bool = False
    seen: list[tuple[Phase, Kind]] = field(default_factory=list)
    told: dict[tuple[int, ...], dict[int, Answer]] = field(default_factory=dict)

    def read(self, mail: str, refs: tuple[WorkerRef, ...]) -> str:
        """The answers of these ranks to their mail, packed; nothing if they keep silent."""
        if self.silent:
            return ""
        answers: list[Answer] = []
        for one in unpack_mail(mail.encode()):
            self.seen.append((one.phase, one.proposal.kind))
            final = self.told.setdefault(tuple(one.proposal.attempt), {})
            if not final:
                given = {ref.rank: self._answer(one, ref.rank) for ref in refs}
                if one.phase in (Phase.CONFIRM, Phase.WITHDRAW):
                    self._act(one, given)
                    final.update(given)
            else:
                given = final
            answers += given.values()
        return pack_answers(answers).decode()

    def _answer(self, mail: Mail, rank: int) -> Answer:
        said, why = Said.NOT_APPLIED, "withdrawn"
        match mail.phase:
            case Phase.PREPARE:
                said, why = (Said.REFUSED, self.refuse) if self.refuse else (Said.PREPARED, "")
            case Phase.ARM:
                said, why = (Said.ARMED, "") if mail.at_step >= self.step else (Said.TOO_LATE, "it is past")
            case Phase.CONFIRM:
                said, why = Said.APPLIED, ""
                if self.fail:
                    said, why = Said.UNDONE, self.fail.get(rank, self._culprit())
        changed = self._changed(mail) if said is Said.APPLIED else ()
        return Answer(
            mail.proposal.attempt,
            rank,
            said,
            self.step,
            held=self.paused,
            step_ns=10_000_000,
            anchor="SGD",
            why=why,
            raised=said is Said.UNDONE and rank in self.fail,
            changed=changed,
            offset=self.offset,
        )

    def _culprit(self) -> str:
        rank, text = next(iter(self.fail.items()))
        return f"rank {rank} could not: {text.splitlines()[-1]}"

    def _changed(self, mail: Mail) -> tuple[Changed, ...]:
        if mail.proposal.kind is Kind.PROBE:  # from 0 to 1 it is slow
            return (("0>1", 100_000, 200_000_000), ("1>0", 100_000, 1_000_000))
        if mail.proposal.kind is not Kind.SET:
            return ()
        found: list[Changed] = []
        for text, value in mail.proposal.values.items():
            address = parse_address(text)
            if address.name in self.own:
                found.append((text, self.own[address.name], value))
                continue
            for at, group in enumerate(self.groups):
                if address.name in group and address.group in (None, at):
                    place = f"optimizer0.{address.name}@{at}"
                    before = self.held[place].own if place in self.held else group[address.name]
                    found.append((place, group[address.name], in_effect(value, before)))
        return tuple(found)

    def _act(self, mail: Mail, given: dict[int, Answer]) -> None:
        answer = next(iter(given.values()))
        if answer.said is not Said.APPLIED:
            return
        self.step, self.version = max(self.step, mail.at_step), mail.proposal.attempt.version
        match mail.proposal.kind:
            case Kind.PAUSE:
                self.paused = True
            case Kind.RESUME:
                self.paused = False
            case Kind.SET:
                modes = {parse_address(t).name: mode_of(v) for t, v in mail.proposal.values.items()}
                for place, before, after in answer.changed:
                    self._set(place, before, after, modes[parse_address(place).name])
            case _:
                pass

    def _set(self, place: str, before: object, after: object, mode: str) -> None:
        address = parse_address(place)
        if address.group is None:
            self.own[address.name] = after
            return
        own = self.held[place].own if place in self.held else before
        self.groups[address.group][address.name] = after
        self.held.pop(place, None)
        if mode != "own":
            self.held[place] = Held(after, mode, own)

    def pulse(self, ref: WorkerRef, pid: int) -> WorkerPulse:
        declared = tuple(s for s in (MAX_STEPS, DROPOUT, SCHEDULER) if s.name in self.own or s is MAX_STEPS)
        told = ToldSettings(declared, self.own, self.held)
        return WorkerPulse(
            ref=ref,
            pid=pid,
            steps=self.step - 1,
            step_s=0.01,
            idle_s=0.0,
            phase="paused" if self.paused else "training",
            phase_s=0.0,
            training_step=None if self.offset is None else self.step - 1 + self.offset,
            offset=self.offset,
            hyperparameters=json.dumps({"optimizers": [{"class": "SGD", "groups": self.groups}]}),
            settings=pack_settings(told).decode(),
            config_version=self.version,
        )
