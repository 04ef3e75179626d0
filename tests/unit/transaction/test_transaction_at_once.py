"""Armed at once: where the ranks are known to be, a change does not begin with the question."""

from __future__ import annotations

import pytest

from torchloom.core.transaction.lead import arm_at_once, longer
from torchloom.core.transaction.proposer import apply
from torchloom.core.transaction.rank import Rank
from torchloom.core.transaction.rank_actions import CompareSet, Look, Pass
from torchloom.model.messages import RankSteps
from torchloom.model.transaction.messages import Answer, AttemptId, Kind, Mail, Phase, Proposal, Said
from torchloom.model.transaction.operation import (
    Answered,
    Effect,
    Event,
    GenerationBegan,
    Operation,
    Requested,
    Send,
)
from torchloom.model.transaction.state import Proposer, Round
from torchloom.weaver.requests.position import STORING_S, foremost

S = 1_000_000_000
MS = 1_000_000


def told(state: Proposer, now_ns: int, *events: Event) -> list[Effect]:
    return [effect for event in events for effect in apply(state, event, now_ns)]


def asked(position: float, *, kind: Kind = Kind.SET, at_step: int | None = None) -> Proposer:
    state = Proposer()
    told(state, S, GenerationBegan(1, 2))
    change = Operation(1, kind, {}, at_step=at_step, step_ns=50 * MS, position=position)
    told(state, S, Requested(change))
    return state


def said(state: Proposer, what: Said, step: int, held: bool = False) -> list[Event]:
    return [Answered(Answer(state.attempt_id, r, what, step, held, 50 * MS, "SGD", "so")) for r in (0, 1)]


def test_a_change_is_confirmed_after_one_round() -> None:
    state = asked(position=10.3)
    assert (state.stage, state.at_step) == (Round.ARMING, 12)
    effects = told(state, S + 40 * MS, *said(state, Said.ARMED, 11))
    assert [(e.mail.phase, e.mail.at_step) for e in effects if isinstance(e, Send)] == [
        (Phase.CONFIRM, 12)
    ] * 2


def test_ranks_that_are_further_than_was_thought_tell_where_they_are_and_then_are_asked() -> None:
    state = asked(position=10.3)
    told(state, S + MS, said(state, Said.TOO_LATE, 14)[0])
    assert (state.stage, state.at_step, state.tries) == (Round.ARMING, 16, 2)
    told(state, S + 2 * MS, said(state, Said.TOO_LATE, 18)[0])
    assert (state.stage, state.at_step, state.tries) == (Round.PREPARING, 0, 3)
    told(state, S + 50 * MS, *said(state, Said.PREPARED, 20))
    assert state.at_step == 22, "what was guessed wrong does not make the lead longer"


def test_paused_ranks_are_asked_because_they_do_not_come_to_a_later_step() -> None:
    state = asked(position=10.3)
    effects = told(state, S + MS, *said(state, Said.ARMED, 11, held=True))
    withdrawn = [e.mail for e in effects if isinstance(e, Send) and e.mail.phase is Phase.WITHDRAW]
    assert len(withdrawn) == 2 and all(mail.unconfirmed for mail in withdrawn)
    assert state.stage is Round.PREPARING


@pytest.mark.parametrize(("kind", "at_step"), [(Kind.SET, 40), (Kind.RESUME, None), (Kind.CHECKPOINT, None)])
def test_what_needs_an_answer_first_is_asked(kind: Kind, at_step: int | None) -> None:
    assert asked(position=30.0, kind=kind, at_step=at_step).stage is Round.PREPARING


def test_the_next_change_goes_by_what_the_ranks_answered() -> None:
    state = asked(position=10.3)
    told(state, S + 40 * MS, *said(state, Said.ARMED, 11))
    waiting = Operation(2, Kind.SET, {}, step_ns=50 * MS)
    told(state, S + 60 * MS, Requested(waiting))
    told(state, S + 100 * MS, *said(state, Said.APPLIED, 12))
    assert (state.current, state.stage, state.at_step) == (waiting, Round.ARMING, 14)


