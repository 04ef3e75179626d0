"""Completes the OpenAPI document: security, and every error that any route may answer with. Owns no route."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.routing import compile_path

from torchloom.api.access_guard import OPEN_PATHS, PREFIX
from torchloom.api.schemas.bodies import Problem

_ERRORS = {
    "400": "The request is not HTTP as it should be",
    "401": "No valid token",
    "403": "Not allowed with this token, from this page, or under this Host",
    "404": "There is no such thing",
    "405": "The path does not know this method",
    "409": "Somebody was first, or the state does not allow it now",
    "413": "The body is too large",
    "422": "The request is invalid; `field` says where",
    "500": "A mistake of ours",
    "503": "NATS or the node is unreachable, or the service is catching up; try again",
    "504": "No answer in time; the outcome is unknown",
}


def complete(app: FastAPI) -> None:
    """Make app.openapi() return the complete document."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _make(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _make(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title=app.title, version=app.version, routes=app.routes, description=app.description
    )
    parts = document.setdefault("components", {})
    schemas = parts.setdefault("schemas", {})
    schemas["Problem"] = Problem.model_json_schema()
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    answer = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            if path.removeprefix(PREFIX) not in OPEN_PATHS:
                operation["security"] = [{"token": []}]
            _describe_stream(operation["responses"])
            for status, says in _ERRORS.items():
                operation["responses"][status] = {"description": says, "content": answer}
    return document


def _describe_stream(responses: dict[str, Any]) -> None:
    """One event of a stream: its data is a text that holds JSON."""
    stream = responses.get("200", {}).get("content", {}).get("text/event-stream")
    if stream is not None:
        data = {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {k: v for k, v in stream["schema"].items() if k not in ("type", "title")},
        }
        text = {"type": "string"}
        stream["schema"] = {
            "type": "object",
            "properties": {"event": text, "id": text, "data": data},
            "required": ["data"],
        }


def methods_by_path(app: FastAPI) -> Callable[[str], str]:
    """A function from a path to the value of `Allow`. Starlette alone would name one route's methods only."""
    table: list[tuple[re.Pattern[str], str]] = []

    def allow(path: str) -> str:
        if not table:
            for template, operations in app.openapi()["paths"].items():
                regex, _, _ = compile_path(template.removeprefix(PREFIX))
                table.append((regex, ", ".join(method.upper() for method in operations)))
            table.sort(key=lambda entry: "(?P<" in entry[0].pattern)  # a path in plain words comes first
        bare = path.removeprefix(PREFIX)
        return next((methods for regex, methods in table if regex.match(bare)), "")

    return allow
