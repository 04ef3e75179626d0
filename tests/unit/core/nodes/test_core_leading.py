"""A weaver that was replaced and does not know it yet judges nobody any more."""

from __future__ import annotations

import pytest
from core_story import Story
from notice_story import apply_and_tell

from torchloom.core.reducer import apply
from torchloom.model.effects import StopWorkers
from torchloom.model.events import (
    Envelope,
    Event,
    FindingMade,
    LeaseTaken,
    NodeGone,
    NodeUnreachable,
)
from torchloom.model.findings import Finding
from torchloom.model.fleet import JobState, NodeState
from torchloom.model.policy import Policy

HUNG = Finding(
    kind="hang",
    ranks=(1,),
    sentence="rank 1 hangs",
    confidence=0.99,
    certain=True,
    certainty="its process is stopped",
    may_act=True,
    lasting_s=5.0,
)


def led_by(weaver: str) -> Story:
    story = Story(a=1, b=1, c=1)
    story.run(workers=1, nodes=2, policy=Policy(self_fence_s=20.0))
    story.tell(LeaseTaken(weaver="old", epoch=3))
    if weaver != "old":
        story.tell(LeaseTaken(weaver=weaver, epoch=4))
    return story


def said_by_old(story: Story, *events: Event) -> None:
    for event in events:
        seq = story.fleet.seq + 1
        story.effects += apply(story.fleet, Envelope(f"old-{seq}", "old", event), seq, story.now_ns)


def test_what_a_deposed_weaver_heard_is_of_long_ago() -> None:
    story = led_by("new")
    said_by_old(
        story,
        NodeUnreachable(node="b", silent_s=30.0),
        NodeGone(node="b", by="self-fencing", fenced=("j",)),
        FindingMade(job="j", generation=1, finding=HUNG, steps=50),
    )
    assert story.state() is JobState.RUNNING and story.fleet.nodes["b"].state is NodeState.READY
    assert not story.open(StopWorkers) and not story.job().incidents


@pytest.mark.parametrize("fenced", [True, False])
def test_the_weaver_that_leads_is_believed(fenced: bool) -> None:
    story = led_by("old")
    if fenced:
        said_by_old(
            story,
            NodeUnreachable(node="b", silent_s=30.0),
            NodeGone(node="b", by="self-fencing", fenced=("j",)),
        )
    else:
        said_by_old(story, FindingMade(job="j", generation=1, finding=HUNG, steps=50))
    assert story.state() is JobState.RECOVERING


def test_a_persons_word_counts_through_any_weaver() -> None:
    story = led_by("new")
    story.fleet.nodes["b"].state = NodeState.UNREACHABLE
    said_by_old(story, NodeGone(node="b", by="ann"))
    assert story.fleet.nodes["b"].state is NodeState.GONE


def test_nobody_who_follows_the_fleet_is_told_either() -> None:
    story = led_by("new")
    seq = story.fleet.seq + 1
    event = NodeUnreachable(node="b", silent_s=30.0)
    assert apply_and_tell(story.fleet, Envelope("x", "old", event), seq, story.now_ns) is None
    assert story.fleet.seq == seq
