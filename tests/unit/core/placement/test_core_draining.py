"""Jobs leave a drained node: saved, at a boundary, for nothing; who cannot go stays and trains on."""

from __future__ import annotations

import pytest
from core_story import FAILED, S, Story, lost_peer
from policy_story import answer, saved, stepping

from torchloom.core.placement.drain import TRIES
from torchloom.model.checkpoints import SavedCheckpoint
from torchloom.model.effects import PostMail
from torchloom.model.events import (
    ChangeCancelled,
    ChangeRequested,
    CheckpointFailed,
    CheckpointSaved,
    NodeDrained,
    NodeLeaving,
    NodeLeft,
)
from torchloom.model.fleet import JobState, Leaving
from torchloom.model.policy import Policy
from torchloom.model.transaction.messages import Kind, Said


def training(*nodes: str, **more: object) -> Story:
    """Ranks 0 and 1 on a and b, with steps and a checkpoint; every node holds one worker."""
    story = stepping(Policy(), nodes=dict.fromkeys(("a", "b", *nodes), 1), **more)
    saved(story)
    return story


def drain(story: Story, node: str = "b", *, keep: bool = False, force: bool = False) -> None:
    story.tell(NodeDrained(node=node, by="ann", why="fan broken", move=not keep, force=force))


def leaving(story: Story) -> Leaving:
    found = story.job().leaving
    assert found is not None
    return found


def take(story: Story, step: int = 60) -> None:
    """The ranks hold the state of that step; it is not written yet."""
    for said in (Said.PREPARED, Said.ARMED):
        answer(story, said)
    assert story.state() is JobState.RUNNING
    story.now_ns += S
    answer(story, Said.APPLIED, offset=step + 1 - story.job().control.at_step)


def commit(story: Story, step: int = 60) -> None:
    state = SavedCheckpoint(name=f"step-{step}.g1", step=step, at_ns=story.now_ns)
    story.tell(CheckpointSaved(node="a", ref=story.ref(0), saved=state))


def test_a_job_is_saved_ended_at_a_boundary_and_goes_on_elsewhere_for_nothing() -> None:
    story = training("c")
    drain(story)
    (record,) = story.job().operations.values()
    assert (record.kind, record.by, record.why) == (Kind.CHECKPOINT, "ann", "ann drains b: fan broken")
    assert story.open(PostMail) and story.state() is JobState.RUNNING  # type: ignore[type-var]
    take(story)
    assert leaving(story).note == "the state of step 60 is being written", "not before it is committed"
    commit(story)
    assert story.state() is JobState.STOPPING and story.job().reason == "ann drains b: fan broken"
    (_, stop) = story.job().operations.values()
    assert stop.kind is Kind.STOP, "the ranks agree on the step"
    story.end_rest()
    assert [w.node for w in story.job().workers] == ["a", "c"] and story.job().generation == 2
    story.bring_up()
    assert story.state() is JobState.RUNNING and story.job().leaving is None and not story.fleet.leaving
    assert not story.job().restarts and not story.job().incidents
    story.check_replay()


def test_only_placing_is_stopped_where_that_is_wanted() -> None:
    story = training("c")
    drain(story, keep=True)
    assert not story.job().operations and story.job().leaving is None
    drain(story)
    take(story)
    drain(story, keep=True)
    commit(story)
    assert story.state() is JobState.RUNNING and not story.fleet.leaving, "somebody thought better of it"


def test_a_second_node_that_is_drained_neither_stops_nor_repeats_what_is_under_way() -> None:
    story = training("c", "d")
    drain(story)
    take(story)
    drain(story, "a", keep=True)
    assert leaving(story).node == "b" and len(story.job().operations) == 1
    drain(story, "a")
    commit(story)
    assert story.state() is JobState.STOPPING
    story.end_rest()
    assert [w.node for w in story.job().workers] == ["c", "d"]
    story.check_replay()


def test_without_room_elsewhere_it_trains_on_and_goes_when_there_is_room() -> None:
    story = training()
    drain(story)
    assert leaving(story).stays and "room for 1 of its 2 workers" in leaving(story).note
    assert story.state() is JobState.RUNNING and not story.job().operations
    story.join("c", 1)
    assert not leaving(story).stays
    take(story)
    commit(story)
    assert story.state() is JobState.STOPPING


