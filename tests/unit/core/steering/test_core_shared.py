"""A change of a torchft job: one version for all replicas, one outcome, and a schedule for those who heal."""

from __future__ import annotations

from core_story import KILLED, OK, Story, spec

from torchloom.core.steering.operations import starting_schedule
from torchloom.model.effects import PostMail, ShareChange
from torchloom.model.events import (
    ChangeCancelled,
    ChangeRequested,
    ChangeShared,
    EffectFailed,
    JobSubmitted,
    NodeGone,
    NodeUnreachable,
)
from torchloom.model.quorum import ReplicaOutcome, ReplicaSeat
from torchloom.model.steering import OperationRecord, Origin
from torchloom.model.transaction.messages import Kind

JOBS = ("t-r0", "t-r1")
CHANGED = (("optimizer0.lr@0", 0.1, 0.2),)


def running() -> Story:
    story = Story(a=8)
    for index, job in enumerate(JOBS):
        seat = ReplicaSeat("t", index, 2)
        story.run(job, workers=1, replica=seat)
        story.first_step(0, job)
    return story


def ask(story: Story, job: str = "t-r0", operation: str = "o1") -> None:
    story.tell(ChangeRequested(job=job, operation=operation, kind=Kind.SET, values={"lr": 0.2}, by="ann"))


def share(story: Story) -> ShareChange:
    (found,) = [e for e in story.fleet.outbox.values() if isinstance(e, ShareChange)]
    return found


def ended(story: Story, outcome: ReplicaOutcome) -> None:
    effect = share(story)
    story.tell(ChangeShared(node="a", effect=effect.id, set="t", version=effect.version, outcome=outcome))


def records(story: Story, operation: str = "o1") -> list[OperationRecord]:
    return [story.job(job).operations[operation] for job in JOBS if operation in story.job(job).operations]


def test_a_change_of_one_replica_is_one_of_all_and_asks_the_lighthouse_only() -> None:
    story = running()
    story.job("t-r1").control.newest = 4  # a replica that was paused and resumed has used up versions
    ask(story)
    assert [r.version for r in records(story)] == [5, 5] and share(story).values == {"lr": 0.2}
    assert not [e for e in story.fleet.outbox.values() if isinstance(e, PostMail)]
    ended(story, ReplicaOutcome(step=41, reason="applied", changed=CHANGED))
    assert [(r.state, r.training_step, r.changed) for r in records(story)] == [("applied", 41, CHANGED)] * 2
    for job in JOBS:
        (entry,) = story.job(job).schedule
        assert (entry.version, entry.step, entry.before) == (5, 41, {"optimizer0.lr@0": 0.1})
    assert not [e for e in story.fleet.outbox.values() if isinstance(e, ShareChange)]


def test_a_replica_that_is_lost_meanwhile_begins_with_the_change() -> None:
    story = running()
    ask(story, "t-r1")
    story.exit(0, KILLED, job="t-r1")
    ended(story, ReplicaOutcome(step=7, reason="applied"))
    assert '"lr"' in starting_schedule(story.job("t-r1"))
    story.check_replay()


def test_a_change_that_was_refused_or_could_not_be_proposed_changes_no_replica() -> None:
    for failing in (False, True):
        story = running()
        ask(story)
        if failing:
            story.tell(EffectFailed(node="a", effect=share(story).id, why="no lighthouse"))
        else:
            ended(story, ReplicaOutcome(reason="rank 0 of t-r1: no"))
        assert [r.state for r in records(story)] == ["not applied"] * 2
        assert not story.job("t-r0").schedule and not story.job("t-r1").schedule
        story.check_replay()


def test_a_script_that_failed_at_it_is_named_in_all_replicas() -> None:
    story = running()
    ask(story)
    ended(story, ReplicaOutcome(step=3, reason="applied", trouble={"t-r1": {0: "ValueError: no"}}))
    assert [r.state for r in records(story)] == ["diverged"] * 2
    assert all("the script of t-r1 failed at it" in r.reason for r in records(story))
    assert [r.trouble for r in records(story)] == [{}, {0: "ValueError: no"}]


