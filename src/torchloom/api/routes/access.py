"""Routes about access: a browser's session, who I am, named tokens. The guard decides who may call them."""

from __future__ import annotations

import logging
import time

from fastapi import APIRouter, Request, Response

from torchloom.api.access_guard import COOKIE, caller, identity, session_of
from torchloom.api.codes import CODE_S, Codes
from torchloom.api.page import is_built
from torchloom.api.schemas.bodies import (
    Identity,
    JobId,
    LoginLink,
    LoginRequest,
    TokenMade,
    TokenRequest,
    TokenView,
)
from torchloom.api.tokens import SESSION_S, Tokens
from torchloom.errors import NotAllowed, UsageError

log = logging.getLogger(__name__)


def routes(tokens: Tokens) -> APIRouter:
    router = APIRouter(tags=["access"])
    codes = Codes()

    @router.post("/login", operation_id="login")
    async def login(body: LoginRequest, request: Request, response: Response) -> Identity:
        """Exchange a token, or a one-time code of `/login/link`, for a session cookie, so that a browser need
        not keep the token."""
        who = _who(tokens, codes, body)
        response.set_cookie(
            COOKIE,
            tokens.new_session(who, time.time()),
            max_age=SESSION_S,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return who

    @router.post("/login/link", operation_id="loginLink")
    async def link(request: Request) -> LoginLink:
        """A one-time code that signs a browser in as the caller. The page takes it from a link's fragment:
        `/#/sign-in/CODE`."""
        code = codes.make(identity(request), time.time())
        return LoginLink(code=code, valid_s=CODE_S, page=is_built())

    @router.post("/logout", status_code=204, operation_id="logout")
    async def logout(request: Request, response: Response) -> None:
        """End the session: its cookie is invalid from now on, wherever it was copied to."""
        tokens.end_session(session_of(request.headers), time.time())
        response.delete_cookie(COOKIE, httponly=True, samesite="strict")

    @router.get("/whoami", operation_id="whoami")
    async def whoami(request: Request) -> Identity:
        return identity(request)

    @router.get("/tokens", operation_id="tokens")
    async def all_tokens() -> list[TokenView]:
        return tokens.all()

    @router.post("/tokens", status_code=201, operation_id="makeToken")
    async def make(body: TokenRequest, request: Request) -> TokenMade:
        made = tokens.add(body.name, body.role)
        log.warning("%s made the token %s with the role %s", caller(request), body.name, body.role)
        return made

    @router.delete("/tokens/{name}", status_code=204, operation_id="removeToken")
    async def remove(name: JobId, request: Request) -> None:
        tokens.remove(name)
        log.warning("%s removed the token %s", caller(request), name)

    return router


def _who(tokens: Tokens, codes: Codes, body: LoginRequest) -> Identity:
    if (body.token is None) == (body.code is None):
        raise UsageError("Give either `token` or `code`.")
    if body.token is not None:
        who = tokens.who(body.token)
        if who is None:
            raise NotAllowed("This is not a valid token", hint="`loom token` shows yours")
        return who
    who = codes.take(body.code or "", time.time())
    known = {(one.name, one.role) for one in tokens.all()}
    if who is None or (who.name, who.role) not in known:
        raise NotAllowed("This link was used before or is too old", hint="`loom open` prints a new one")
    return who