def test_it_shrinks_if_it_may() -> None:
    story = training(min_workers=1)
    drain(story)
    take(story)
    commit(story)
    story.end_rest()
    story.fire()
    assert [w.node for w in story.job().workers] == ["a"]


def test_what_cannot_be_saved_stays_unless_it_is_forced() -> None:
    story = stepping(Policy(), nodes={"a": 1, "b": 1, "c": 1})
    drain(story)
    assert leaving(story).stays and "no checkpoints, so it would start over" in leaving(story).note
    assert story.state() is JobState.RUNNING
    drain(story, force=True)
    assert story.state() is JobState.STOPPING
    story.end_rest()
    assert [w.node for w in story.job().workers] == ["a", "c"]


def test_what_was_saved_before_the_room_went_is_too_old_when_there_is_room_again() -> None:
    story = training("c")
    drain(story)
    take(story)
    story.submit("k", workers=1)  # it takes the place on c
    assert leaving(story).stays and "room for 1 of its 2 workers" in leaving(story).note
    commit(story)
    assert story.state() is JobState.RUNNING
    story.join("d", 1)
    assert story.state() is JobState.RUNNING, "an hour of steps may have been made since"
    assert leaving(story).note == "it is being saved first"
    take(story, 90)
    commit(story, 90)
    assert story.state() is JobState.STOPPING
    story.check_replay()


def test_a_save_that_fails_keeps_the_job_where_it_is() -> None:
    story = training("c")
    drain(story)
    take(story)
    story.tell(CheckpointFailed(node="a", ref=story.ref(0), step=60, why="the disk is full"))
    assert (
        leaving(story).stays
        and "could not be saved: rank 0 could not save step 60: the disk is full (incident j.1)"
        in leaving(story).note
    )
    assert story.state() is JobState.RUNNING
    story.tell(ChangeRequested(job="j", operation="x", kind=Kind.PAUSE, by="bob"))
    assert len(story.job().operations) == 2, "it is not tried again at once"
    story.check_replay()


def fail_the_save(story: Story) -> None:
    step = 60 + 10 * leaving(story).tries
    take(story, step)
    story.tell(CheckpointFailed(node="a", ref=story.ref(0), step=step, why="the disk is full"))


def test_a_save_that_failed_is_tried_again_after_a_while_and_then_it_goes() -> None:
    story = training("c")
    drain(story)
    fail_the_save(story)
    assert leaving(story).note.endswith("(incident j.1); it is tried again after 1 min")
    failed_ns = story.now_ns
    story.fire()
    assert story.now_ns >= failed_ns + 60 * S
    assert not leaving(story).stays and leaving(story).note == "it is being saved first"
    take(story, 70)
    commit(story, 70)
    assert story.state() is JobState.STOPPING and not story.fleet.timers.get("save-again/j/1")
    story.check_replay()


def test_it_is_tried_a_few_times_and_again_when_somebody_drains_again() -> None:
    story = training("c")
    drain(story)
    for _ in range(TRIES - 1):
        fail_the_save(story)
        story.fire()
    fail_the_save(story)
    assert leaving(story).tries == TRIES and "drain the node again to retry" in leaving(story).note
    assert not story.fleet.timers and story.state() is JobState.RUNNING
    drain(story)
    assert leaving(story).note == "it is being saved first"
    story.check_replay()


def test_an_operation_that_is_not_applied_keeps_it_too() -> None:
    story = training("c")
    drain(story)
    (name,) = story.job().operations
    story.tell(ChangeCancelled(job="j", operation=name, by="bob"))
    assert leaving(story).stays and "could not be saved: cancelled by bob" in leaving(story).note
    assert "save-again/j/1" not in story.fleet.timers, "a person did not want it"


def test_a_node_that_is_opened_again_keeps_its_job() -> None:
    story = training("c")
    drain(story)
    take(story)
    story.tell(NodeDrained(node="b", by="ann", open=True))
    commit(story)
    assert story.state() is JobState.RUNNING and story.job().leaving is None and not story.fleet.leaving


