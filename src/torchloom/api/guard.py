"""Who may speak to the API: token or session, role, origin, Host header, size of a body. Owns no route.

Plain ASGI middleware, so that a refused request costs nothing and a stream is never buffered. What a role may
do follows from the method and the path alone: a new route cannot forget to ask.
"""

from __future__ import annotations

import re
import time
import urllib.parse
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from torchloom.api.problems import problem, refusal_of
from torchloom.api.schemas.bodies import Identity
from torchloom.api.tokens import Tokens
from torchloom.errors import LoomError

MAX_BODY_BYTES = 768 * 1024
"""A job's environment travels in one NATS message of at most 1 MiB; this leaves room around it."""

PREFIX = "/api/v1"
OPEN_PATHS = frozenset({"/health", "/login"})
"""Paths that need no token: they tell nothing but that we live, or take the token themselves."""
READERS_MAY = frozenset({"/logout", "/login/link"})
"""What a reader may do although it is not a GET."""
ADMINS_ONLY = re.compile(r"/tokens(/.*)?|/jobs/[^/]*/faults/?")
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
COOKIE = "loom_session"

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})


class Guard:
    """Refuse what has the wrong Host, no valid token or too large a body, before any route sees it."""

    def __init__(self, app: ASGIApp, tokens: Tokens, hosts: frozenset[str]) -> None:
        self._app = app
        self._tokens = tokens
        self._hosts = LOOPBACK_HOSTS | hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            refusal = self._refuse(scope, Headers(scope=scope))
        except LoomError as error:
            refusal = refusal_of(error)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        await self._app(scope, _Bounded(receive), send)

    def _refuse(self, scope: Scope, headers: Headers) -> Response | None:
        # A foreign name in Host is how a web page reaches a loopback service by DNS rebinding.
        if _host_name(headers.get("host", "")) not in self._hosts:
            return problem(403, "not-allowed", "This Host header is not one of ours: use the address itself.")
        path = scope["path"].removeprefix(PREFIX)
        if path in OPEN_PATHS:
            if path == "/login" and not _from_our_page(scope, headers, origin_needed=False):
                return problem(403, "not-allowed", "Another site's page cannot log in here.")
        else:
            refusal = self._refuse_caller(scope, headers, path)
            if refusal is not None:
                return refusal
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 18 or int(length) > MAX_BODY_BYTES:
            return problem(413, "usage", f"The body is larger than {MAX_BODY_BYTES} bytes.")
        return None

    def _refuse_caller(self, scope: Scope, headers: Headers, path: str) -> Response | None:
        changes = scope["method"] not in SAFE_METHODS
        who = self._bearer(headers.get("authorization", ""))
        if who is None and "authorization" not in headers:
            who = self._session(headers)
            if who is not None and changes and not _from_our_page(scope, headers, origin_needed=True):
                return problem(403, "not-allowed", "A session may change things only from our own page.")
        if who is None:
            return problem(
                401,
                "not-allowed",
                "A valid token is needed: `loom` takes LOOM_TOKEN, a context's or LOOM_HOME/token; "
                "a request has it in its header `Authorization: Bearer`.",
                {"WWW-Authenticate": "Bearer"},
            )
        if who.role == "read" and changes and path not in READERS_MAY:
            return problem(403, "not-allowed", f"The token {who.name} may only read.")
        if who.role != "admin" and ADMINS_ONLY.fullmatch(path):
            return problem(403, "not-allowed", f"The token {who.name} may not do this: it needs an admin's.")
        scope["loom.caller"] = who
        return None

    def _bearer(self, authorization: str) -> Identity | None:
        scheme, _, given = authorization.partition(" ")
        return self._tokens.who(given.strip()) if scheme.lower() == "bearer" else None

    def _session(self, headers: Headers) -> Identity | None:
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return None
        return self._tokens.session(cookie.value, time.time()) if cookie is not None else None


def _from_our_page(scope: Scope, headers: Headers, origin_needed: bool) -> bool:
    """Whether a browser says that our own page sent this. SameSite is not enough: another port of this host
    is the same site, and cookies do not know ports."""
    fetch_site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if fetch_site is not None:
        return fetch_site in ("same-origin", "none") and (origin is None or _is_ours(scope, headers, origin))
    return _is_ours(scope, headers, origin) if origin is not None else not origin_needed


def _is_ours(scope: Scope, headers: Headers, origin: str) -> bool:
    parts = urllib.parse.urlsplit(origin)
    return parts.scheme == scope["scheme"] and parts.netloc.lower() == headers.get("host", "").lower()


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


def identity(request: Request) -> Identity:
    """Who asks, as the guard found out."""
    who: Identity = request.scope["loom.caller"]
    return who


def caller(request: Request) -> str:
    """The name for the audit: that of the token, because only that is proven."""
    return identity(request).name
