"""Routes about the fleet as a whole: nodes, incidents."""

from __future__ import annotations

from fastapi import APIRouter, Request

from torchloom.api.access_guard import caller
from torchloom.api.find import job_of
from torchloom.api.ports import Control
from torchloom.api.schemas.bodies import DrainRequest, IncidentView, JobId, NodeView
from torchloom.api.schemas.incidents import IncidentDetail
from torchloom.api.views import jobs
from torchloom.api.views.incidents import incident_detail
from torchloom.errors import NotFound


def routes(control: Control) -> APIRouter:
    router = APIRouter(tags=["fleet"])

    @router.get("/nodes", operation_id="nodes")
    async def nodes() -> list[NodeView]:
        fleet = control.fleet
        seen, dropped = control.node_seen, control.dropped
        return [jobs.node_view(fleet, n, seen(n.id), dropped.get(n.id, 0)) for n in fleet.nodes.values()]

    @router.post("/nodes/{node}/gone", operation_id="nodeGone")
    async def node_gone(node: str, request: Request) -> NodeView:
        """Confirm that the host of an unreachable node is gone, so that its jobs recover elsewhere.

        Refused with 409 while the node is reachable. If the host comes back, its old workers are killed.
        """
        await control.node_gone(node, caller(request))
        return jobs.node_view(control.fleet, control.fleet.nodes[node], control.node_seen(node))

    @router.post("/nodes/{node}/drain", operation_id="drainNode")
    async def drain_node(node: str, body: DrainRequest, request: Request) -> NodeView:
        """Place no new workers on this node until it is opened again, and move its jobs elsewhere: each is
        saved, stopped at a step boundary and resumed from there. That does not count against its restarts.

        A job that has no room elsewhere or cannot be saved stays and keeps training; `leaving` says why.
        `force` also moves jobs that cannot be saved; `keep` moves none.
        """
        await control.node_drained(node, caller(request), body.why, keep=body.keep, force=body.force)
        return jobs.node_view(control.fleet, control.fleet.nodes[node], control.node_seen(node))

    @router.post("/nodes/{node}/open", operation_id="openNode")
    async def open_node(node: str, request: Request) -> NodeView:
        """Allow workers on a drained node again, also those of jobs that a policy moved away from it."""
        await control.node_opened(node, caller(request))
        return jobs.node_view(control.fleet, control.fleet.nodes[node], control.node_seen(node))

    @router.get("/incidents", operation_id="incidents")
    async def incidents(job: JobId | None = None) -> list[IncidentView]:
        """Of one job, or of all jobs and of the control plane itself. The `job` of the latter is empty."""
        if job is not None:
            job_of(control, job)
        kept = [*control.fleet.incidents.values(), *control.disturbances()]
        return [jobs.incident_view(incident) for incident in kept if job in (None, incident.job)]

    @router.get("/incidents/{incident}", operation_id="incident")
    async def incident(incident: str) -> IncidentDetail:
        lasting = {one.id: one for one in control.disturbances()}
        found = control.fleet.incidents.get(incident) or lasting.get(incident)
        if found is None:
            raise NotFound(f"There is no incident {incident[:64]!r}", hint="see `loom incidents`")
        return incident_detail(found)

    return router
