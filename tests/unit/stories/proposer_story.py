"""A proposer, fed event by event."""

from __future__ import annotations

from torchloom.core.transaction.proposer import apply
from torchloom.model.transaction.messages import Answer, Kind, Phase, Said
from torchloom.model.transaction.operation import (
    Answered,
    Effect,
    Event,
    GenerationBegan,
    Operation,
    Outcome,
    Requested,
    Send,
    Tell,
)
from torchloom.model.transaction.state import Proposer, Round

S = 1_000_000_000


class Weaver:
    """A proposer, and what came of every event."""

    def __init__(self, world: int = 2) -> None:
        self.state = Proposer()
        self.now_ns = S
        self.effects: list[Effect] = []
        self.hear(GenerationBegan(1, world))

    def hear(self, *events: Event) -> list[Effect]:
        """The effects of these events."""
        self.effects = [effect for event in events for effect in apply(self.state, event, self.now_ns)]
        return self.effects

    def ask(self, version: int = 1, kind: Kind = Kind.SET, at_step: int | None = None) -> None:
        self.hear(Requested(Operation(version, kind, {"lr": 0.1}, at_step=at_step)))

    def say(
        self, said: Said, *ranks: int, step: int = 10, why: str = "", held: bool = False, raised: bool = False
    ) -> None:
        name, answered = self.state.attempt_id, ranks or (0, 1)
        answers = [Answer(name, r, said, step, held, 50_000_000, "SGD", why, raised=raised) for r in answered]
        self.hear(*map(Answered, answers))

    def confirmed(self) -> None:
        self.ask()
        self.say(Said.PREPARED)
        self.say(Said.ARMED)
        assert self.state.stage is Round.CONFIRMED

    @property
    def sent(self) -> list[tuple[int, Phase, int]]:
        return [(e.rank, e.mail.phase, e.mail.at_step) for e in self.effects if isinstance(e, Send)]

    @property
    def told(self) -> Outcome:
        (outcome,) = [effect.outcome for effect in self.effects if isinstance(effect, Tell)]
        return outcome
