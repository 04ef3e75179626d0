"""Serves the page: the built files of torchloom/web, at `/` and `/assets/`. Owns its security headers.

Plain ASGI middleware around the guard, because the files are the same for everybody and hold no data: the
page asks the API for everything, and the guard decides there. Only files that the build made are served,
looked up by name in a table, so no request can name another file. Links inside the page are fragments
(`/#/job/…`), so the page also works under a prefix that a proxy adds.
"""

from __future__ import annotations

import gzip
import mimetypes
from dataclasses import dataclass
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

DIST = Path(__file__).resolve().parents[1] / "web" / "dist"
INDEX = "/"
MISSING = (
    "<!doctype html><html lang=en><meta charset=utf-8><title>torchloom</title>"
    "<p>The page has not been built: that needs Node 20 or newer at <code>make setup</code>."
    "<p>Everything else works without it: <code>loom ps</code>, <code>loom status JOB</code>, "
    "and the API under <code>/api/v1</code>."
)
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True)
class _File:
    data: bytes
    zipped: bytes
    kind: str


class Page:
    """Answers for the page's own files; passes everything else on."""

    def __init__(self, app: ASGIApp, root: Path = DIST) -> None:
        self._app = app
        self._root = root
        self._files: dict[str, _File] = {}
        self._stamp = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        is_ours = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        if not is_ours or not (path in (INDEX, "/favicon.svg") or path.startswith("/assets/")):
            await self._app(scope, receive, send)
            return
        await self._answer(path, Headers(scope=scope))(scope, receive, send)

    def _answer(self, path: str, headers: Headers) -> Response:
        self._load()
        found = self._files.get(path)
        if found is None:
            text, status = (MISSING, 200) if path == INDEX else ("There is no such file.", 404)
            kind = "text/html" if path == INDEX else "text/plain"
            return Response(text, status, {**HEADERS, "Cache-Control": "no-store"}, kind)
        # The name of an asset has a hash of its content in it; the index names the newest ones.
        cache = "public, max-age=31536000, immutable" if path.startswith("/assets/") else "no-cache"
        sent = {**HEADERS, "Cache-Control": cache, "Vary": "Accept-Encoding"}
        if "gzip" in headers.get("accept-encoding", ""):
            return Response(found.zipped, 200, {**sent, "Content-Encoding": "gzip"}, found.kind)
        return Response(found.data, 200, sent, found.kind)

    def _load(self) -> None:
        """Read the build once, and again when it was made anew."""
        try:
            stamp = (self._root / "index.html").stat().st_mtime_ns
        except OSError:
            self._files, self._stamp = {}, 0
            return
        if stamp == self._stamp:
            return
        files = {}
        for file in self._root.rglob("*"):
            if file.is_file():
                name = "/" + file.relative_to(self._root).as_posix()
                data = file.read_bytes()
                kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
                kind = "text/javascript" if file.suffix == ".js" else kind
                files[INDEX if name == "/index.html" else name] = _File(data, gzip.compress(data, 9), kind)
        self._files, self._stamp = files, stamp


def is_built(root: Path = DIST) -> bool:
    return (root / "index.html").is_file()
