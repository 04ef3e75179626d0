"""Workers that their cut-off host had to end: replaced without a word, and only where it is allowed."""

from __future__ import annotations

import pytest
from core_story import FAILED, KILLED, S, Story, lost_peer, only
from msgspec.structs import replace

from torchloom.core.detect.silence import fenced_nodes
from torchloom.model.effects import StartWorkers, StopWorkers
from torchloom.model.events import NodeGone, NodeReachable, NodeUnreachable
from torchloom.model.fleet import JobState, NodeState
from torchloom.model.policy import Policy


def cut_off(fence_s: float | None) -> Story:
    """Ranks 0 and 1 on a and b; c is free, and b cannot be heard."""
    story = Story(a=1, b=1, c=1)
    story.run(workers=1, nodes=2, policy=Policy(self_fence_s=fence_s))
    assert [w.node for w in story.job().workers] == ["a", "b"]
    story.now_ns += 60 * S
    story.tell(NodeUnreachable(node="b", silent_s=3.5))
    return story


def fenced(story: Story) -> None:
    story.tell(NodeGone(node="b", by="self-fencing", fenced=("j",), steps={"j": 50}))


def test_only_after_its_limit_and_a_margin_and_only_for_jobs_that_allow_it() -> None:
    story = cut_off(20.0)
    heard = {"a": 100.0, "b": 100.0}
    assert fenced_nodes(story.fleet, heard, 122.3) == []
    (said,) = fenced_nodes(story.fleet, heard, 122.5)
    assert said.node == "b" and said.fenced == ("j",)
    assert fenced_nodes(story.fleet, {"a": 100.0}, 500.0) == [], "never heard by this weaver"
    story.job().workers[1].blind = "no room"
    assert fenced_nodes(story.fleet, heard, 500.0) == [], "nobody but the agent could have ended it"
    assert fenced_nodes(cut_off(None).fleet, heard, 500.0) == []
    story = cut_off(20.0)
    story.tell(NodeReachable(node="b"))
    assert fenced_nodes(story.fleet, heard, 500.0) == []


def test_the_workers_count_as_ended_and_the_job_recovers_elsewhere() -> None:
    story = cut_off(20.0)
    fenced(story)
    assert story.state() is JobState.RECOVERING and story.fleet.nodes["b"].state is NodeState.UNREACHABLE
    incident = story.incident()
    assert incident.kind == "node-lost" and len(story.job().incidents) == 1
    assert "ends the workers of this job (self_fence_s); rank 1 has ended there" in incident.verdict
    story.exit(0, KILLED, steps=50)
    story.bring_up()
    assert [w.node for w in story.job().workers] == ["a", "c"] and story.state() is JobState.RUNNING
    story.check_replay()


@pytest.mark.parametrize("first", ["exit", "silence"])
def test_a_rank_that_lost_its_peer_is_not_to_blame_and_it_is_one_incident(first: str) -> None:
    story = Story(a=1, b=1, c=1)
    story.run(workers=1, nodes=2, policy=Policy(self_fence_s=20.0))
    story.now_ns += 60 * S
    if first == "silence":
        story.tell(NodeUnreachable(node="b", silent_s=3.5))
    story.exit(0, FAILED, end=lost_peer(), steps=50)
    if first == "exit":
        story.tell(NodeUnreachable(node="b", silent_s=3.5))
    assert story.job().incidents == ["j.1"] and story.incident().kind == "crash"
    assert "b has been silent for 3.5 s; rank 1 there may well still run" in story.job().reason
    fenced(story)
    incident = story.incident()
    assert (incident.kind, incident.node, incident.culprit) == ("node-lost", "b", None)
    assert incident.verdict.endswith(
        "rank 1 has ended there; rank 0 followed because its peer was gone"
    )  # fmt: skip
    assert story.job().restarts == 1 and not story.job().restarts_by_rank
    story.bring_up()
    assert [w.node for w in story.job().workers] == ["a", "c"] and incident.open
    story.first_step(0)
    assert not incident.open and incident.timeline.first_step_ns
    story.check_replay()


@pytest.mark.parametrize("first", ["exit", "silence"])
def test_a_peer_whose_node_is_heard_again_tells_itself_how_it_ended(first: str) -> None:
    story = Story(a=1, b=1)
    story.run(workers=1, nodes=2)
    story.now_ns += 60 * S
    if first == "silence":
        story.tell(NodeUnreachable(node="b", silent_s=3.5))
    story.exit(0, FAILED, end=lost_peer(), steps=50)
    if first == "exit":
        story.tell(NodeUnreachable(node="b", silent_s=3.5))
    story.tell(NodeReachable(node="b"))
    story.exit(1, KILLED, steps=50, at_s=10.0)
    incident = story.incident()
    assert (incident.kind, incident.culprit) == ("crash", 1) and "SIGKILL" in incident.verdict
    story.bring_up()
    story.first_step(0)
    assert not incident.open and incident.timeline.first_step_ns and story.job().incidents == ["j.1"]
    story.check_replay()


def test_should_they_live_after_all_they_are_ended_when_the_node_is_heard() -> None:
    story = cut_off(20.0)
    old = story.ref(1)
    fenced(story)
    story.exit(0, KILLED, steps=50)
    story.bring_up()
    effects = story.tell(NodeReachable(node="b"))
    stop = only(StopWorkers, effects)
    assert stop.workers == (old,) and stop.strays


def test_without_the_flag_the_word_has_no_effect() -> None:
    story = cut_off(None)
    fenced(story)
    assert story.state() is JobState.RUNNING and story.job().workers[1].alive
    story.check_replay()


def test_the_agents_are_told_with_the_start() -> None:
    story = Story(a=2)
    story.submit(workers=2, policy=Policy(self_fence_s=20.0))
    effects = story.store_up()
    assert only(StartWorkers, effects).fence_s == 20.0
    assert replace(Policy(), self_fence_s=20.0) == Policy(self_fence_s=20.0)
