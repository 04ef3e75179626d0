"""A slow rank takes fewer samples of a step: asked for, corrected by measuring, given back."""

from __future__ import annotations

from typing import Any

import pytest
from core_story import S, Story
from detect_windows import SECOND, window
from finding_story import made
from policy_story import STRAGGLER, answer, stepping

from torchloom.core.detect.window import StepTimes
from torchloom.core.policy.pace import STEPS, is_news, measure
from torchloom.core.policy.parsing import PolicyProblem, policy_from
from torchloom.core.policy.rebalance import open_keys
from torchloom.model.events import ChangeRequested, FindingEnded, PaceMeasured
from torchloom.model.findings import Finding
from torchloom.model.incidents import DecisionOutcome
from torchloom.model.policy import Policy
from torchloom.model.transaction.messages import Kind, Said

RULES: Any = {"compute-slow": {"likely": "rebalance"}}
INPUTS: dict[str, float | str] = {"ratio": 2.0, "excess_s": 0.1, "cost": 0.5}


def slow(**more: object) -> Finding:
    fields = {f: getattr(STRAGGLER, f) for f in STRAGGLER.__struct_fields__} | {"inputs": INPUTS}
    return Finding(**{**fields, **more})


def running(policy: Policy | None = None) -> Story:
    """Four ranks on two nodes."""
    story = Story(a=2, b=2)
    story.run(workers=2, nodes=2, policy=policy or Policy(rules=RULES, cooldown_s=0.0))
    for rank in range(4):
        story.first_step(rank)
    story.now_ns += 60 * S
    return story


def found(story: Story, shares: str | None = "even", **more: object) -> None:
    story.tell(made(slow(**more), step_s=0.2, shares=shares))


def agreed(story: Story) -> None:
    for said in (Said.PREPARED, Said.ARMED, Said.APPLIED):
        answer(story, said)


def measured(story: Story, own_s: float, peers_s: float, step_s: float) -> None:
    balance = story.job().balance
    assert balance is not None
    told = PaceMeasured(
        job="j", generation=story.job().generation, operation=balance.operation,
        own_s=dict.fromkeys(balance.weights, own_s), peers_s=peers_s, step_s=step_s,
    )  # fmt: skip
    story.tell(told)


def shares(story: Story) -> list[object]:
    """What was asked for, in order."""
    return [record.values["shares"] for record in story.job().operations.values()]


def balanced() -> Story:
    story = running()
    found(story)
    assert shares(story) == ["1:0.5 of 4"]
    assert story.incident().decision.startswith("to be rebalanced at the next step")
    agreed(story)
    return story


def test_a_slow_rank_takes_less_at_one_step_of_all_ranks_and_the_gain_is_reported() -> None:
    story = balanced()
    record = next(iter(story.job().operations.values()))
    assert record.kind is Kind.SET and record.by == "policy" and record.state == "applied"
    assert [entry.values for entry in story.job().schedule] == [{"shares": "1:0.5 of 4"}]
    measured(story, 0.115, 0.114, 0.118)
    told = story.incident()
    assert told.open and told.decided is not None and told.decided.outcome is DecisionOutcome.DONE
    assert "rank 1 takes 50% of the samples of each other rank" in told.decision
    assert "200 ms to 118 ms (1.69×)" in told.decision
    assert len(shares(story)) == 1
    story.check_replay()


def test_the_finding_that_ends_because_of_it_does_not_end_the_incident() -> None:
    story = balanced()
    (name,) = story.job().findings
    assert open_keys(story.job()) == []
    story.tell(FindingEnded(job="j", generation=1, key=name, lasted_s=30.0))
    assert story.incident().open and story.job().balance is not None


def test_shares_are_corrected_by_what_is_measured_a_bounded_number_of_times() -> None:
    story = balanced()
    measured(story, 0.17, 0.114, 0.18)  # a part of its time does not depend on its samples
    assert shares(story)[-1] == "1:0.335 of 4"
    agreed(story)
    for _ in range(12):
        measured(story, 0.17, 0.114, 0.15)
        agreed_if_asked(story)
    asked = [float(str(text).split(":")[1].split()[0]) for text in shares(story) if text != "even"]
    assert asked == sorted(asked, reverse=True) and min(asked) >= 0.25 and len(asked) <= 5


def agreed_if_asked(story: Story) -> None:
    if story.job().control.current is not None:
        agreed(story)


def test_a_rank_that_is_as_fast_as_the_others_again_gets_its_samples_back() -> None:
    story = balanced()
    measured(story, 0.115, 0.114, 0.118)
    measured(story, 0.057, 0.114, 0.118)
    assert shares(story)[-1] == "even"
    agreed(story)
    told = story.incident()
    assert story.job().balance is None and not told.open and not story.job().findings
    assert told.resolution == "rank 1 is as fast as the others again"
    story.check_replay()


