"""Spare places are kept free for their job, used when a node is lost, and made anew when one returns."""

from __future__ import annotations

from core_story import KILLED, Story, kinds

from torchloom.model.effects import StartWorkers, WarmSpawner
from torchloom.model.events import JobDeleted, NodeGone, NodeReachable, NodeUnreachable
from torchloom.model.fleet import JobState


def lose(story: Story, node: str) -> None:
    story.tell(NodeUnreachable(node=node, silent_s=3.5))
    story.tell(NodeGone(node=node, by="ann", steps={"j": 50}))
    story.end_rest(KILLED)


def kept(story: Story) -> dict[str, dict[str, int]]:
    return {node.id: node.spare for node in story.fleet.nodes.values() if node.spare}


def test_spare_places_are_on_other_nodes_and_warm() -> None:
    story = Story(a=2, b=2, c=2, d=4)
    story.run(workers=2, nodes=2, standby=1, preload=("numpy",))
    assert [w.node for w in story.job().workers] == ["d", "d", "a", "a"]
    assert story.job().spares == ["b"] and kept(story) == {"b": {"j": 2}}
    (warm,) = story.open(WarmSpawner)
    assert (warm.node, warm.job, warm.preload) == ("b", "j", ("numpy",))
    story.done(warm)
    assert not story.fleet.outbox


def test_nobody_else_is_placed_there() -> None:
    story = Story(a=2, b=2)
    story.run(workers=2, standby=1)
    story.submit("other", workers=1)
    assert story.state("other") is JobState.WAITING, "b is kept for j"
    story.join("c", 1)
    assert story.state("other") is JobState.STARTING and story.job("other").workers[0].node == "c"


def test_a_lost_node_is_replaced_by_the_spare_and_who_stays_keeps_its_ranks() -> None:
    story = Story(a=2, b=2, c=2, d=2)
    story.run(workers=2, nodes=3, standby=1)
    assert [w.node for w in story.job().workers] == ["a", "a", "b", "b", "c", "c"]
    lose(story, "b")
    assert story.job().generation == 2
    assert [w.node for w in story.job().workers] == ["a", "a", "d", "d", "c", "c"]
    assert story.job().spares == [] and not kept(story), "there is no further node"
    story.bring_up()
    assert [s.group_rank for s in story.open(StartWorkers)] == [] and story.state() is JobState.RUNNING
    story.join("b", 2, boot="boot-2")
    assert story.job().spares == ["b"], "a node that returns becomes a spare again"
    story.check_replay()


def test_who_waited_longer_without_a_spare_does_not_keep_its_owner_waiting() -> None:
    story = Story(a=2, b=2, c=2)
    story.run(workers=2, nodes=2, standby=1)
    assert story.job().spares == ["c"]
    story.submit("other", workers=2, nodes=2)
    story.tell(NodeUnreachable(node="b", silent_s=3.5))
    lose(story, "a")
    story.tell(NodeGone(node="b", by="ann", steps={"j": 50}))
    story.end_rest(KILLED)
    while story.fleet.timers:
        story.fire()
    assert story.state() is JobState.WAITING and story.job().spares == ["c"]
    story.join("d", 2)
    assert story.state("other") is JobState.WAITING, "c is kept for j"
    assert story.state() is JobState.STARTING, "on d and on its own c"


def test_a_spare_that_cannot_be_heard_is_replaced_by_another() -> None:
    story = Story(a=2, b=2, c=2)
    story.run(workers=2, standby=1)
    assert story.job().spares == ["b"]
    story.tell(NodeUnreachable(node="b", silent_s=3.5))
    assert story.job().spares == ["c"] and not story.fleet.incidents
    story.tell(NodeReachable(node="b"))
    assert story.job().spares == ["c"], "no change for its own sake"


def test_what_nobody_can_give_is_not_promised() -> None:
    story = Story(a=4)
    story.run(workers=2, standby=2)
    assert story.job().spares == [], "its own node would be lost with it"
    story.join("b", 1)
    assert story.job().spares == [], "too small for a share"
    assert kinds(story.join("c", 2)) == ["WarmSpawner"] and story.job().spares == ["c"]


def test_a_cold_job_needs_no_spawner() -> None:
    story = Story(a=2, b=2)
    story.run(workers=2, standby=1, spawn="cold")
    assert story.job().spares == ["b"] and not story.open(WarmSpawner)


def test_the_end_of_the_job_gives_its_spare_places_to_who_waits() -> None:
    story = Story(a=2, b=2)
    story.run(workers=2, standby=1)
    story.submit("other", workers=2)
    assert story.state("other") is JobState.WAITING
    story.stop(kill=True)
    story.end_rest()
    assert story.state() is JobState.STOPPED and story.state("other") is JobState.STARTING
    assert not kept(story)
    story.tell(JobDeleted(job="j", by="ann"))
    assert not story.fleet.standby
    story.check_replay()


def test_two_jobs_do_not_share_a_spare() -> None:
    story = Story(a=2, b=2, c=2)
    story.run("j", workers=2, standby=1)
    story.run("k", workers=2, standby=1)
    assert (story.job("j").spares, story.job("k").spares) == (["b"], []) and kept(story) == {"b": {"j": 2}}
    story.join("d", 2)
    assert story.job("k").spares == ["d"]
