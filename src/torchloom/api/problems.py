"""Errors as problem+json (RFC 9457). Owns the one table between LoomError classes and HTTP statuses."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from torchloom.errors import (
    BusUnavailable,
    Conflict,
    LoomError,
    NoResponder,
    NotAllowed,
    NotFound,
    StorageFailed,
    TimedOut,
    UsageError,
)

_STATUS: tuple[tuple[type[LoomError], int, str], ...] = (
    (UsageError, 422, "usage"),
    (NotFound, 404, "not-found"),
    (NotAllowed, 403, "not-allowed"),
    (Conflict, 409, "conflict"),
    (BusUnavailable, 503, "unavailable"),
    (NoResponder, 503, "unavailable"),
    (TimedOut, 504, "timed-out"),
    (StorageFailed, 502, "store-failed"),
    (LoomError, 500, "failed"),
)
"""First match wins, so a class comes before its parent."""

_WORDS = {
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be more than {gt}",
    "missing": "is missing",
    "extra_forbidden": "is not known here",
    "string_too_long": "is longer than {max_length} characters",
    "string_too_short": "is shorter than {min_length} characters",
    "int_type": "is not a whole number",
    "int_from_float": "is not a whole number",
    "float_type": "is not a number",
    "finite_number": "is not a finite number",
    "bool_type": "is neither true nor false",
    "string_type": "is not a text",
}
"""What is wrong with a field, by pydantic's error type; other types keep pydantic's message."""

_PLAIN = {400: "usage", 401: "not-allowed", 403: "not-allowed", 404: "not-found", 405: "usage", 413: "usage"}


def problem(
    status: int, kind: str, detail: str, headers: dict[str, str] | None = None, **more: str
) -> JSONResponse:
    """One sentence as a problem document. `type` names the error class for the client to raise. `more` are
    members of the document beyond those of RFC 9457; empty ones are left out."""
    body: dict[str, object] = {
        "type": f"urn:torchloom:{kind}",
        "title": kind,
        "status": status,
        "detail": detail,
    }
    body |= {name: text for name, text in more.items() if text}
    return JSONResponse(body, status, headers, media_type="application/problem+json")


def refusal_of(error: LoomError) -> JSONResponse:
    status, kind = next((s, k) for cls, s, k in _STATUS if isinstance(error, cls))
    return problem(status, kind, str(error), {"Retry-After": "1"} if status == 503 else None)


def install(app: FastAPI, allow: Callable[[str], str]) -> None:
    """Make every error of the application a problem document. `allow` knows the methods of a path."""

    @app.exception_handler(LoomError)
    async def on_loom_error(_: Request, error: LoomError) -> JSONResponse:
        return refusal_of(error)

    @app.exception_handler(RequestValidationError)
    async def on_invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        field, fault = describe_invalid(error)
        sentence = f"{field or 'The request'} {fault}"
        return problem(422, "usage", sentence, field=field, fault=fault if field else "")

    @app.exception_handler(HTTPException)
    async def on_http(request: Request, error: HTTPException) -> JSONResponse:
        kind = _PLAIN.get(error.status_code, "failed")
        headers = dict(error.headers or {})
        if error.status_code == 405:
            headers["Allow"] = allow(request.url.path) or headers.get("Allow", "GET")
        return problem(error.status_code, kind, f"{error.detail}.", headers)

    @app.exception_handler(Exception)
    async def on_bug(_: Request, error: Exception) -> JSONResponse:
        # The traceback goes to the service's log (starlette re-raises); the caller learns only the class.
        return problem(500, "failed", f"The service failed with {type(error).__name__}; see its log.")


def describe_invalid(error: RequestValidationError) -> tuple[str, str]:
    """The field of the first mistake, and the rest of the sentence that begins with its name.

    Never repeats the input: it may hold environment values.
    """
    first = error.errors()[0]
    where = ".".join(
        str(part)[:64] for part in first["loc"] if part not in ("body", "query", "path", "header")
    )
    said = _WORDS.get(first["type"])
    if said is None:
        return where, f"is not valid: {first['msg']}."
    return where, f"{said.format_map(_plain(first.get('ctx', {})))}."


def _plain(limits: dict[str, object]) -> dict[str, object]:
    return {name: f"{value:g}" if isinstance(value, float) else value for name, value in limits.items()}
