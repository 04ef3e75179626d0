"""The route that says which version of torchloom runs where, and which schemas it writes."""

from __future__ import annotations

from collections import Counter

from fastapi import APIRouter
from pydantic import BaseModel

from torchloom.api.ports import Control
from torchloom.wire.schema_versions import SCHEMAS


class ServiceVersion(BaseModel):
    name: str
    version: str
    leads: bool
    blocked: str
    """Why this service cannot read the stream and never leads; empty: it can."""


class NodeVersion(BaseModel):
    node: str
    state: str
    version: str
    """Of its agent; empty: an agent that does not report it."""
    refused: str
    """Why the agent refused the newest command: it is too old for it; empty: it did not."""


class JobVersions(BaseModel):
    job: str
    workers: dict[str, int]
    """Living workers by the version of torchloom in them; an empty version is not reported."""


class Versions(BaseModel):
    services: list[ServiceVersion]
    """This control service first. A service that does not announce itself is missing unless it leads."""
    nodes: list[NodeVersion]
    jobs: list[JobVersions]
    """Jobs with living workers."""
    schemas: dict[str, int]
    """The version of each schema that this service writes."""


def routes(control: Control) -> APIRouter:
    router = APIRouter(tags=["fleet"])

    @router.get("/versions", operation_id="versions")
    async def versions() -> Versions:
        """Which version runs where."""
        fleet = control.fleet
        services = [
            ServiceVersion(name=one.name, version=one.version, leads=one.leads, blocked=one.blocked)
            for one in control.weavers()
        ]
        if fleet.leader and not any(one.leads or one.name == fleet.leader for one in services):
            services.append(
                ServiceVersion(name=fleet.leader, version=fleet.leader_version, leads=True, blocked="")
            )
        living = {
            job.id: Counter(worker.version for worker in job.workers if worker.alive and worker.pid)
            for job in fleet.jobs.values()
        }
        return Versions(
            services=services,
            nodes=[
                NodeVersion(
                    node=node.id,
                    state=str(node.state),
                    version=node.inventory.version,
                    refused=control.refusals.get(node.id, ""),
                )
                for node in fleet.nodes.values()
            ],
            jobs=[JobVersions(job=job, workers=dict(found)) for job, found in living.items() if found],
            schemas={schema.name: schema.version for schema in SCHEMAS},
        )

    return router