def test_another_generation_is_somewhere_else() -> None:
    state = asked(position=10.3)
    told(state, S + MS, GenerationBegan(2, 2))
    told(state, S + MS, Requested(Operation(2, Kind.SET, {}, step_ns=50 * MS)))
    assert state.stage is Round.PREPARING


def test_the_step_is_far_enough_for_both_messages_and_no_further() -> None:
    assert arm_at_once(10.3, 0.0, 0.05, 0.01) == 12
    assert arm_at_once(10.9, 0.0, 0.05, 0.01) == 13  # it would not arrive before the next boundary
    assert arm_at_once(10.3, 0.1, 0.05, 0.01) == 14
    assert arm_at_once(10.3, 0.0, 0.005, 0.01) == 16
    assert arm_at_once(10.3, 0.0, 0.005, 0.03) == 25
    assert arm_at_once(10.3, 0.0, 20.0, 0.01) == 12


def test_what_cannot_be_foreseen_is_asked() -> None:
    assert arm_at_once(10.3, 0.0, 0.0, 0.0) == 0
    assert arm_at_once(10.3, 2.0, 0.05, 0.0) == 0
    assert arm_at_once(10.3, 0.3, 0.005, 0.0) == 0
    assert arm_at_once(10.3, 0.0, 0.05, 1.0) == 0


def test_a_single_slow_answer_counts_for_little() -> None:
    trip_ns = longer(0, S, 50 * MS)
    assert 10 * MS < trip_ns < 20 * MS
    for _ in range(20):
        trip_ns = longer(trip_ns, 50 * MS, 50 * MS)
    assert trip_ns < 6 * MS


def test_the_foremost_rank_counts_if_all_are_known() -> None:
    ranks = [RankSteps(0, 10, 0.1, 0.05), RankSteps(1, 11, 0.1, 5.0)]
    assert foremost(ranks, 2) == pytest.approx(12 + STORING_S / 0.1)
    assert foremost(ranks, 3) == 0.0
    assert foremost([*ranks, RankSteps(2, 11, 0.1, 0.0, paused=True)], 3) == 0.0
    assert foremost([*ranks, RankSteps(2, 0, 0.0, 0.0)], 3) == 0.0


# -- the rank -----------------------------------------------------------------------------------

ID = AttemptId(1, 1, 1)


def arm(at_step: int) -> Mail:
    return Mail(Phase.ARM, Proposal(ID, Kind.SET, {}), at_step)


def at(step: int, mail: Mail, problem: str = "", held: bool = False) -> Rank:
    rank = Rank(1, 0, 2, held=held)
    rank.arrive(step)
    rank.receive(mail, problem)
    return rank


def test_a_rank_looks_at_the_store_and_arms() -> None:
    rank = at(10, arm(12))
    assert isinstance(rank.next(0), Look) and not rank.is_armed
    rank.saw({})
    assert rank.next(0) == Pass() and rank.is_armed
    assert (rank.answers[ID].said, rank.due_step) == (Said.ARMED, 12)


def test_a_rank_that_is_past_the_step_or_cannot_do_it_says_so() -> None:
    for step in (13, 12):  # at its own step a rank would hold up one that has just gone past
        rank = at(step, arm(12))
        rank.saw({})
        assert rank.answers[ID].said is Said.TOO_LATE and not rank.is_armed
    assert at(10, arm(12), "no such setting").answers[ID].said is Said.REFUSED


def test_who_holds_up_nobody_is_armed_where_it_stands() -> None:
    paused = at(12, arm(12), held=True)
    paused.saw({})
    assert paused.answers[ID].said is Said.ARMED
    alone = Rank(1, 0, 1)
    alone.arrive(12)
    alone.receive(arm(12))
    assert alone.answers[ID].said is Said.ARMED


def test_a_paused_rank_aborts_what_is_for_a_step_it_does_not_come_to() -> None:
    rank = at(10, arm(12), held=True)
    rank.saw({})
    do = rank.next(0)
    assert isinstance(do, CompareSet) and do.value == "ABORT"
