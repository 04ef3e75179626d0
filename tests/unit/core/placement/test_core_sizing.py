"""A job that may be smaller starts with what there is room for; one that may not waits, and says why."""

from __future__ import annotations

from core_story import KILLED, S, Story, kinds

from torchloom.core.placement.place import SHRINK_WAIT_S
from torchloom.model.effects import StartRendezvous, StartWorkers
from torchloom.model.events import NodeGone, NodeReachable, NodeUnreachable
from torchloom.model.fleet import JobState


def lose(story: Story, node: str = "b") -> None:
    """The host is gone, and whoever is left dies of it."""
    story.tell(NodeUnreachable(node=node, silent_s=3.5))
    story.tell(NodeGone(node=node, by="ann", steps={"j": 50}))
    story.end_rest(KILLED)


def elastic(**more: object) -> Story:
    """Two workers on each of two nodes, at least `min_workers` of them."""
    story = Story(a=2, b=2)
    story.run(workers=2, nodes=2, **more)
    return story


def test_a_job_that_may_not_shrink_waits_and_takes_a_node_that_returns() -> None:
    story = elastic()
    lose(story)
    assert story.state() is JobState.WAITING and "needs 2 nodes with room for 2" in story.job().reason
    assert not story.fleet.timers, "it waits for as long as it takes"
    story.join("b", 2, boot="boot-2")
    assert story.state() is JobState.WAITING and "still being ended on b" in story.job().reason
    story.done(*[e for e in story.fleet.outbox.values() if e.node == "b"])
    assert story.state() is JobState.STARTING and len(story.job().workers) == 4


def test_after_a_short_wait_it_starts_with_as_many_as_there_is_room_for() -> None:
    story = elastic(min_workers=1)
    lose(story)
    assert story.state() is JobState.WAITING
    assert "it starts with 2 of 4 workers unless more room appears within 5 s" in story.job().reason
    story.fire()
    assert story.state() is JobState.STARTING
    assert story.open(StartRendezvous)[-1].host == "a.example", "its ranks may be spread over several nodes"
    assert "with 2 of 4 workers, because no more room appeared within 5 s" in story.job().reason
    story.store_up()
    (start,) = story.open(StartWorkers)
    assert (start.world_size, start.local_world_size, start.group_world_size) == (2, 2, 1)
    story.started()
    assert story.state() is JobState.RUNNING and story.job().reason.endswith("2 workers run, 4 are wanted")
    story.check_replay()


def test_a_node_that_returns_within_the_wait_is_used() -> None:
    story = elastic(min_workers=1)
    lose(story)
    story.join("c", 2)
    assert story.state() is JobState.STARTING and len(story.job().workers) == 4
    assert [w.node for w in story.job().workers] == ["a", "a", "c", "c"] and not story.fleet.timers


def test_room_that_comes_later_disturbs_nobody_and_is_used_at_the_next_start() -> None:
    story = elastic(min_workers=1)
    lose(story)
    story.fire()
    story.bring_up()
    assert story.join("c", 8) == [] and len(story.job().workers) == 2, "a healthy job is left alone"
    story.exit(0, steps=50)
    story.end_rest()
    assert len(story.job().workers) == 4 and story.state() is JobState.STARTING


def test_a_job_that_is_small_already_does_not_wait_again() -> None:
    story = elastic(min_workers=1)
    lose(story)
    story.fire()
    story.bring_up()
    story.exit(0, steps=50)
    story.end_rest()
    assert story.state() is JobState.STARTING and len(story.job().workers) == 2, "it lost nothing by starting"


def test_less_than_the_smallest_world_waits_and_says_so() -> None:
    story = elastic(min_workers=3)
    lose(story)
    assert story.state() is JobState.WAITING and not story.fleet.timers
    assert "at least 3 workers are needed and there is room for 2" in story.job().reason
    story.join("c", 1)
    story.now_ns += int(60 * S)
    assert "3 of 4 workers unless" in story.job().reason, "more nodes may follow the first one"
    story.fire()
    assert [w.node for w in story.job().workers] == ["a", "a", "c"]
    assert [w.local_rank for w in story.job().workers] == [0, 1, 0]
    story.check_replay()


def test_the_wait_is_not_begun_anew_by_other_events() -> None:
    story = elastic(min_workers=1)
    lose(story)
    due = [t.at_ns for t in story.fleet.timers.values()]
    for _ in range(3):
        story.tell(NodeUnreachable(node="a", silent_s=3.1))
        story.tell(NodeReachable(node="a"))
    assert [t.at_ns for t in story.fleet.timers.values()] == due
    assert due == [story.job().short_since_ns + int(SHRINK_WAIT_S * S)]


def test_whole_replicas_only() -> None:
    story = Story(a=2, b=2, c=1)
    story.run(workers=2, nodes=2, replicas=2, min_workers=2)
    lose(story)
    assert "with 2 of 4 workers" in story.job().reason, "the third slot is no replica"
    story.fire()
    story.store_up()
    (start,) = story.open(StartWorkers)
    assert start.replicas == 1 and start.world_size == 2
    assert [w.replica for w in story.job().workers] == [0, 0]


def test_a_first_start_waits_a_little_too() -> None:
    story = Story(a=2)
    assert kinds(story.submit(workers=2, nodes=2, min_workers=2)) == []
    assert story.state() is JobState.WAITING and "2 of 4 workers unless" in story.job().reason
    story.fire()
    assert story.state() is JobState.STARTING and len(story.job().workers) == 2


def test_a_wait_that_is_stopped_leaves_nothing() -> None:
    story = Story(a=2)
    story.submit(workers=2, nodes=2, min_workers=2)
    story.stop()
    assert story.state() is JobState.STOPPED and not story.fleet.timers
