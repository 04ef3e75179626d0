"""Nodes join, fall silent, come back, reboot; only proof ends a worker."""

from __future__ import annotations

from core_story import FAILED, KILLED, NEVER_STARTED, OK, S, Story, kinds, only

from torchloom.core.detect.silence import heard_again, silent_nodes
from torchloom.model.effects import StartRendezvous, StartWorkers, StopRendezvous, StopWorkers
from torchloom.model.events import FirstStep, NodeLeft, NodeReachable, NodeUnreachable, WorkerExited
from torchloom.model.fleet import JobState, NodeState, WorkerState
from torchloom.model.node import RendezvousRef
from torchloom.model.worker import WorkerRef

STORE = RendezvousRef("j", 1)


def refs(story: Story) -> tuple[WorkerRef, ...]:
    return tuple(w.ref for w in story.job().workers)


def test_an_agent_that_comes_back_adopts_and_nothing_is_touched() -> None:
    story = Story(a=8)
    story.run()
    assert story.join("a", live=refs(story), stores=(STORE,)) == []
    assert story.state() is JobState.RUNNING and not story.fleet.incidents


def test_a_silent_node_changes_nothing_but_its_own_state() -> None:
    story = Story(a=8)
    story.run()
    assert story.tell(NodeUnreachable(node="a", silent_s=3.4)) == []
    assert story.state() is JobState.RUNNING
    assert all(w.state is WorkerState.RUNNING for w in story.job().workers)
    node = story.fleet.nodes["a"]
    assert node.state is NodeState.UNREACHABLE
    assert node.reason == "silent for 3.4 s; that may be the way to it, so its 2 workers are left alone"
    story.submit("later")
    assert story.state("later") is JobState.WAITING, "nothing new is sent to it"
    assert kinds(story.tell(NodeReachable(node="a"))) == ["StartRendezvous"]
    assert node.state is NodeState.READY and story.state("later") is JobState.STARTING
    story.check_replay()


def test_an_agent_that_was_stopped_leaves_its_workers_alone() -> None:
    story = Story(a=8)
    story.run()
    assert story.tell(NodeLeft(node="a")) == []
    assert story.fleet.nodes["a"].state is NodeState.LEFT and story.state() is JobState.RUNNING
    story.tell(NodeReachable(node="a"))
    assert story.fleet.nodes["a"].state is NodeState.LEFT, "only a join brings it back"


def test_events_about_unknown_nodes_are_ignored() -> None:
    story = Story()
    for event in (
        NodeUnreachable(node="x", silent_s=9),
        NodeReachable(node="x"),
        NodeLeft(node="x"),
    ):
        assert story.tell(event) == []
    assert not story.fleet.nodes


def test_a_worker_the_agent_does_not_know_is_gone() -> None:
    story = Story(a=8)
    story.run()
    effects = story.join("a", live=refs(story)[:1], stores=(STORE,))
    assert [r.rank for r in only(StopWorkers, effects).workers] == [0]
    assert story.state() is JobState.RECOVERING and story.incident().culprit == 1
    assert "lost: the agent found neither its process nor its black box" in story.incident().verdict


def test_a_worker_whose_exit_is_announced_is_waited_for() -> None:
    story = Story(a=8)
    story.run()
    assert story.join("a", live=refs(story)[:1], exits=refs(story)[1:], stores=(STORE,)) == []
    assert story.state() is JobState.RUNNING
    story.exit(1, FAILED, steps=77)
    assert "exited with code 1 after 77 steps" in story.incident().verdict


def test_a_rebooted_host_has_lost_everything_and_says_so() -> None:
    story = Story(a=8)
    story.run()
    story.now_ns += 3600 * S
    effects = story.join("a", boot="boot-2")
    assert story.fleet.nodes["a"].reason == "its host was rebooted"
    assert story.job().generation == 2 and "StartRendezvous" in kinds(effects)
    assert "last seen before its host was rebooted" in story.incident().verdict
    assert "made progress" in story.incident().decision, "it had run for an hour"


def test_workers_of_a_generation_that_is_over_are_ended() -> None:
    story = Story(a=8, b=4)
    story.run()
    old = refs(story)
    story.exit(0, KILLED, steps=50)
    story.exit(1, KILLED, steps=50)
    ghost = WorkerRef("ghost", 0, 3, 9)
    story.done(*story.open(StopWorkers))
    stop = only(StopWorkers, story.join("a", live=(*old, ghost), stores=(RendezvousRef("j", 2),)))
    assert set(stop.workers) == {*old, ghost} and stop.grace_s == 0.0
    assert kinds(story.join("a", live=(*old, ghost), stores=(RendezvousRef("j", 2),))) == [], "once is enough"
    assert story.state() is JobState.STARTING


