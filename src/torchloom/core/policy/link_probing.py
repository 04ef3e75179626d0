"""When the links of a job are probed without a person's asking: on the suspicion that transfers are slow.

A probe holds every rank at one step for a moment, so it is rare: at most one in the policy's
`probe_every_s`, none if the policy says so. What was measured is judged in core/policy/link_findings.py.
"""

from __future__ import annotations

from msgspec.structs import replace

from torchloom.core.steering.driver import change_requested
from torchloom.core.turn import Turn
from torchloom.model.events import ChangeRequested
from torchloom.model.findings import Finding
from torchloom.model.fleet import Job, JobState
from torchloom.model.incidents import Incident, LinkProbing
from torchloom.model.steering import Origin
from torchloom.model.transaction.messages import Kind

POLICY = "policy"
"""Who asked, in the history."""


def probe_on_suspicion(turn: Turn, job: Job, incident: Incident, finding: Finding) -> None:
    """Request the delay matrix if only that can show which rank is at fault."""
    if not finding.traits.needs_probe or not finding.ask or incident.links is not None:
        return
    why_not = _why_not(turn, job)
    if why_not:
        note_probing(incident, "refused", why_not)
        return
    job.probed_ns = turn.now_ns
    note_probing(incident, "asked")
    change_requested(
        turn,
        ChangeRequested(
            job=job.id,
            operation=f"{turn.seq:012x}",
            kind=Kind.PROBE,
            by=POLICY,
            why=finding.sentence,
            origin=Origin.POLICY,
            incident=incident.id,
        ),
    )


def note_probing(incident: Incident, what: LinkProbing, why: str = "") -> None:
    """Record the outcome of measuring the links, beside the other actions on the incident."""
    if incident.decided is not None:
        incident.decided = replace(incident.decided, links=what, links_reason=why)


def _why_not(turn: Turn, job: Job) -> str:
    policy = job.spec.policy
    if not policy.probe_links:
        return "the policy does not allow it"
    if policy.dry_run:
        return "dry run"
    if job.state is not JobState.RUNNING or any(worker.blind for worker in job.workers):
        return "not every rank can be asked to"
    if any(r.kind is Kind.PROBE and not r.ended for r in job.operations.values()):
        return "a probe is in progress"
    since_s = (turn.now_ns - job.probed_ns) / 1e9
    if job.probed_ns and since_s < policy.probe_every_s:
        return f"the last time was {since_s:.0f} s ago"
    return ""
