"""Incidents of agents whose events were refused because there were too many of them (event_shares.py).

They belong to no job and restart nothing: the workers of that node are not touched, and what its agent has to
report arrives when its events are taken again.
"""

from __future__ import annotations

from torchloom.core.disturbance import KEPT, next_id
from torchloom.core.turn import Turn
from torchloom.model.events import AgentFlooded
from torchloom.model.fleet import Fleet
from torchloom.model.incidents import (
    Decision,
    DecisionOutcome,
    EndedBy,
    Ending,
    Incident,
    Timeline,
    Verdict,
)

KIND = "event-flood"


def agent_flooded(turn: Turn, event: AgentFlooded) -> None:
    incident = _open_of(turn.fleet, event.node)
    if event.over:
        if incident is not None:
            incident.open, incident.ended_ns = False, turn.now_ns
            how = f"{event.node} has kept to its share since; resolved after {event.lasted_s:.0f} s"
            incident.ending = Ending(EndedBy.ITSELF, how)
        turn.fleet.floods.pop(event.node, None)
        return
    turn.fleet.flood_counts[event.node] = turn.fleet.flood_counts.get(event.node, 0) + 1
    if incident is None:
        incident = _begin(turn, event)
    else:
        incident.times += 1
    reason = f"no event of {event.node} is stored for {event.closed_s:.0f} s; other nodes are not affected"
    incident.decided = Decision(action="continue", outcome=DecisionOutcome.DONE, reason=reason)


def _open_of(fleet: Fleet, node: str) -> Incident | None:
    return fleet.incidents.get(fleet.floods.get(node, ""))


def _begin(turn: Turn, event: AgentFlooded) -> Incident:
    fleet = turn.fleet
    hint = "if its agent is healthy, somebody else may have its key"
    incident = Incident(
        id=next_id(fleet),
        job="",
        generation=0,
        kind=KIND,
        node=event.node,
        judged=Verdict(cause=f"the agent of {event.node} floods the event stream: {event.why}", hint=hint),
        timeline=Timeline(fault_ns=turn.now_ns, detected_ns=turn.now_ns),
    )
    fleet.disturbances += 1
    fleet.incidents[incident.id] = incident
    fleet.incidents.pop(f"control.{fleet.disturbances - KEPT}", None)
    fleet.floods[event.node] = incident.id
    return incident
