"""Every route of the API, and paths that reach one."""

from __future__ import annotations

from torchloom.api.app import create_app
from torchloom.api.tokens import Tokens
from torchloom.bus.memory import MemoryBus, MemoryHub
from torchloom.weaver.service import Weaver


def table() -> list[tuple[str, str]]:
    """Every path and method that the application answers, made from its own routes."""
    app = create_app(Weaver(MemoryBus(MemoryHub())), Tokens("x"), "0")
    found: list[tuple[str, str]] = []

    def walk(routes: list[object], prefix: str) -> None:
        for route in routes:
            inner = getattr(route, "original_router", None)
            if inner is not None:
                walk(list(inner.routes), prefix + str(getattr(route.include_context, "prefix", "")))  # type: ignore[attr-defined]
            elif getattr(route, "methods", None):
                found.extend((method, prefix + route.path) for method in sorted(route.methods))  # type: ignore[attr-defined]

    walk(list(app.routes), "")
    return found


ROUTES = table()


def filled(path: str) -> str:
    names = {
        "{job}": "nobody",
        "{incident}": "nothing",
        "{name}": "nobody",
        "{operation}": "0a",
        "{node}": "nowhere",
        "{device}": "no-such-device",
    }
    for place, name in names.items():
        path = path.replace(place, name)
    assert "{" not in path, "a place that this test does not know"
    return path