def test_shares_that_gain_nothing_are_given_back() -> None:
    story = balanced()
    measured(story, 0.115, 0.114, 0.21)
    assert shares(story)[-1] == "even"
    agreed(story)
    assert "it gained nothing: steps went from 200 ms to 210 ms" in story.incident().decision


@pytest.mark.parametrize(
    ("text", "why"),
    [(None, "does not load its data with loom.ElasticLoader"), ("2:0.5 of 4", "a person has set the shares")],
)
def test_where_it_cannot_be_done_nothing_is_asked_for(text: str | None, why: str) -> None:
    story = running()
    found(story, text)
    assert not shares(story) and story.job().balance is None
    assert story.incident().decision.startswith("not rebalanced: ") and why in story.incident().decision


def test_at_most_half_of_the_ranks_take_less() -> None:
    story = stepping(Policy(rules=RULES, cooldown_s=0.0))
    found(story, ranks=(0, 1))
    assert "more than half of the ranks" in story.incident().decision
    found(story, ranks=(1,))
    assert shares(story) == ["1:0.5 of 2"]
    agreed(story)
    found(story, ranks=(0,))  # it only has more samples now
    assert len(shares(story)) == 1


def test_a_second_slow_rank_keeps_the_share_of_the_first() -> None:
    story = balanced()
    found(story, "1:0.5 of 4", ranks=(3,))
    assert shares(story)[-1] == "1:0.5,3:0.5 of 4"


def test_by_default_and_in_a_dry_run_it_is_only_advised() -> None:
    for policy, words in (
        (Policy(), "reported only; `rebalance` in the policy would make the job about 1.75× as fast"),
        (Policy(rules=RULES, dry_run=True), "dry run, would be rebalanced"),
    ):
        story = running(policy)
        found(story)
        assert story.incident().decision.startswith(words) and not shares(story)
    story = running(Policy())
    found(story, None)
    assert "fewer samples on rank 1 would make the job about 1.75× as fast, but the script" in (
        story.incident().decision
    )


def test_it_promises_no_more_than_the_slow_rank_costs() -> None:
    """Where other ranks are late by chance, the job is hardly faster without the slow one."""
    story = running(Policy())
    found(story, inputs={**INPUTS, "cost": 0.2})
    assert "would make the job about 1.25× as fast" in story.incident().decision
    story = running(Policy())
    found(story, inputs={**INPUTS, "cost": 0.01})
    assert "as fast" not in story.incident().decision


def test_ranks_that_refuse_leave_everything_as_it_was() -> None:
    story = running()
    found(story)
    answer(story, Said.REFUSED, why="there is no setting 'shares'")
    assert story.job().balance is None and not story.job().schedule
    assert story.incident().decision.startswith("not rebalanced: ")


def test_a_persons_shares_are_left_alone() -> None:
    story = balanced()
    story.tell(
        ChangeRequested(job="j", operation="o", kind=Kind.SET, values={"shares": "even"}, by="ann", why="")
    )
    agreed(story)
    assert story.job().balance is None and "ann set the shares since then" in story.incident().decision


def test_after_a_restart_in_the_same_places_the_shares_stay_and_elsewhere_they_are_given_back() -> None:
    for elsewhere in (False, True):
        story = balanced()
        story.exit(0)
        story.end_rest()
        story.fire()
        story.bring_up()
        job = story.job()
        for rank in range(4):
            story.first_step(rank)
        assert job.generation == 2 and job.balance is not None
        if elsewhere:
            job.balance.nodes = {1: "another"}
        measured(story, 0.115, 0.114, 0.118)
        assert (shares(story)[-1] == "even") is elsewhere
        assert job.balance.generation == (1 if elsewhere else 2)


def test_a_rule_for_anything_else_is_refused() -> None:
    assert policy_from({"rules": {"host-contention": {"likely": "rebalance"}}})
    with pytest.raises(PolicyProblem, match="fewer samples help where a rank is slower"):
        policy_from({"rules": {"hang": {"certain": "rebalance"}}})


# -- measuring ----------------------------------------------------------------------------------


def test_only_steps_with_the_new_shares_are_measured() -> None:
    story = balanced()
    job, balance = story.job(), story.job().balance
    assert balance is not None
    first = balance.since_step + 2

    def windows(steps: int) -> list[Any]:
        times = tuple(
            StepTimes(first - 4 + n, SECOND // (5 if n < 4 else 8), 0, SECOND // 80) for n in range(4 + steps)
        )
        return [window(rank, steps=times) for rank in range(4)]

    assert measure(job, windows(STEPS - 1)) is None
    told = measure(job, windows(STEPS))
    assert told is not None and told.own_s == {1: 0.1125} and told.peers_s == 0.1125
    assert is_news(balance, told)
    story.tell(told)
    assert not is_news(balance, told)
