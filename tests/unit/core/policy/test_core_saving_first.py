"""Before a policy moves or restarts a job that trains, the job is saved; what hangs or went wrong is not."""

from __future__ import annotations

import pytest
from core_story import FAILED, Story
from finding_story import hang, made
from policy_story import answer, bring_to_act, eager, nan, save_first, saved, slow, stepping

from torchloom.core.policy.actions import SAVE_S
from torchloom.model.events import (
    ChangeCancelled,
    CheckpointFailed,
    FindingEnded,
    NodeDrained,
    StopRequested,
)
from torchloom.model.fleet import JobState
from torchloom.model.incidents import Incident
from torchloom.model.policy import Action, Policy
from torchloom.model.steering import OperationRecord
from torchloom.model.transaction.messages import Kind, Said

NODES = {"a": 1, "b": 1, "c": 1}
NOTHING_NEW = StopRequested(job="nobody", by="ann")


def decided(action: Action = "evict", **more: object) -> Story:
    """A policy has chosen to act on slowness, and nothing is saved yet."""
    story = stepping(eager(action), nodes=NODES, **more)
    slow(story)
    story.now_ns += 10 * 10**9
    saved(story)
    slow(story)
    assert story.state() is JobState.RUNNING
    return story


def take(story: Story) -> None:
    """The ranks hold the state of step 60; it is not stored yet."""
    for said in (Said.PREPARED, Said.ARMED):
        answer(story, said)
    answer(story, Said.APPLIED, offset=61 - story.job().control.at_step)


def failed(story: Story) -> CheckpointFailed:
    return CheckpointFailed(node="a", ref=story.ref(0), step=60, why="the disk is full")


def operation(story: Story) -> OperationRecord:
    (record,) = story.job().operations.values()
    return record


def only(story: Story) -> Incident:
    (incident,) = story.fleet.incidents.values()
    return incident


@pytest.mark.parametrize("action", ["evict", "drain", "restart"])
def test_a_slow_job_is_saved_and_goes_on_from_there(action: Action) -> None:
    story = decided(action)
    record = operation(story)
    assert (record.kind, record.by, record.why) == (Kind.CHECKPOINT, "policy", "rank 1 is slow")
    assert "as soon as it is saved" in story.incident().decision
    save_first(story)
    assert story.state() is (JobState.RECOVERING if action == "restart" else JobState.STOPPING)
    assert "saved first, step-60.g1" in only(story).decision
    story.end_rest()
    moved = [w.node for w in story.job().workers] == ["a", "c"]
    assert moved == (action != "restart") and story.job().generation == 2
    assert story.job().acting is None and not story.fleet.acting
    story.check_replay()


def test_it_is_not_decided_again_while_it_is_being_saved() -> None:
    story = decided()
    waits = story.incident().decision
    slow(story, after_s=60)
    slow(story, after_s=60)
    assert story.incident().decision == waits and len(story.job().acts) == 1
    other = hang(kind="data-slow", ranks=(0,), node="a", sentence="rank 0 is slow", confidence=0.9)
    story.tell(made(other))
    assert len(story.job().operations) == 1 and story.state() is JobState.RUNNING


def test_a_save_that_does_not_come_holds_nothing_up() -> None:
    story = decided()
    take(story)
    story.tell(NOTHING_NEW, after_s=SAVE_S - 1)
    assert story.state() is JobState.RUNNING
    story.fire()
    assert story.state() is JobState.STOPPING
    assert "it could not be saved first: not within 300 s" in only(story).decision
    story.check_replay()


def test_a_save_that_fails_is_not_waited_for() -> None:
    story = decided()
    take(story)
    story.tell(failed(story))
    assert story.state() is JobState.STOPPING
    assert "it could not be saved first: rank 0 could not save step 60" in story.job().reason


def test_what_the_ranks_refuse_to_save_is_moved_without() -> None:
    story = decided()
    answer(story, Said.REFUSED, why="the script has no loom.Checkpoint")
    assert story.state() is JobState.STOPPING and "no loom.Checkpoint" in story.job().reason


def test_what_is_over_before_the_save_is_left_where_it_is() -> None:
    story = decided("drain")
    assert story.fleet.nodes["b"].drained
    (name,) = story.job().findings
    story.tell(FindingEnded(job="j", generation=1, key=name, lasted_s=70.0))
    assert story.job().acting is None and not story.job().avoid and not story.fleet.nodes["b"].drained
    assert only(story).decision == "not moved away, and the node drained: it was over before"
    saved(story, 60)
    assert story.state() is JobState.RUNNING
    story.check_replay()


def test_a_person_can_prevent_it() -> None:
    story = decided()
    story.tell(ChangeCancelled(job="j", operation=operation(story).id, by="ann"))
    assert story.state() is JobState.RUNNING and not story.job().avoid
    assert only(story).decision == "not moved away: somebody cancelled its checkpoint"


def test_room_that_is_gone_meanwhile_keeps_it_where_it_is() -> None:
    story = decided()
    story.tell(NodeDrained(node="c", by="ann"))
    assert story.state() is JobState.RUNNING and "may not shrink" in only(story).decision


def test_a_crash_meanwhile_is_recovered_from_elsewhere() -> None:
    story = decided()
    story.exit(0, FAILED, steps=70)
    assert story.state() is JobState.RECOVERING and not story.fleet.acting
    story.end_rest()
    assert [w.node for w in story.job().workers] == ["a", "c"]
    story.check_replay()


def test_a_hang_meanwhile_is_not_waited_with() -> None:
    story = decided()
    story.tell(made(hang(node="b", certain=True, may_act=True, certainty="stopped")), after_s=40)
    assert story.state() is JobState.RECOVERING and not story.fleet.acting
    story.check_replay()


def test_nobody_waits_for_a_job_whose_saves_fail() -> None:
    story = stepping(eager("evict"), nodes=NODES)
    slow(story)
    story.now_ns += 10 * 10**9
    saved(story)
    story.tell(failed(story))
    slow(story)
    assert story.state() is JobState.STOPPING
    assert all(record.kind is not Kind.CHECKPOINT for record in story.job().operations.values())


def test_what_went_wrong_is_not_saved() -> None:
    rules: dict[str, dict[str, Action]] = {"not-a-number": {"certain": "evict"}}
    story = stepping(Policy(rules=rules, restart_cost_s=0.0), nodes=NODES)
    saved(story)
    finding = nan()
    story.tell(made(hang(kind=finding.kind, ranks=(1,), node="b", certain=True, certainty="x")))
    assert story.state() is JobState.STOPPING
    assert all(record.kind is not Kind.CHECKPOINT for record in story.job().operations.values())


def test_the_whole_way_is_replayed_alike() -> None:
    story = stepping(eager("evict"), nodes=NODES)
    bring_to_act(story)
    story.end_rest()
    story.bring_up()
    assert story.state() is JobState.RUNNING and story.job().restarts == 0
    story.check_replay()
