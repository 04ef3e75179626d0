"""The route that replays an incident: the core's own decisions, event by event."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel

from torchloom.api.ports import Control
from torchloom.core.detect.words import ranks_text
from torchloom.model.replayed import Recorded, Replay, ReplayedDecision, ReplayedStep


class StateChangeView(BaseModel):
    """One thing that an event changed in the core's state. An empty text: it was not there."""

    what: str
    before: str
    after: str


class DecisionView(BaseModel):
    """Something that the core asked for."""

    id: str
    do: str
    """For example `start-workers`."""
    node: str
    ranks: list[int]
    who: str
    """The ranks in words; empty if it is not about ranks."""
    reason: str
    recorded: Recorded
    """Whether the stream recorded the same decision at the time. Mail to ranks is never recorded."""


class ReplayStepView(BaseModel):
    seq: int
    at_ns: int
    kind: str
    """The event's own name, for example `worker-exited`."""
    text: str
    changes: list[StateChangeView]
    decisions: list[DecisionView]


class ReplayView(BaseModel):
    incident: str
    job: str
    steps: list[ReplayStepView]
    left_out: int
    """Steps in the middle that were left out because there are too many."""
    dropped_before: int
    """If the stream no longer holds the first events of the incident: the oldest event it holds. Else 0."""
    checked: int
    """Decisions that the stream recorded when they were made."""
    differing: int
    """How many of them this replay did not come to."""
    sentence: str
    """What the replay is worth: complete or cut off, and whether it came to the recorded decisions."""


def routes(control: Control) -> APIRouter:
    router = APIRouter(tags=["fleet"])

    @router.get("/incidents/{incident}/replay", operation_id="replay")
    async def replay(incident: str) -> ReplayView:
        """Apply the recorded events around an incident to the core again, and explain each of them: what it
        changed, what the core decided and why, and whether the stream recorded the same decision."""
        return replay_view(await control.replay(incident))

    return router


def replay_view(found: Replay) -> ReplayView:
    return ReplayView(
        incident=found.incident,
        job=found.job,
        steps=[_step(step) for step in found.steps],
        left_out=found.left_out,
        dropped_before=found.dropped_before,
        checked=found.checked,
        differing=found.differing,
        sentence=sentence(found),
    )


def _step(step: ReplayedStep) -> ReplayStepView:
    return ReplayStepView(
        seq=step.seq,
        at_ns=step.at_ns,
        kind=step.kind,
        text=step.text,
        changes=[StateChangeView(what=c.what, before=c.before, after=c.after) for c in step.changes],
        decisions=[_decision(one) for one in step.decisions],
    )


def _decision(one: ReplayedDecision) -> DecisionView:
    effect = one.effect
    return DecisionView(
        id=effect.id,
        do=str(effect.__struct_config__.tag),
        node=effect.node,
        ranks=list(one.ranks),
        who=ranks_text(one.ranks) if one.ranks else "",
        reason=effect.reason,
        recorded=one.recorded,
    )


def sentence(found: Replay) -> str:
    if not found.steps:
        return "The events of this incident are no longer kept, so it cannot be replayed."
    parts = []
    if found.dropped_before:
        parts.append(f"Events before {found.dropped_before} are no longer kept: the replay begins there.")
    if found.left_out:
        parts.append(f"{found.left_out} steps in the middle are left out.")
    if not found.checked:
        parts.append("The stream recorded no decision in this time.")
    elif found.differing:
        parts.append(f"{found.differing} of {found.checked} recorded decisions differ from this replay.")
    else:
        parts.append(f"The replay came to the same decision in all {found.checked} recorded cases.")
    return " ".join(parts)
