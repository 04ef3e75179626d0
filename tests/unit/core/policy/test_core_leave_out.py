"""A slow replica is left out of the quorum by policy, tried again, and taken back."""

from __future__ import annotations

from typing import Any

import pytest
from core_story import S, Story

from torchloom.core.detect.slow_replicas import ReplicaPace
from torchloom.core.policy.leave_out import MEASURED, is_held, measure, seat_note
from torchloom.core.policy.parsing import PolicyProblem, policy_from
from torchloom.core.policy.rebalance import open_keys
from torchloom.model.effects import SeatReplica
from torchloom.model.events import FindingEnded, FindingMade, NodeGone, NodeUnreachable, ReplicasMeasured
from torchloom.model.findings import Finding
from torchloom.model.fleet import JobState
from torchloom.model.incidents import DecisionOutcome
from torchloom.model.policy import Policy
from torchloom.model.quorum import ReplicaSeat
from torchloom.model.worker import Exit

RULES: Any = {"replica-slow": {"likely": "leave-out"}}
SLOW = "t-r2"


def slow(**inputs: float) -> Finding:
    seen: dict[str, float | str] = {"ratio": 3.0, "own_s": 0.15, "others_s": 0.05, "replicas": 3, "quorum": 4}
    return Finding(
        kind="replica-slow", ranks=(), node="a", sentence="t-r2 is slow", confidence=0.9, inputs=seen | inputs
    )


def running(size: int = 3, least: int = 1, **policy: Any) -> Story:
    story = Story(a=8)
    rules = Policy(**({"rules": RULES, "take_back_s": 60.0} | policy))
    for index in (2, 0, 1, 3, 4)[:size]:
        seat = ReplicaSeat("t", index, size, least)
        story.run(f"t-r{index}", workers=1, replica=seat, policy=rules)
        story.first_step(0, f"t-r{index}")
    story.now_ns += 60 * S
    return story


def found(story: Story, **inputs: float) -> None:
    story.tell(FindingMade(job=SLOW, generation=1, finding=slow(**inputs), steps=50))


def asked(story: Story) -> SeatReplica:
    (effect,) = story.open(SeatReplica)
    return effect


def left_out() -> Story:
    story = running()
    found(story)
    assert asked(story).out and asked(story).set == "t" and asked(story).job == SLOW
    story.done(asked(story))
    return story


def measured(story: Story, quorum: int, own_s: float | None = None, step_s: float = 0.06) -> None:
    generation = story.job(SLOW).generation
    story.tell(
        ReplicasMeasured(
            job=SLOW, generation=generation, quorum=quorum, own_s=own_s, others_s=0.05, step_s=step_s
        )
    )


def decision(story: Story) -> str:
    return story.incident(SLOW).decision


def on_trial(story: Story) -> None:
    story.fire()
    assert not asked(story).out
    story.done(asked(story))


def test_it_is_left_out_and_the_gain_is_reported() -> None:
    story = left_out()
    assert is_held(story.job(SLOW)) and story.state(SLOW) is JobState.RUNNING
    measured(story, 5)
    assert decision(story).endswith(
        "the other 2 replicas train without it: their steps went from 150 ms to 60 ms, "
        "at least 1.67× the samples a second"
    ), decision(story)
    story.check_replay()


def test_status_shows_that_it_is_left_out_and_that_it_is_tried_again() -> None:
    story = left_out()
    id = story.incident(SLOW).id
    assert seat_note(story.job("t-r0")) == ""
    note = f"; left out of the quorum because it is slow ({id}), tried again after 60.0 s"
    assert seat_note(story.job(SLOW)) == note
    on_trial(story)
    assert seat_note(story.job(SLOW)).endswith("and is tried again now")


def test_by_default_it_is_only_reported_with_what_leaving_it_out_would_gain() -> None:
    story = running(rules={})
    found(story)
    assert not story.open(SeatReplica)
    assert "`leave-out` in the policy would make the job about 2.00× as fast" in decision(story)


