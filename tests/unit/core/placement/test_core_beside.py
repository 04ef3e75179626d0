"""Replicas of a torchft job run on one node, because they share its lighthouse."""

from __future__ import annotations

from core_story import KILLED, Story

from torchloom.model.events import NodeGone, NodeUnreachable
from torchloom.model.fleet import JobState
from torchloom.model.quorum import ReplicaSeat


def seat(index: int, of: str = "ft") -> ReplicaSeat:
    return ReplicaSeat(set=of, index=index, size=3)


def node(story: Story, job: str) -> str:
    (found,) = {worker.node for worker in story.job(job).workers}
    return found


def test_replicas_go_where_the_first_one_is_and_others_to_the_emptiest_node() -> None:
    story = Story(a=4, b=6)
    story.run("r0", workers=2, replica=seat(0))
    first = node(story, "r0")
    assert first == "b", "the emptiest"
    story.run("r1", workers=2, replica=seat(1))
    assert node(story, "r1") == "b", "not a, which is emptier now"
    story.run("other", workers=2, replica=seat(0, of="another"))
    assert node(story, "other") == "a"
    story.submit("r2", workers=3, replica=seat(2))
    assert story.state("r2") is JobState.WAITING
    assert "the other replicas run on b, where their lighthouse is" in story.job("r2").reason


def test_after_the_loss_of_their_node_they_move_together() -> None:
    story = Story(a=4, b=6)
    for index in range(2):
        story.run(f"r{index}", workers=2, replica=seat(index))
    story.tell(NodeUnreachable(node="b", silent_s=3.5))
    story.tell(NodeGone(node="b", by="ann", steps={}))
    for index in range(2):
        story.end_rest(KILLED, job=f"r{index}")
    while story.fleet.timers:
        story.fire()
    assert {node(story, f"r{index}") for index in range(2)} == {"a"}
