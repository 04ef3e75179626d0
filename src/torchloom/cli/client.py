"""The HTTP client of the command line: synchronous and quick to import. Owns no verb, prints nothing."""

from __future__ import annotations

import http.client
import json
import os
import pwd
import time
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torchloom.errors import Conflict, LoomError, NotAllowed, NotFound, TimedOut, UsageError
from torchloom.home import Home

PREFIX = "/api/v1"
TIMEOUT_S = 20.0
PATIENCE_S = 5.0


class NotAnswering(TimedOut):
    """Nobody is there, or the connection broke; the same request may be tried again."""


class Unavailable(TimedOut):
    """The service is there and cannot say now: it is catching up, or without its bus."""


_KINDS: dict[str, type[LoomError]] = {
    "usage": UsageError,
    "not-found": NotFound,
    "not-allowed": NotAllowed,
    "conflict": Conflict,
    "unavailable": Unavailable,
    "timed-out": TimedOut,
}


class NothingHere(NotFound):
    """No stack was ever started for this home, or it was ended."""


@dataclass(frozen=True)
class Endpoint:
    url: str
    token: str

    @classmethod
    def find(cls, home: Home) -> Endpoint:
        """LOOM_ADDRESS, else what runs for this home."""
        from torchloom.cli.plan import Plan, read_token

        chosen = os.environ.get("LOOM_ADDRESS")
        if chosen:
            return cls(chosen if "://" in chosen else f"http://{chosen}", read_token(home))
        plan = Plan.read(home)
        if plan is None:
            raise NothingHere(f"torchloom is not running for {home.root}", hint="start it with `loom up`")
        return cls(plan.url, read_token(home))


class Api:
    """One connection, kept open. Not for use by several threads."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        parts = urllib.parse.urlsplit(endpoint.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(
                "The address of torchloom is not of the form http://host:port", hint="correct LOOM_ADDRESS"
            )
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._base = parts.path.rstrip("/") + PREFIX
        self._connection: http.client.HTTPConnection | None = None

    def get(self, path: str, timeout_s: float = TIMEOUT_S, **query: object) -> Any:
        """Ask; a service that was just started is given a moment to catch up."""
        deadline = time.monotonic() + min(timeout_s, PATIENCE_S)
        while True:
            try:
                return self._call("GET", path, query, None, timeout_s)
            except Unavailable:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.05)

    def post(self, path: str, body: object) -> Any:
        return self._call("POST", path, {}, body, TIMEOUT_S)

    def delete(self, path: str) -> None:
        self._call("DELETE", path, {}, None, TIMEOUT_S)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _call(self, method: str, path: str, query: dict[str, object], body: object, timeout_s: float) -> Any:
        response = self._send(method, path, query, body, timeout_s, {})
        try:
            data = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._away(error) from error
        if response.status >= 400:
            raise _error(response.status, data)
        return json.loads(data) if data else None

    def stream(self, path: str, last_id: str, **query: object) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Server-sent events as (kind, id, body) until the stream ends or the connection breaks."""
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_id} if last_id else {})
        response = self._send("GET", path, query, None, TIMEOUT_S, headers)
        if response.status >= 400:
            raise _error(response.status, response.read())
        kind, id, data = "message", "", ""
        try:
            for raw in response:
                line = raw.decode().rstrip("\n")
                name, _, value = line.partition(": ")
                match name:
                    case "event":
                        kind = value
                    case "id":
                        id = value
                    case "data":
                        data = value
                    case "" if not value and data:
                        yield kind, id, json.loads(data)
                        kind, data = "message", ""
        except (OSError, http.client.HTTPException) as error:
            raise self._away(error) from error

    def _send(
        self,
        method: str,
        path: str,
        query: dict[str, object],
        body: object,
        timeout_s: float,
        headers: dict[str, str],
    ) -> http.client.HTTPResponse:
        given = {name: value for name, value in query.items() if value is not None}
        target = self._base + path + (f"?{urllib.parse.urlencode(given)}" if given else "")
        headers = headers | {"Authorization": f"Bearer {self._endpoint.token}", "User-Agent": _who()}
        payload = None
        if body is not None:
            payload = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        fresh = self._connection is None
        try:
            connection = self._connect(timeout_s)
            try:
                connection.request(method, target, payload, headers)
                return connection.getresponse()
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                # A kept connection may have been closed meanwhile; a request that was read is never repeated
                # for POST, because it may have been done.
                if fresh or method != "GET":
                    raise
                self.close()
                connection = self._connect(timeout_s)
                connection.request(method, target, payload, headers)
                return connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise self._away(error) from error

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._connection is None:
            kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
            self._connection = kind(self._host, self._port, timeout=timeout_s)
        self._connection.timeout = timeout_s
        if self._connection.sock is not None:
            self._connection.sock.settimeout(timeout_s)
        return self._connection

    def _away(self, error: Exception) -> NotAnswering:
        self.close()
        return NotAnswering(
            f"torchloom does not answer at {self._endpoint.url}", hint="start it with `loom up`"
        )


def _who() -> str:
    """Who asks, for the audit. The token is the proof, this is only a name."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = f"uid {os.getuid()}"
    return f"{user} with loom" if user.isascii() else "loom"


def _error(status: int, data: bytes) -> LoomError:
    """The error class that the server's problem document names."""
    try:
        found = json.loads(data)
        kind, detail = str(found["type"]).rpartition(":")[2], str(found["detail"])
    except (ValueError, KeyError, TypeError):
        return LoomError(f"torchloom answered with HTTP status {status} and no reason.")
    return _KINDS.get(kind, LoomError)(detail)
