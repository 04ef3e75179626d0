"""Routes by which hosts join a cluster, and lose that right again."""

from __future__ import annotations

import logging

from fastapi import APIRouter, Request

from torchloom.api.access_guard import caller
from torchloom.api.ports import Control
from torchloom.api.schemas.joining import (
    AuthoritiesView,
    JoinRequest,
    JoinTokenRequest,
    JoinTokenText,
    JoinView,
    PodJoinRequest,
)
from torchloom.model.admission import JoinAnswer

log = logging.getLogger(__name__)


def routes(control: Control) -> APIRouter:
    router = APIRouter(tags=["fleet"])

    @router.post("/join/tokens", status_code=201, operation_id="makeJoinToken")
    async def make(body: JoinTokenRequest, request: Request) -> JoinTokenText:
        """A token that admits hosts for a while. It is shown once."""
        token = await control.admission.make_token(caller(request), body.valid_s, body.hosts, body.node)
        return JoinTokenText(token=token, addresses=list(control.admission.addresses()))

    @router.get("/join/ca", operation_id="joinAuthorities")
    async def authorities() -> AuthoritiesView:
        """The certificates that prove servers of this cluster. Whoever has no other proof of this connection
        compares their SHA-256 with the one in the join token."""
        return AuthoritiesView(ca=control.admission.authorities())

    @router.post("/join", operation_id="join")
    async def join(body: JoinRequest) -> JoinView:
        """Admit a host as a node. The token is the proof; the host keeps the secret half of its key."""
        answer = await control.admission.admit(body.token, body.node, body.key)
        log.warning("%s was admitted to the cluster", body.node)
        return _view(body.node, answer)

    @router.post("/join/pod", operation_id="joinPod")
    async def join_pod(body: PodJoinRequest) -> JoinView:
        """Admit a pod as the node with its name. Kubernetes proves whose token it is (TokenReview)."""
        node, answer = await control.admission.admit_pod(body.token, body.key)
        log.warning("the pod of %s was admitted to the cluster", node)
        return _view(node, answer)

    @router.post("/nodes/{node}/revoke", status_code=204, operation_id="revokeNode")
    async def revoke(node: str, request: Request) -> None:
        """Take back the credential of a host that joined: its connections end, and new ones are refused. Its
        workers are not touched; `loom node gone` replaces them."""
        await control.admission.revoke(node, caller(request))

    return router


def _view(node: str, answer: JoinAnswer) -> JoinView:
    return JoinView(
        claims=answer.claims,
        servers=list(answer.servers),
        addresses=list(answer.apis),
        ca=answer.ca,
        node=node,
        api_token=answer.api_token,
    )
