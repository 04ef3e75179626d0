"""Incidents are records; their sentences are made of them in one place."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from torchloom.model.incidents import DONE, Decided, Decision, DecisionOutcome, Incident, Verdict


def said(**fields: object) -> str:
    made = Decision(**({"action": "restart", "outcome": DecisionOutcome.DONE, "reason": "why"} | fields))  # type: ignore[arg-type]
    return made.sentence("j")


def test_the_outcome_makes_the_sentence() -> None:
    assert said() == "why"
    assert said(outcome=DecisionOutcome.REFUSED) == "not restarted: why"
    assert said(outcome=DecisionOutcome.DRY_RUN, action="evict") == "dry run, would be moved away: why"
    assert (
        said(outcome=DecisionOutcome.PENDING, action="evict")
        == "to be moved away as soon as it is saved: why"
    )
    assert said(outcome=DecisionOutcome.PENDING, action="rollback") == "to be rolled back: why"
    paused = said(outcome=DecisionOutcome.PENDING, action="pause")
    assert paused.startswith("to be paused at the next step: why; `loom resume j`")
    assert said(action="pause") == "paused: why"
    assert said(outcome=DecisionOutcome.REPORTED, action="report", reason="reported only") == "reported only"


def test_what_is_noted_beside_a_decision_comes_after_it() -> None:
    text = said(
        outcome=DecisionOutcome.REPORTED,
        reason="reported only",
        way_back=True,
        links="refused",
        links_reason="no",
    )
    assert text.startswith("reported only; to go back to before it: `loom checkpoints j`")
    assert text.endswith("; its links are not probed: no")


@pytest.mark.parametrize("action", [action for group in get_args(Decided) for action in get_args(group)])
@pytest.mark.parametrize("outcome", DecisionOutcome)
def test_every_action_that_a_policy_may_take_has_words_for_every_outcome(
    action: Decided, outcome: DecisionOutcome
) -> None:
    if action in DONE or outcome in (DecisionOutcome.DONE, DecisionOutcome.REPORTED):
        assert "why" in said(action=action, outcome=outcome)


def test_clauses_of_a_verdict_keep_their_order() -> None:
    whole = Verdict(cause="a", repeats="2 times", before="b", then="c", silence="d", others="e")
    assert whole.sentence == "a (2 times); before that, b; then c; d; e"
    assert Verdict(cause="a").sentence == "a" and Verdict().sentence == ""


def test_an_incident_is_the_same_after_a_snapshot() -> None:
    decided = Decision(action="evict", outcome=DecisionOutcome.PENDING, reason="why", links="asked")
    incident = Incident(
        id="j.1", job="j", generation=1, kind="crash", judged=Verdict(cause="a"), decided=decided
    )
    assert msgspec.json.decode(msgspec.json.encode(incident), type=Incident) == incident