def test_one_that_is_as_fast_again_is_taken_back() -> None:
    story = left_out()
    measured(story, 5)
    on_trial(story)
    assert not is_held(story.job(SLOW))
    measured(story, 6, own_s=0.055, step_s=0.06)
    incident = story.incident(SLOW)
    assert not incident.open and incident.resolution == "t-r2 is as fast as the others again"
    assert "1.67× the samples a second; taken back after" in decision(story)
    assert story.job(SLOW).left_out is None and not story.open(SeatReplica)
    story.check_replay()


def test_one_that_is_still_slow_is_left_out_for_twice_as_long() -> None:
    story = left_out()
    first_s = story.job(SLOW).left_out.wait_s
    on_trial(story)
    measured(story, 6, own_s=0.15)
    assert asked(story).out and "still took 3.0× as long" in decision(story)
    story.done(asked(story))
    assert story.job(SLOW).left_out.wait_s == 2 * first_s
    measured(story, 6, own_s=0.15)
    assert not story.open(SeatReplica), "steps of the trial are no news"
    on_trial(story)
    measured(story, 8, own_s=0.05)
    assert not story.incident(SLOW).open
    assert len(story.job(SLOW).acts) == 1, "trials use up no budget"


def test_one_that_is_a_little_slower_and_gives_more_than_it_costs_stays() -> None:
    story = left_out()
    on_trial(story)
    measured(story, 6, own_s=0.07)
    assert story.incident(SLOW).resolution == "t-r2 takes 1.4× as long as the others, which is worth it"
    assert story.job(SLOW).left_out is None and not story.open(SeatReplica)


def test_what_was_measured_with_it_before_is_no_news() -> None:
    story = left_out()
    measured(story, 4, own_s=0.05)
    assert story.job(SLOW).left_out is not None
    on_trial(story)
    measured(story, 4, own_s=0.05)
    assert story.job(SLOW).left_out is not None


def test_if_it_gains_nothing_it_is_taken_back_at_once() -> None:
    story = left_out()
    measured(story, 5, step_s=0.149)
    assert not asked(story).out
    story.done(asked(story))
    assert story.incident(SLOW).resolution == "it gained nothing"
    assert story.job(SLOW).left_out is None


def test_the_incident_stays_open_while_it_is_left_out_because_it_cannot_be_found() -> None:
    story = left_out()
    assert open_keys(story.job(SLOW)) == []
    story.tell(FindingEnded(job=SLOW, generation=1, key="replica-slow", lasted_s=30.0))
    assert story.incident(SLOW).open


@pytest.mark.parametrize(
    ("story", "inputs", "why"),
    [
        (running(size=2), {"replicas": 2.0}, "only 1 of 2 replicas would remain, and at least 2 must"),
        (running(least=3), {}, "only 2 of 3 replicas would remain, and at least 3 must"),
        (running(size=5), {"replicas": 3.0}, "only 2 of 5 replicas would remain, and at least 3 must"),
        (running(), {"ratio": 1.6}, "would train 1.07× as fast, which is not worth it"),
        (running(leave_outs_per_hour=0), {}, "budget of 0 replicas left out an hour is used up"),
    ],
)
def test_it_is_refused_where_it_would_do_harm(story: Story, inputs: dict[str, float], why: str) -> None:
    found(story, **inputs)
    assert not story.open(SeatReplica) and story.job(SLOW).left_out is None
    assert story.incident(SLOW).decided.outcome is DecisionOutcome.REFUSED
    assert why in decision(story)


def test_a_dry_run_leaves_nobody_out() -> None:
    story = running(dry_run=True)
    found(story)
    assert not story.open(SeatReplica)
    assert story.incident(SLOW).decided.outcome is DecisionOutcome.DRY_RUN


def test_only_likely_evidence_counts() -> None:
    story = running()
    finding = slow()
    fields = {f: getattr(finding, f) for f in finding.__struct_fields__}
    unsure = Finding(**fields | {"confidence": 0.5})
    story.tell(FindingMade(job=SLOW, generation=1, finding=unsure, steps=50))
    assert not story.open(SeatReplica)


