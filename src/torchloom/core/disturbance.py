"""Incidents of the control plane itself: a bus that stored nothing, or nobody who led. They belong to no job.

While it lasts nothing can be stored, so the weaver shows such an incident from memory (weaver/trouble.py) and
records it here once it is over.
"""

from __future__ import annotations

from torchloom.core.turn import Turn
from torchloom.model.events import ControlDisturbed
from torchloom.model.fleet import Fleet
from torchloom.model.incidents import EndedBy, Ending, Incident, Timeline, Verdict

KIND = "control-plane"
KEPT = 50


def next_id(fleet: Fleet) -> str:
    """Of the incident that is open now, or of the next one."""
    return f"control.{fleet.disturbances + 1}"


def open_now(fleet: Fleet, why: str, lasts_s: float, now_ns: int) -> Incident:
    """The incident as long as it lasts."""
    began_ns = now_ns - int(lasts_s * 1e9)
    return Incident(
        id=next_id(fleet),
        job="",
        generation=0,
        kind=KIND,
        judged=Verdict(cause=why),
        timeline=Timeline(fault_ns=began_ns, detected_ns=began_ns),
    )


def control_disturbed(turn: Turn, event: ControlDisturbed) -> None:
    fleet = turn.fleet
    incident = open_now(fleet, event.why, event.lasted_s, turn.now_ns)
    incident.open, incident.ended_ns = False, turn.now_ns
    incident.ending = Ending(EndedBy.ITSELF, f"recovered by itself after {event.lasted_s:.0f} s")
    fleet.disturbances += 1
    fleet.incidents[incident.id] = incident
    fleet.incidents.pop(f"control.{fleet.disturbances - KEPT}", None)