def test_a_cancelled_change_is_withdrawn_at_the_lighthouse() -> None:
    story = running()
    ask(story)
    story.tell(ChangeCancelled(job="t-r1", operation="o1", by="bob"))
    assert share(story).withdrawn == "cancelled by bob"
    ended(story, ReplicaOutcome(reason="cancelled by bob"))
    assert [r.reason for r in records(story)] == ["cancelled by bob"] * 2
    story.check_replay()


def test_without_a_running_replica_a_change_holds_from_the_start_on() -> None:
    story = Story()
    for index, job in enumerate(JOBS):
        seat = ReplicaSeat("t", index, 2)
        story.tell(JobSubmitted(job=job, spec=spec(workers=1, replica=seat), by="ann"))
    ask(story)
    assert [r.state for r in records(story)] == ["applied"] * 2
    assert all('"lr"' in starting_schedule(story.job(job)) for job in JOBS)


def test_a_change_that_ended_the_replicas_is_reported_as_applied() -> None:
    """As `max_steps` does: the exits may be known before the outcome."""
    story = running()
    ask(story)
    story.exit(0, OK, job="t-r0")
    story.exit(0, OK, job="t-r1")
    assert not any(r.ended for r in records(story))
    ended(story, ReplicaOutcome(step=9, reason="applied"))
    assert [r.state for r in records(story)] == ["applied"] * 2
    story.check_replay()


def test_an_operation_whose_node_is_gone_ends_with_its_replica() -> None:
    story = running()
    ask(story)
    story.tell(NodeUnreachable(node="a", silent_s=9.0))
    story.tell(NodeGone(node="a", by="ann"))
    for job in JOBS:
        story.stop(job)
    assert all(r.state == "not applied" and "the replica ended" in r.reason for r in records(story))
    story.check_replay()


def steer(story: Story, kind: Kind, operation: str, job: str = "t-r0") -> None:
    story.tell(ChangeRequested(job=job, operation=operation, kind=kind, values={}, by="ann"))


def test_a_pause_is_of_all_replicas_at_one_commit_and_so_is_the_end_of_it() -> None:
    story = running()
    steer(story, Kind.PAUSE, "p")
    assert share(story).kind == "pause" and not story.job("t-r0").paused
    ended(story, ReplicaOutcome(step=41, reason="applied"))
    assert [(r.state, r.training_step) for r in records(story, "p")] == [("applied", 41)] * 2
    assert all(story.job(job).paused for job in JOBS)
    assert not any(story.job(job).schedule for job in JOBS), "a pause is no setting"

    steer(story, Kind.PAUSE, "again")
    assert {r.reason for r in records(story, "again")} == {"it is paused already"}
    steer(story, Kind.CHECKPOINT, "c")
    assert {r.state for r in records(story, "c")} == {"not applied"}

    steer(story, Kind.RESUME, "r", job="t-r1")
    assert len(records(story, "r")) == 2, "whichever is named, all of them resume"
    mailed = {e.job for e in story.fleet.outbox.values() if isinstance(e, PostMail)}
    assert mailed == set(JOBS)


def test_all_replicas_save_the_state_of_one_commit() -> None:
    story = running()
    steer(story, Kind.CHECKPOINT, "c")
    assert share(story).kind == "checkpoint"
    ended(story, ReplicaOutcome(step=41, reason="applied"))
    assert [(r.state, r.training_step) for r in records(story, "c")] == [("applied", 42)] * 2, (
        "saved after 41"
    )


def test_what_a_drain_or_a_policy_wants_of_one_replica_is_its_own_affair() -> None:
    story = running()
    for origin in (Origin.DRAIN, Origin.POLICY):
        wanted = ChangeRequested(
            job="t-r0", operation=str(origin), kind=Kind.CHECKPOINT, values={}, by="it", origin=origin
        )
        story.tell(wanted)
        assert len(records(story, str(origin))) == 1
    assert not [e for e in story.fleet.outbox.values() if isinstance(e, ShareChange)]
