"""Who may speak to the API: token or session, origin, Host header, path, size of a body. Owns no route.

Plain ASGI middleware, so that a refused request costs nothing and a stream is never buffered. It finds out
who asks; what that role may do is decided on the matched route (`roles.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
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

BODY_WITHIN_S = 30.0
"""How long to wait for the next piece of a body."""

PREFIX = "/api/v1"
OPEN_PATHS = frozenset(
    {"/health", "/health/live", "/health/ready", "/login", "/join", "/join/pod", "/join/ca"}
)
"""Paths that need no token: they report only what everybody may know, or take a token of their own."""
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
COOKIE = "loom_session"

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})
_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\[\]:/@\s]+))(?::[0-9]{1,5})?", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")

LOOK_AGAIN_S = 1.0
"""How often an open stream asks whether its token is still valid."""
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"content-security-policy", b"frame-ancestors 'none'"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)
"""Sent with every answer unless the answer has its own."""


class AccessGuard:
    """Refuse a request with a wrong Host, no valid token or too large a body, before any route sees it."""

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
        send = _with_headers(send)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        with contextlib.suppress(_Revoked):
            await self._app(scope, _Bounded(receive), self._while_allowed(scope, send))

    def _while_allowed(self, scope: Scope, send: Send) -> Send:
        """End a long-lived answer (a stream) once its caller's token or session has ended."""
        if "loom.caller" not in scope:
            return send
        headers, looked_s = Headers(scope=scope), time.monotonic()

        async def sent(message: Message) -> None:
            nonlocal looked_s
            if message.get("more_body") and time.monotonic() - looked_s >= LOOK_AGAIN_S:
                looked_s = time.monotonic()
                if self._who(headers) is None:
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                    raise _Revoked
            await send(message)

        return sent

    def _refuse(self, scope: Scope, headers: Headers) -> Response | None:
        # A foreign name in Host is how a web page reaches a loopback service by DNS rebinding.
        if _host_name(headers.get("host", "")) not in self._hosts:
            return problem(403, "not-allowed", "This Host header is not one of ours: use the address itself.")
        if _CONTROL.search(scope["path"]):
            return problem(400, "usage", "The path holds a control character.")
        path = scope["path"].removeprefix(PREFIX)
        if path in OPEN_PATHS:
            if path in ("/login", "/join", "/join/pod") and not _from_our_page(
                scope, headers, origin_needed=False
            ):
                return problem(403, "not-allowed", "Another site's page cannot use this.")
        else:
            refusal = self._refuse_caller(scope, headers)
            if refusal is not None:
                return refusal
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 18 or int(length) > MAX_BODY_BYTES:
            return problem(413, "usage", f"The body is larger than {MAX_BODY_BYTES} bytes.")
        return None

    def _refuse_caller(self, scope: Scope, headers: Headers) -> Response | None:
        changes = scope["method"] not in SAFE_METHODS
        who = self._who(headers)
        by_session = who is not None and "authorization" not in headers
        if by_session and changes and not _from_our_page(scope, headers, origin_needed=True):
            return problem(403, "not-allowed", "A session may change things only from our own page.")
        if who is None:
            return problem(
                401,
                "not-allowed",
                "A valid token is needed: `loom` takes LOOM_TOKEN, a context's or LOOM_HOME/token; "
                "a request has it in its header `Authorization: Bearer`.",
                {"WWW-Authenticate": "Bearer"},
            )
        scope["loom.caller"] = who
        return None

    def _who(self, headers: Headers) -> Identity | None:
        """Whose token or session this is. A wrong token is refused even if a valid cookie comes with it."""
        given = headers.get("authorization")
        return self._session(headers) if given is None else self._bearer(given)

    def _bearer(self, authorization: str) -> Identity | None:
        scheme, _, given = authorization.partition(" ")
        return self._tokens.who(given.strip()) if scheme.lower() == "bearer" else None

    def _session(self, headers: Headers) -> Identity | None:
        cookie = session_of(headers)
        return self._tokens.session(cookie, time.time()) if cookie else None


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


class _Revoked(Exception):
    """The caller's token ended while its answer was being sent."""


def session_of(headers: Headers) -> str:
    """The session cookie as it was sent, valid or not; empty if there is none."""
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return cookie.value if cookie is not None else ""


def _with_headers(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            has = {name.lower() for name, _ in message.get("headers", ())}
            own = [pair for pair in HEADERS if pair[0] not in has]
            message = {**message, "headers": [*message.get("headers", ()), *own]}
        await send(message)

    return sent


class _Bounded:
    """Cut off a body that is too large, whatever its content-length says, or that does not arrive."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._seen = 0
        self._whole = False

    async def __call__(self) -> Message:
        try:
            # Once the body is complete, wait only for the client to disconnect, as long as a stream lasts.
            async with asyncio.timeout(None if self._whole else BODY_WITHIN_S):
                message = await self._receive()
        except TimeoutError:
            return {"type": "http.disconnect"}
        self._whole = not message.get("more_body", False)
        self._seen += len(message.get("body", b""))
        if self._seen > MAX_BODY_BYTES:
            return {"type": "http.disconnect"}
        return message


def _host_name(host: str) -> str:
    """The name in a Host header, without its port; empty for one that is malformed, such as `[::1].evil`."""
    found = _HOST.fullmatch(host)
    return (found[1] or found[2]).lower() if found else ""


def identity(request: Request) -> Identity:
    """Who asks, as the guard found out."""
    who: Identity = request.scope["loom.caller"]
    return who


def caller(request: Request) -> str:
    """The name for the audit: that of the token, because only that is proven."""
    return identity(request).name
