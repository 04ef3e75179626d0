"""Wrong variants of the transaction are caught in the same world: else its silence would prove nothing.

Each mutant takes away one rule of docs/steering.md.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from transaction_history import live_through, sharp_history
from transaction_world import Apply, World

from torchloom.core.transaction import proposer
from torchloom.core.transaction.attempt import ABORT, Attempt, Stage
from torchloom.core.transaction.rank import Rank
from torchloom.core.transaction.rank_actions import Do, Run
from torchloom.model.transaction.messages import Answer, Mail, Phase, Said
from torchloom.model.transaction.operation import Effect, Event, How, Outcome, Send, Tell
from torchloom.model.transaction.state import Proposer
from torchloom.model.transaction.state import Round as Awaiting


class MailboxDecides(Rank):
    """CONFIRM or not is read from the own mailbox and never agreed upon in the store."""

    def _ask(self, attempt: Attempt, key: str, value: str, now_ns: int) -> Do | None:
        self.store_said(key, value)
        return None


class TimeoutDecides(Rank):
    """Who waited long enough goes on without telling the others."""

    def _ask(self, attempt: Attempt, key: str, value: str, now_ns: int) -> Do | None:
        if attempt.stage is not Stage.DECIDING or value != ABORT:
            return super()._ask(attempt, key, value, now_ns)
        self.store_said(key, value)
        return None


class OwnCountOfVotes(Rank):
    """Every rank counts the votes for itself: one may see the last vote and another the timeout."""

    def _ask(self, attempt: Attempt, key: str, value: str, now_ns: int) -> Do | None:
        if attempt.stage is not Stage.SETTLING:
            return super()._ask(attempt, key, value, now_ns)
        self.store_said(key, value)
        return None


class StoreIsOptional(Rank):
    """A store that does not answer is taken for an ABORT."""

    def store_failed(self, why: str, now_ns: int) -> None:
        for attempt in self._attempts.values():
            if attempt.stage is Stage.DECIDING and not self._leaving:
                self._close(attempt, Said.NOT_APPLIED, why)
                return
        super().store_failed(why, now_ns)


class WithdrawalDisarms(Rank):
    """Any withdrawal counts at once, although others may have been confirmed."""

    def receive(self, mail: Mail, problem: str = "") -> None:
        super().receive(Mail(mail.phase, mail.proposal, mail.at_step, unconfirmed=True), problem)


class NeverTooLate(Rank):
    """Answers ARMED for a step that is past."""

    def receive(self, mail: Mail, problem: str = "") -> None:
        super().receive(mail, problem)
        name = mail.proposal.attempt
        answer = self.answers.get(name)
        if answer is not None and answer.said is Said.TOO_LATE:
            self.answers[name] = Answer(name, self.rank, Said.ARMED, self.step)


class AtOnce(Rank):
    """Applies when it hears of the confirmation and not at the agreed step."""

    def receive(self, mail: Mail, problem: str = "") -> None:
        super().receive(mail, problem)
        attempt = self._attempts.get(mail.proposal.attempt)
        if attempt is not None and attempt.confirmed and attempt.stage is Stage.ARMED:
            attempt.at_step = self.step


class OnePlaceAStep(Rank):
    """At the boundary of a step it still arms for the place between before it, and does it there."""

    def _place(self, attempt: Attempt) -> int:
        return self.step

    def _go_on(self, attempt: Attempt, now_ns: int) -> Do | None:
        if attempt.stage is Stage.RUNNING and not self._leaving:
            return Run(attempt.proposal)
        return super()._go_on(attempt, now_ns)


class AnyPlaceWillDo(Rank):
    """Goes on with an attempt wherever it is, once its step is there."""

    def _is_due(self, attempt: Attempt) -> bool:
        return self._leaving or attempt.at_step <= self._place(attempt)


class PatientForEver(Rank):
    """Waits until somebody tells it what to do."""

    def receive(self, mail: Mail, problem: str = "") -> None:
        asked = mail.proposal
        slow = replace(
            asked,
            control_timeout_ns=1000 * asked.control_timeout_ns,
            vote_timeout_ns=1000 * asked.vote_timeout_ns,
        )
        super().receive(replace(mail, proposal=slow), problem)


class ArmedGoesOn(Rank):
    """Paused, it goes to the place of what it is armed for and lets it be decided there."""

    def _is_due(self, attempt: Attempt) -> bool:
        not_yet = self.between and not attempt.is_between
        return self._leaving or attempt.at_step <= self.step - not_yet

    def _on_its_way(self) -> bool:
        return bool(self._armed())


def confirms_early(state: Proposer, event: Event, now_ns: int) -> list[Effect]:
    """One rank may still be missing."""
    effects = proposer.apply(state, event, now_ns)
    if state.stage is Awaiting.ARMING and len(state.answers) == state.world - 1:
        proposer._enter(state, Awaiting.CONFIRMED, now_ns, effects)
    return effects


def tells_hopes(state: Proposer, event: Event, now_ns: int) -> list[Effect]:
    """What was confirmed is told as applied."""
    effects = proposer.apply(state, event, now_ns)
    if state.stage is Awaiting.CONFIRMED and state.current is not None:
        version = state.current.version
        effects.append(Tell(Outcome(version, How.APPLIED, "sent", state.generation, state.at_step)))
        proposer._close(state)
    return effects


def withdraws_lightly(state: Proposer, event: Event, now_ns: int) -> list[Effect]:
    """Calls a withdrawal unconfirmed although CONFIRM was sent."""
    effects = proposer.apply(state, event, now_ns)
    for place, effect in enumerate(effects):
        if isinstance(effect, Send) and effect.mail.phase is Phase.WITHDRAW:
            mail = Mail(Phase.WITHDRAW, effect.mail.proposal, effect.mail.at_step, unconfirmed=True)
            effects[place] = Send(effect.generation, effect.rank, mail, effect.reason)
    return effects


def gives_up_after_confirming(state: Proposer, event: Event, now_ns: int) -> list[Effect]:
    """Tells that nothing happened because somebody cancelled, without asking the ranks."""
    effects = proposer.apply(state, event, now_ns)
    if state.withdrawn and state.current is not None:
        effects.append(Tell(Outcome(state.current.version, How.NOT_APPLIED, "cancelled", state.generation)))
        proposer._close(state)
    return effects


RANKS = [MailboxDecides, TimeoutDecides, OwnCountOfVotes, StoreIsOptional, WithdrawalDisarms, NeverTooLate]
RANKS += [AtOnce, OnePlaceAStep, AnyPlaceWillDo, PatientForEver, ArmedGoesOn]
PROPOSERS: list[Apply] = [confirms_early, tells_hopes, withdraws_lightly, gives_up_after_confirming]
HISTORIES = 3000


def histories_until_caught(rank: type[Rank], apply: Apply) -> int:
    for seed in range(HISTORIES):
        try:
            world = World(2 + seed % 2, rank=rank, apply=apply, paused=rank is ArmedGoesOn)
            live_through(world, sharp_history(seed))
        except AssertionError:
            return seed + 1
    return 0


@pytest.mark.parametrize("rank", RANKS, ids=lambda rank: rank.__name__)
def test_a_wrong_rank_is_caught(rank: type[Rank]) -> None:
    assert histories_until_caught(rank, proposer.apply)


@pytest.mark.parametrize("apply", PROPOSERS, ids=lambda apply: apply.__name__)
def test_a_wrong_proposer_is_caught(apply: Apply) -> None:
    assert histories_until_caught(Rank, apply)
