"""Puts the API together: one router, mounted under /api/v1 and at the root. Owns no route but /health."""

from __future__ import annotations

from fastapi import APIRouter, Depends, FastAPI, Request, Response

from torchloom.api import openapi, problems
from torchloom.api.access_guard import PREFIX, SAFE_METHODS, AccessGuard
from torchloom.api.defaults import Defaults
from torchloom.api.page import Page
from torchloom.api.ports import Control
from torchloom.api.roles import check_role
from torchloom.api.routes import (
    access,
    checkpoints,
    config,
    devices,
    events,
    faults,
    fleet,
    jobs,
    joining,
    links,
    logs,
    operations,
    prometheus,
    replay,
    scaling,
    series,
    stragglers,
    versions,
)
from torchloom.api.schemas.bodies import Health
from torchloom.api.tokens import Tokens
from torchloom.errors import BusUnavailable

PREFIXES = (PREFIX, "")
"""The second is for the classic paths."""


class Gate:
    """Refuses requests until the service has caught up once: a job it has not read yet is not a missing job.

    Losing the bus later does not close it: a state that is a moment old is better than none. But what changes
    something is refused while the control plane has not been able to act for a while: it could be stored and
    not be carried out, and whoever asked would wait without end.
    """

    def __init__(self, control: Control) -> None:
        self._control = control
        self._open = False

    async def __call__(self, request: Request) -> None:
        self._open = self._open or self._control.ready
        if not self._open:
            if self._control.blocked:
                raise BusUnavailable(self._control.blocked, hint="upgrade it, or ask another control service")
            raise BusUnavailable(
                "The control service is still reading its history", hint="try again in a moment"
            )
        if self._control.blocked and request.method not in SAFE_METHODS:
            raise BusUnavailable(
                self._control.blocked, hint="nothing was changed; ask another one, or upgrade"
            )
        lasting = self._control.disturbances() if request.method not in SAFE_METHODS else []
        if lasting:
            raise BusUnavailable(
                f"The control plane cannot act now ({lasting[0].verdict})",
                hint="nothing was changed; remove the cause, see `loom incidents`, and try again",
            )


def create_app(
    control: Control,
    tokens: Tokens,
    version: str,
    hosts: frozenset[str] = frozenset(),
    defaults: Defaults | None = None,
) -> FastAPI:
    """The whole API on top of one control service. `hosts` are names it may be called by besides loopback."""
    app = FastAPI(title="torchloom", version=version, docs_url=None, redoc_url=None)
    router, gate = APIRouter(), Gate(control)

    @router.get("/health", operation_id="health", tags=["fleet"])
    async def health() -> Health:
        troubles = control.troubles()
        return Health(
            status="trouble" if troubles else "ok",
            version=version,
            ready=control.ready,
            active=control.active,
            troubles=troubles,
            stuck_s=control.stuck_s(),
        )

    @router.get("/health/ready", operation_id="healthReady", include_in_schema=False)
    async def ready() -> Response:
        """For probes: 200 once this service has read its history and is connected."""
        return Response(status_code=200 if control.ready else 503)

    @router.get("/health/live", operation_id="healthLive", include_in_schema=False)
    async def live() -> Response:
        """For probes: 503 if only a restart could help. A lost bus is no reason: it comes back by itself."""
        return Response(status_code=200)

    router.include_router(access.routes(tokens))
    for part in (
        jobs.routes(control, defaults or Defaults()),
        logs.routes(control),
        checkpoints.routes(control),
        config.routes(control),
        operations.routes(control),
        faults.routes(control),
        fleet.routes(control),
        joining.routes(control),
        replay.routes(control),
        devices.routes(control),
        scaling.routes(control),
        links.routes(control),
        stragglers.routes(control),
        series.routes(control),
        events.routes(control),
        versions.routes(control),
        prometheus.routes(control, version),
    ):
        router.include_router(part, dependencies=[Depends(gate)])
    for prefix in PREFIXES:
        app.include_router(
            router, prefix=prefix, include_in_schema=bool(prefix), dependencies=[Depends(check_role)]
        )
    problems.install(app, openapi.methods_by_path(app))
    openapi.complete(app)
    app.add_middleware(AccessGuard, tokens=tokens, hosts=hosts)
    app.add_middleware(Page)
    return app