def test_a_lighthouse_that_is_gone_leaves_nobody_out() -> None:
    story = running()
    found(story)
    story.failed(asked(story), "no replica of t runs here")
    assert story.job(SLOW).left_out is None
    assert story.incident(SLOW).decided.outcome is DecisionOutcome.REFUSED


def test_taking_it_back_is_tried_until_the_lighthouse_has_done_it() -> None:
    story = left_out()
    story.fire()
    story.failed(asked(story), "the lighthouse of t does not answer")
    assert is_held(story.job(SLOW)) and not story.open(SeatReplica)
    on_trial(story)
    assert not is_held(story.job(SLOW))


def test_the_lighthouse_is_asked_on_its_own_node_and_wherever_it_moves() -> None:
    story = Story(a=2, b=2, c=2)
    rules = Policy(rules=RULES)
    for index in range(3):
        seat = ReplicaSeat("t", index, 3)
        story.run(f"t-r{index}", workers=1, replica=seat, policy=rules)
        story.first_step(0, f"t-r{index}")
    story.now_ns += 60 * S
    home, elsewhere = (story.job(job).workers[0].node for job in ("t-r0", SLOW))
    assert story.fleet.lighthouses["t"].node == home != elsewhere
    found(story)
    assert asked(story).node == home
    story.tell(NodeUnreachable(node=home, silent_s=60.0))
    assert asked(story).node == home, "unreachable is not dead"
    story.tell(NodeGone(node=home, by="ann", steps={}))
    assert asked(story).node == story.fleet.lighthouses["t"].node != home
    story.done(asked(story))
    assert is_held(story.job(SLOW))
    story.check_replay()


def test_a_new_process_begins_in_the_quorum() -> None:
    story = left_out()
    story.exit(0, Exit(None, 9, "spawner"), job=SLOW)
    assert story.job(SLOW).left_out is None and not story.open(SeatReplica)


def test_when_the_others_have_finished_it_is_stopped() -> None:
    story = left_out()
    for job in ("t-r0", "t-r1"):
        story.exit(0, Exit(0, None, "spawner"), job=job)
    assert story.state("t-r0") is JobState.COMPLETED
    assert story.state(SLOW) is JobState.STOPPING
    assert "the other replicas have finished" in story.job(SLOW).reason


def pace(own_s: float, quorum: int, steps: int = MEASURED, replicas: int = 2) -> ReplicaPace:
    return ReplicaPace(own_s=own_s, step_s=0.06, steps=steps, quorum=quorum, replicas=replicas)


def test_what_is_measured() -> None:
    story = left_out()
    job, stale = story.job(SLOW), pace(0.15, 4, replicas=3)
    others = {"t-r0": pace(0.04, 5), "t-r1": pace(0.05, 5)}
    without = measure(job, {**others, SLOW: stale})
    assert without is not None and (without.own_s, without.others_s, without.step_s) == (None, 0.05, 0.06)
    assert measure(job, {**others, "t-r1": pace(0.05, 5, steps=3)}) is None
    assert measure(job, {"t-r0": pace(0.04, 5)}) is None, "one is not known"
    story.tell(without)
    assert measure(job, {**others, SLOW: stale}) is None, "it is known already"
    on_trial(story)
    together = {name: pace(0.05, 6, replicas=3) for name in ("t-r0", "t-r1", SLOW)}
    tried = measure(job, together)
    assert tried is not None and tried.own_s == 0.05
    assert measure(story.job("t-r0"), together) is None


def test_only_a_slow_replica_can_be_left_out() -> None:
    with pytest.raises(PolicyProblem, match="only a replica of a torchft job can be left out"):
        policy_from({"rules": {"compute-slow": {"likely": "leave-out"}}})
    assert policy_from({"rules": RULES, "take_back_s": 5}).take_back_s == 5
