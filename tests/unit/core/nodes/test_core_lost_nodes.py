"""Silence is said and nothing more; a person's word that a host is gone is proof, and its jobs recover."""

from __future__ import annotations

from core_story import KILLED, NEVER_STARTED, S, Story, kinds, lost_peer, only

from torchloom.core.nodes.lost_nodes import waiting_note
from torchloom.model.effects import RemoveJobFiles, StartRendezvous, StartWorkers, StopWorkers
from torchloom.model.events import (
    JobDeleted,
    NodeGone,
    NodeLeft,
    NodeReachable,
    NodeUnreachable,
    StartedWorker,
    WorkerRegistered,
    WorkersStarted,
)
from torchloom.model.fleet import JobState, NodeState
from torchloom.model.node import RendezvousRef
from torchloom.model.worker import DeviceUse, WorkerRef


def silent(story: Story, node: str = "b", silent_s: float = 3.5) -> None:
    story.tell(NodeUnreachable(node=node, silent_s=silent_s))


def gone(story: Story, node: str = "b", **steps: int) -> list[str]:
    return kinds(story.tell(NodeGone(node=node, by="ann", steps=steps)))


def two_nodes(**more: int) -> Story:
    """Ranks 0 and 1 on a and b."""
    story = Story(a=4, b=4, **more)
    story.run(workers=1, nodes=2)
    assert [w.node for w in story.job().workers] == ["a", "b"]
    story.now_ns += 10 * S
    return story


def refs(story: Story) -> tuple[WorkerRef, ...]:
    return tuple(w.ref for w in story.job().workers)


def test_silence_is_an_incident_that_names_ranks_and_devices_and_does_nothing() -> None:
    story = two_nodes()
    use = DeviceUse("GPU-7", "gpu")
    story.tell(WorkerRegistered(node="b", ref=story.ref(1), devices=(use,)))
    silent(story)
    incident = story.incident()
    assert (incident.kind, incident.node, incident.open, incident.culprit) == ("node-lost", "b", True, None)
    assert incident.verdict == "b has been silent for 3.5 s; rank 1 (GPU-7) there may well still run"
    assert "reported only" in incident.decision and "loom node gone b" in incident.decision
    assert story.state() is JobState.RUNNING and not story.job().incident
    story.tell(NodeReachable(node="b"), after_s=4)
    assert not incident.open and "nothing was restarted because of it, after 7.5 s" in incident.resolution
    silent(story)
    assert incident.open and len(story.job().incidents) == 1, "again within minutes: the same incident"
    story.join("b", live=(story.ref(1),))
    assert not incident.open and story.state() is JobState.RUNNING
    story.check_replay()


def test_a_node_without_workers_that_is_silent_is_nobodys_incident() -> None:
    story = two_nodes(c=4)
    silent(story, "c")
    assert not story.fleet.incidents


def test_a_host_that_is_gone_is_proof_and_the_job_recovers_elsewhere() -> None:
    story = two_nodes(c=4)
    silent(story)
    assert "StopWorkers" in gone(story, j=77)
    assert story.state() is JobState.RECOVERING
    assert [e.node for e in story.open(StopWorkers)] == ["a"], "nobody is asked who cannot answer"
    incident = story.incident()
    assert incident.kind == "node-lost" and len(story.job().incidents) == 1
    assert incident.verdict == "ann confirmed that b is gone; rank 1 has gone with it"
    assert "made progress" in incident.decision, "it had made 77 steps"
    assert [(r.rank, r.exit.source, r.secondary) for r in incident.exits] == [(1, "operator", False)]
    story.exit(0, end=lost_peer(), steps=77)
    assert story.job().generation == 2 and [w.node for w in story.job().workers] == ["a", "c"]
    assert incident.culprit is None and not story.job().restarts_by_rank
    story.bring_up()
    story.first_step()
    assert story.state() is JobState.RUNNING and not incident.open
    assert incident.timeline.first_step_ns > incident.timeline.decided_ns > incident.timeline.first_sign_ns
    story.check_replay()


def test_a_word_about_a_node_that_is_heard_or_unknown_has_no_effect() -> None:
    story = two_nodes()
    assert gone(story) == [] and gone(story, "nowhere") == []
    assert story.fleet.nodes["b"].state is NodeState.READY and story.state() is JobState.RUNNING
    silent(story)
    gone(story)
    assert gone(story) == [], "said twice"


def test_an_agent_that_was_stopped_may_be_gone_too() -> None:
    story = two_nodes()
    story.tell(NodeLeft(node="b"))
    gone(story)
    assert story.state() is JobState.RECOVERING and story.incident().kind == "node-lost"