def test_a_crash_meanwhile_moves_it_by_itself() -> None:
    story = training("c")
    drain(story)
    story.exit(0, FAILED, end=lost_peer(), steps=60)
    assert story.state() is JobState.RECOVERING and leaving(story).note == "it is recovering"
    story.end_rest()
    assert [w.node for w in story.job().workers] == ["a", "c"] and story.job().leaving is None


@pytest.mark.parametrize("state", ["waiting", "stopped"])
def test_what_does_not_run_there_is_not_touched(state: str) -> None:
    story = training("c")
    story.stop()
    story.end_rest()
    if state == "waiting":
        story.submit("k", workers=4)
    drain(story)
    assert not story.fleet.leaving


def test_a_job_that_waits_is_told_which_nodes_are_drained() -> None:
    story = Story(a=1, b=1)
    drain(story)
    story.submit(workers=1, nodes=2)
    assert "1 of 2 connected nodes has it (b is drained)" in story.job().reason


def leave(story: Story, node: str = "b") -> None:
    story.tell(NodeLeaving(node=node, within_s=60.0, why="the pod is evicted"))


def test_a_job_leaves_a_host_that_is_taken_away_and_waits_for_room() -> None:
    story = training()
    leave(story)
    assert not leaving(story).stays, "a drained node would keep it, because there is no room elsewhere"
    take(story)
    assert story.state() is JobState.RUNNING
    commit(story)
    assert story.state() is JobState.STOPPING
    assert story.job().reason == "b is leaving: the pod is evicted"
    story.end_rest()
    assert story.state() is JobState.WAITING and not story.job().restarts and not story.job().incidents
    story.tell(NodeLeft(node="b"))
    assert story.state() is JobState.WAITING
    story.join("c", 1)
    story.bring_up()
    assert [w.node for w in story.job().workers] == ["a", "c"] and story.state() is JobState.RUNNING
    story.check_replay()


@pytest.mark.parametrize("cordoned", [True, False])
def test_nobody_can_open_a_node_whose_host_is_being_taken_away(cordoned: bool) -> None:
    """`kubectl drain` and soon after it `kubectl uncordon`, while the evicted pod still saves."""
    story = training()
    if cordoned:
        drain(story, keep=True)
    leave(story)
    take(story)
    story.tell(NodeDrained(node="b", by="controller", open=True))
    commit(story)
    assert story.state() is JobState.STOPPING, "it leaves all the same"
    story.end_rest()
    assert story.state() is JobState.WAITING, "and does not start again on a host that ends"
    story.tell(NodeLeft(node="b"))
    story.join("c", 1)
    story.bring_up()
    assert [w.node for w in story.job().workers] == ["a", "c"] and not story.job().restarts
    story.check_replay()


@pytest.mark.parametrize("keep", [True, False])
def test_a_drain_does_not_hold_back_a_job_that_leaves_a_host(keep: bool) -> None:
    story = training()
    leave(story)
    take(story)
    drain(story, keep=keep)
    commit(story)
    assert story.state() is JobState.STOPPING
    story.end_rest()
    story.join("b", 1, session="another")
    assert story.state() is JobState.WAITING, "the drain outlasts the host's shutdown"
    story.tell(NodeDrained(node="b", by="ann", open=True))
    story.bring_up()
    assert [w.node for w in story.job().workers] == ["a", "b"]
    story.check_replay()


def test_a_host_that_returns_under_its_name_takes_workers_again() -> None:
    story = training()
    leave(story)
    take(story)
    commit(story)
    story.end_rest()
    story.tell(NodeLeft(node="b"))
    story.join("b", 1, session="another")
    story.bring_up()
    assert [w.node for w in story.job().workers] == ["a", "b"] and story.fleet.nodes["b"].drained is None
    story.check_replay()


def test_what_a_person_drained_stays_drained_when_the_host_returns() -> None:
    story = training()
    drain(story, keep=True)
    leave(story)
    story.tell(NodeLeft(node="b"))
    story.join("b", 1, session="another")
    assert story.fleet.nodes["b"].drained is not None


def test_a_job_that_cannot_be_saved_leaves_such_a_host_at_once() -> None:
    story = stepping(Policy(), nodes={"a": 1, "b": 1, "c": 1})
    leave(story)
    assert story.state() is JobState.STOPPING
    story.end_rest()
    assert [w.node for w in story.job().workers] == ["a", "c"]
    story.check_replay()
