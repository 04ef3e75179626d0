"""An incident with everything that is kept of it, as the API shows it. Pure: records in, schemas out."""

from __future__ import annotations

from math import isfinite

from torchloom.api.schemas.incidents import (
    FactView,
    FindingView,
    IncidentDetail,
    RankEvidenceView,
    WitnessView,
)
from torchloom.api.schemas.links import link_matrix_view
from torchloom.api.views.jobs import exit_view, incident_view
from torchloom.model.findings import Finding, RankEvidence
from torchloom.model.flight import FlightWitness
from torchloom.model.incidents import Incident


def incident_detail(incident: Incident) -> IncidentDetail:
    return IncidentDetail(
        **incident_view(incident).model_dump(),
        exits=[exit_view(report) for report in incident.exits],
        finding=_finding(incident.finding) if incident.finding is not None else None,
        witness=_witness(incident.witness) if incident.witness is not None else None,
        evidence=[_evidence(one) for one in incident.evidence],
        links=link_matrix_view(incident.links) if incident.links is not None else None,
        goodput_before=incident.goodput_before,
        goodput_after=incident.goodput_after,
    )


def _finding(finding: Finding) -> FindingView:
    return FindingView(
        ranks=list(finding.ranks),
        node=finding.node,
        confidence=finding.confidence,
        certain=finding.certain,
        certainty=finding.certainty,
        lasting_s=finding.lasting_s,
        waiting=list(finding.waiting),
        facts=[FactView(rank=fact.rank, says=fact.says) for fact in finding.evidence],
        inputs={k: v if isinstance(v, str) or isfinite(v) else None for k, v in finding.inputs.items()},
    )


def _witness(told: FlightWitness) -> WitnessView:
    return WitnessView(agrees=told.agrees, sentence=told.sentence, lines=list(told.lines))


def _evidence(one: RankEvidence) -> RankEvidenceView:
    return RankEvidenceView(
        rank=one.rank,
        node=one.node,
        state=one.state,
        phase=one.phase,
        steps=one.steps,
        doing=one.doing,
        location=one.location,
        stack=list(one.stack),
        gil=one.gil,
        collectives=list(one.collectives),
        log_tail=list(one.log_tail),
    )