def test_a_recovery_that_waits_for_a_silent_node_goes_on_when_it_is_gone() -> None:
    story = two_nodes(c=4)
    story.exit(0, KILLED, steps=50)
    silent(story)
    assert story.state() is JobState.RECOVERING and story.job().generation == 1, "no proof, no start"
    assert "waits for b, which is unreachable" in waiting_note(story.fleet, story.job())
    gone(story)
    assert story.job().generation == 2 and [w.node for w in story.job().workers] == ["a", "c"]
    crash = story.incident(index=0)
    assert crash.kind == "crash" and crash.culprit == 0, "who failed first stays to blame"
    assert not story.incident().open, "what was said about silence is over"


def test_all_on_one_host_that_is_gone_the_job_moves_with_its_store() -> None:
    story = Story(a=8, b=4)
    story.run(workers=2)
    silent(story, "a")
    effects = gone(story, "a", j=50)
    assert effects == ["StartRendezvous"] and only(StartRendezvous, story.effects[-1:]).node == "b"
    assert story.state() is JobState.STARTING and story.job().generation == 2
    assert all(e.node == "b" for e in story.fleet.outbox.values())
    story.bring_up()
    assert story.state() is JobState.RUNNING
    story.check_replay()


def test_without_another_node_it_waits_and_says_so_and_takes_the_host_again_when_it_returns() -> None:
    story = Story(a=8)
    story.run(workers=2)
    old = refs(story)
    silent(story, "a")
    gone(story, "a", j=50)
    assert story.state() is JobState.WAITING and "no node is connected" in story.job().reason
    effects = story.join("a", live=old, stores=(RendezvousRef("j", 1),))
    stop = only(StopWorkers, effects)
    assert set(stop.workers) == set(old) and stop.grace_s == 0, "what counted as dead is ended"
    assert story.state() is JobState.WAITING and "still being ended on a" in story.job().reason
    for ref in old:
        story.exit(ref=ref)
    assert story.job().generation == 1
    story.done(stop)
    assert story.job().generation == 2 and story.state() is JobState.STARTING
    story.check_replay()


def test_a_start_that_was_on_its_way_to_a_host_said_to_be_gone_cannot_come_to_life_later() -> None:
    story = Story(a=8, b=8)
    story.submit(workers=2)
    (start,) = [e for e in story.store_up() if isinstance(e, StartWorkers)]
    here = start.node
    silent(story, here)
    gone(story, here)
    story.fire()
    assert story.job().generation == 2 and story.job().workers[0].node != here
    stop = only(StopWorkers, story.join(here))
    assert set(stop.workers) == {x.ref for x in start.launches}, "an agent does not start what it must stop"
    late = tuple(StartedWorker(x.ref, 77) for x in start.launches)
    again = story.tell(WorkersStarted(node=here, effect=start.id, workers=late))
    assert only(StopWorkers, again).strays


def test_a_gap_that_only_we_saw_ends_what_counted_as_dead() -> None:
    """The agent never lost its connection, so it sends no inventory: it is only heard again."""
    story = two_nodes(c=4)
    old = story.ref(1)
    silent(story)
    gone(story)
    stop = only(StopWorkers, story.tell(NodeReachable(node="b")))
    assert stop.workers == (old,) and stop.node == "b" and stop.strays
    assert story.fleet.nodes["b"].state is NodeState.READY and not story.fleet.nodes["b"].lost
    story.exit(0, NEVER_STARTED)
    assert story.state() is not JobState.STARTING, "no rank starts before the old one is surely dead"
    story.done(stop)
    if story.fleet.timers:
        story.fire()
    assert story.job().generation == 2


def test_two_silent_nodes_and_one_is_gone() -> None:
    story = Story(a=2, b=2, c=2)
    story.run(workers=1, nodes=3)
    silent(story, "b")
    silent(story, "c")
    gone(story, "b", j=50)
    story.exit(0, KILLED)
    assert story.state() is JobState.RECOVERING, "the rank on c may live"
    story.tell(NodeReachable(node="c"))
    rank = next(w.ref.rank for w in story.job().workers if w.node == "c")
    story.exit(rank, KILLED)
    assert story.state() is JobState.WAITING and "needs 3 nodes" in story.job().reason
    story.join("b", 2)
    story.done(*story.open(StopWorkers))
    assert story.state() is JobState.STARTING and story.job().generation == 2


def test_a_stopping_job_stops_when_its_host_is_gone() -> None:
    story = two_nodes()
    story.stop()
    silent(story)
    story.exit(0)
    assert story.state() is JobState.STOPPING
    gone(story)
    assert story.state() is JobState.STOPPED
    assert {e.node for e in story.fleet.outbox.values()} == {"a"}
    story.tell(JobDeleted(job="j", by="ann", keep_logs=False))
    assert {e.node for e in story.open(RemoveJobFiles)} == {"a"}, "nobody answers on b"


def test_a_budget_that_is_used_up_ends_the_job_also_here() -> None:
    from core_story import limits

    story = Story(a=4, b=4)
    story.run(workers=1, nodes=2, restarts=limits(max_restarts=0))
    story.now_ns += 100 * S
    silent(story)
    gone(story)
    story.exit(0)
    assert story.state() is JobState.FAILED and "restarts are off" in story.job().reason