def test_stores_of_generations_that_are_over_are_ended() -> None:
    story = Story(a=8, b=4)
    story.run()
    effects = story.join("b", stores=(STORE, RendezvousRef("ghost", 4)))
    assert {e.store for e in effects if isinstance(e, StopRendezvous)} == {STORE, RendezvousRef("ghost", 4)}
    assert all(e.node == "b" for e in effects), "the job's own store is on a"
    assert story.job().rendezvous is not None


def test_workers_that_wait_for_their_store_are_not_missed() -> None:
    story = Story(a=8)
    story.submit()
    assert story.join("a") == []
    assert story.state() is JobState.STARTING and not story.fleet.incidents
    story.bring_up()
    assert story.state() is JobState.RUNNING


def test_a_start_that_is_still_open_is_not_missed() -> None:
    story = Story(a=8)
    story.submit()
    story.store_up()
    assert story.join("a", stores=(STORE,)) == []
    assert story.state() is JobState.STARTING and len(story.open(StartWorkers)) == 1


def test_a_worker_whose_stop_is_open_is_not_declared_dead_by_an_old_inventory() -> None:
    """Its start may have been under way when the inventory was made; a second one could come to life."""
    story = Story(a=8, b=8)
    story.submit(workers=1, nodes=2)
    story.store_up()
    first, second = story.open(StartWorkers)
    story.started(first)
    story.exit(0, KILLED, steps=30)
    assert story.state() is JobState.RECOVERING
    story.join(second.node, stores=(STORE,) if second.node == story.job().rendezvous_node else ())
    assert story.state() is JobState.RECOVERING, "only the answer to the open stop is proof"
    story.exit(1, NEVER_STARTED)
    assert story.job().generation == 2
    story.check_replay()


def test_an_inventory_that_lists_all_ranks_completes_the_start() -> None:
    """The agent died between starting them and saying so."""
    story = Story(a=8)
    story.submit()
    start = only(StartWorkers, story.store_up())
    story.join("a", live=refs(story), stores=(STORE,))
    assert story.state() is JobState.RUNNING and not story.open(StartWorkers)
    assert story.failed(start, "it was there already") == [] and story.state() is JobState.RUNNING


def test_a_store_that_died_while_no_agent_was_there() -> None:
    story = Story(a=8)
    story.submit()
    story.store_up()
    effects = story.join("a")
    assert story.state() is JobState.RECOVERING and "StopWorkers" in kinds(effects)
    assert story.incident().kind == "store-lost"
    running = Story(a=8)
    running.run()
    assert running.join("a", live=refs(running)) == []
    assert running.state() is JobState.RUNNING and running.incident().kind == "store-lost"


def test_the_next_store_moves_with_the_job_when_its_node_is_away() -> None:
    story = Story(a=8, b=4)
    story.run(workers=2)
    story.exit(0, KILLED, steps=50)
    story.tell(NodeUnreachable(node="a", silent_s=5))
    early = story.open(StartRendezvous)[0]
    effects = story.exit(1, KILLED, steps=50)
    assert only(StartRendezvous, effects).node == "b" and only(StopRendezvous, effects).node == "a"
    late = story.store_up(early)
    assert only(StopRendezvous, late).node == "a", "a store on a is not the one the job waits for"
    assert story.job().rendezvous is None and story.state() is JobState.STARTING
    story.bring_up()
    assert story.state() is JobState.RUNNING
    story.check_replay()


def test_a_node_may_speak_only_for_its_own_workers() -> None:
    story = Story(a=8, b=4)
    story.run()
    ref = story.ref(0)
    assert story.tell(WorkerExited(node="b", ref=ref, exit=OK, at_ns=0)) == []
    story.tell(FirstStep(node="b", ref=ref, at_ns=5))
    assert story.job().workers[0].alive and not story.job().workers[0].first_step_at_ns


def test_silent_nodes_are_those_heard_by_this_weaver_and_not_lately() -> None:
    story = Story(a=8, b=8, c=8)
    heard = {"a": 100.0, "b": 90.0}
    found = silent_nodes(story.fleet, heard, now_s=101.0, limit_s=3.0)
    assert [(f.node, f.silent_s) for f in found] == [("b", 11.0)]
    story.tell(found[0])
    assert silent_nodes(story.fleet, heard, 102.0, 3.0) == []
    assert heard_again(story.fleet, heard, 102.0, 3.0) == []
    assert [f.node for f in heard_again(story.fleet, {"b": 101.9}, 102.0, 3.0)] == ["b"]
