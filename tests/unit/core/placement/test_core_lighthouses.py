"""Replicas of a torchft job are spread over nodes, and their lighthouse is on one of them."""

from __future__ import annotations

from core_story import KILLED, Story
from msgspec.structs import replace

from torchloom.model.effects import MoveLighthouse, StartRendezvous, StopRendezvous
from torchloom.model.events import EffectDone, NodeDrained, NodeGone, NodeReachable, NodeUnreachable
from torchloom.model.fleet import JobState
from torchloom.model.quorum import ReplicaSeat


def seat(index: int, of: str = "ft") -> ReplicaSeat:
    return ReplicaSeat(set=of, index=index, size=3)


def node(story: Story, job: str) -> str:
    (found,) = {worker.node for worker in story.job(job).workers}
    return found


def running(story: Story, replicas: int, workers: int = 2) -> list[str]:
    """The nodes of replicas that run."""
    for index in range(replicas):
        story.run(f"r{index}", workers=workers, replica=seat(index))
    return [node(story, f"r{index}") for index in range(replicas)]


def moves(story: Story) -> list[MoveLighthouse]:
    return [e for e in story.fleet.outbox.values() if isinstance(e, MoveLighthouse)]


def lose(story: Story, name: str) -> None:
    story.tell(NodeUnreachable(node=name, silent_s=3.5))
    story.tell(NodeGone(node=name, by="ann", steps={}))


def test_replicas_are_spread_over_nodes_while_there_is_room() -> None:
    story = Story(a=4, b=6, c=2)
    assert sorted(running(story, 3)) == ["a", "b", "c"]
    story.run("r3", workers=2, replica=seat(3))
    assert node(story, "r3") == "b", "as few others as on a, and emptier"
    story.submit("r4", workers=3, replica=seat(4))
    assert story.state("r4") is JobState.WAITING


def test_a_lost_replica_is_replaced_where_none_is_and_its_door_is_closed_at_once() -> None:
    story = Story(a=4, b=4, c=4)
    places = running(story, 2)
    home, other = places
    assert story.fleet.lighthouses["ft"].node == home
    lose(story, other)
    closed = [e for e in story.fleet.outbox.values() if isinstance(e, StopRendezvous) and e.door_of == "ft"]
    assert {(e.node, e.store.job, e.store.generation) for e in closed} == {(home, "r1", 1)}
    assert not moves(story), "the lighthouse was not there"
    story.end_rest(KILLED, job="r1")
    while story.fleet.timers:
        story.fire()
    assert node(story, "r1") not in places
    (asked,) = [e for e in story.fleet.outbox.values() if isinstance(e, StartRendezvous)]
    assert asked.lighthouse is not None and (asked.lighthouse.node, asked.lighthouse.term) == (home, 1)


def test_an_unreachable_lighthouse_stays_and_a_lost_one_moves_and_waits_for_all_records() -> None:
    story = Story(a=4, b=4, c=4)
    home, *others = running(story, 3)
    story.tell(NodeUnreachable(node=home, silent_s=60.0))
    assert not moves(story) and story.fleet.lighthouses["ft"].node == home, "unreachable is not dead"
    story.tell(NodeGone(node=home, by="ann", steps={}))
    asked = moves(story)
    new = story.fleet.lighthouses["ft"].node
    (waits_for,) = [one for one in others if one != new]
    assert sorted(e.node for e in asked) == sorted(others), "both learn it"
    assert {(e.lighthouse.node, e.lighthouse.term, e.lighthouse.awaited) for e in asked} == {
        (new, 2, (waits_for,))
    }
    lose(story, waits_for)
    (again,) = moves(story)
    assert (again.node, again.lighthouse.term, again.lighthouse.awaited) == (new, 3, ()), "it waits in vain"
    story.tell(EffectDone(node=new, effect=again.id))
    story.tell(NodeReachable(node=home))
    (told,) = moves(story)
    assert (told.node, told.lighthouse.node) == (home, new), "it was wrongly given up, and is no lighthouse"


def test_a_drained_node_gives_the_lighthouse_up_when_its_last_replica_has_left() -> None:
    story = Story(a=2, b=2, c=2)
    home, other = running(story, 2)
    story.tell(NodeDrained(node=home, by="ann", why="repair", open=False))
    assert story.fleet.lighthouses["ft"].node == home
    story.end_rest(KILLED, job="r0")
    while story.fleet.timers:
        story.fire()
    assert story.fleet.lighthouses["ft"].node == other
    assert {(e.node, e.lighthouse.awaited) for e in moves(story)} == {(other, ()), (home, ())}


def test_it_ends_with_the_last_replica() -> None:
    story = Story(a=4, b=4)
    home, _ = running(story, 2)
    for job in ("r0", "r1"):
        assert not moves(story)
        story.stop(job)
        story.end_rest(KILLED, job=job)
    (told,) = moves(story)
    assert (told.node, told.lighthouse.node, told.lighthouse.term) == (home, "", 2)


def test_an_agent_that_cannot_relay_gets_no_replica_beside_others_elsewhere() -> None:
    story = Story(a=4, b=4)
    story.fleet.nodes["b"].inventory = replace(story.fleet.nodes["b"].inventory, agents_port=0)
    story.run("r0", workers=2, replica=seat(0))
    assert node(story, "r0") == "a"
    story.run("r1", workers=2, replica=seat(1))
    assert node(story, "r1") == "a", "b has room, and an agent of an earlier version"
    story.submit("r2", workers=2, replica=seat(2))
    assert story.state("r2") is JobState.WAITING
