"""Who may speak to the API: token, Host header, size of a body. Owns no route.

Plain ASGI middleware, so that a refused request costs nothing and a stream is never buffered.
"""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from torchloom.api.problems import problem

MAX_BODY_BYTES = 768 * 1024
"""A job's environment travels in one NATS message of at most 1 MiB; this leaves room around it."""

OPEN_PATHS = frozenset({"/health", "/api/v1/health"})
"""Paths that need no token: they tell nothing but that we live."""

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})


class Guard:
    """Refuse what has the wrong Host, no valid token or too large a body, before any route sees it."""

    def __init__(self, app: ASGIApp, token: str, hosts: frozenset[str]) -> None:
        self._app = app
        self._token = token.encode()
        self._hosts = LOOPBACK_HOSTS | hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._refuse(scope, headers)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        await self._app(scope, _Bounded(receive), send)

    def _refuse(self, scope: Scope, headers: Headers) -> Response | None:
        # A foreign name in Host is how a web page reaches a loopback service by DNS rebinding.
        if _host_name(headers.get("host", "")) not in self._hosts:
            return problem(403, "not-allowed", "This Host header is not one of ours: use the address itself.")
        if scope["path"] not in OPEN_PATHS and not self._token_ok(headers.get("authorization", "")):
            return problem(
                401,
                "not-allowed",
                "A valid token is needed: send `Authorization: Bearer` with the content of LOOM_HOME/token.",
                {"WWW-Authenticate": "Bearer"},
            )
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
            return problem(413, "usage", f"The body is larger than {MAX_BODY_BYTES} bytes.")
        return None

    def _token_ok(self, authorization: str) -> bool:
        scheme, _, given = authorization.partition(" ")
        right = hmac.compare_digest(given.strip().encode(), self._token)
        return right and scheme.lower() == "bearer"


class _Bounded:
    """Cut off a body that has no honest content-length."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._seen = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        self._seen += len(message.get("body", b""))
        if self._seen > MAX_BODY_BYTES:
            return {"type": "http.disconnect"}
        return message


def _host_name(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


def caller(request: Request) -> str:
    """Who asks, for the audit. One token for all until there are roles, so only the program can be told."""
    agent = request.headers.get("user-agent", "")[:64]
    return agent if agent.isprintable() and agent else "api"
