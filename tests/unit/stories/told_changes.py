"""Whether notices name every job and incident that an event changed. For stories and worlds."""

from __future__ import annotations

from torchloom.core.changes import apply_and_compare
from torchloom.model.events import Envelope
from torchloom.model.fleet import Fleet


def apply_and_check(fleet: Fleet, envelope: Envelope, seq: int, now_ns: int) -> None:
    """Apply an event and compare its notice with all that is different afterwards."""
    jobs, incidents = _jobs(fleet), _incidents(fleet)
    notice = apply_and_compare(fleet, envelope, seq, now_ns)
    changed = {id for id, now in _jobs(fleet).items() if jobs.get(id) != now}
    found = {id for id, now in _incidents(fleet).items() if incidents.get(id) != now}
    told = {one.id for one in notice.jobs} if notice is not None else set()
    told_of = {one.id for one in notice.incidents} if notice is not None else set()
    about = f"event {seq}: {envelope.body}"
    assert changed <= told, f"{about} changed {changed - told}, which no notice says"
    assert found <= told_of, f"{about} changed {found - told_of}, which no notice says"


def _jobs(fleet: Fleet) -> dict[str, tuple[object, ...]]:
    return {job.id: (job.state, job.reason, job.generation) for job in fleet.jobs.values()}


def _incidents(fleet: Fleet) -> dict[str, tuple[object, ...]]:
    return {
        one.id: (one.kind, one.verdict, one.decision, one.open, one.resolution)
        for one in fleet.incidents.values()
    }
