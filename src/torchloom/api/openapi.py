"""Completes the OpenAPI document: security, and every error that any route may answer with. Owns no route."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from torchloom.api.guard import OPEN_PATHS, PREFIX
from torchloom.api.schemas import Problem

_ERRORS = {
    "400": "The request is not HTTP as it should be",
    "401": "No valid token",
    "403": "Not allowed with this token, from this page, or under this Host",
    "404": "There is no such thing",
    "405": "The path does not know this method",
    "409": "Somebody was first, or the state does not allow it now",
    "413": "The body is too large",
    "422": "The request makes no sense as given; `field` says where",
    "500": "A mistake of ours",
    "503": "NATS or the node is away, or the service is catching up; try again",
    "504": "No answer in time; the outcome is unknown",
}


def complete(app: FastAPI) -> None:
    """Make app.openapi() tell everything."""

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
            for status, says in _ERRORS.items():
                operation["responses"][status] = {"description": says, "content": answer}
    return document
