"""HTTP with a token, problem documents as errors, and server-sent events. Knows no route of the API.

The standard library's client: it is imported in a quarter of the time of any other, and a command line is
started often.
"""

from __future__ import annotations

import http.client
import json
import os
import pwd
import socket
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torchloom import terminal
from torchloom.client.endpoint import Endpoint
from torchloom.errors import Conflict, LoomError, NotAllowed, NotFound, TimedOut, UsageError
from torchloom.terminal import all_visible, visible

if TYPE_CHECKING:
    import ssl

PREFIX = "/api/v1"
TIMEOUT_S = 20.0
PATIENCE_S = 5.0
"""How long to retry while the service is still catching up."""
FIRST_PAUSE_S = 0.025
RETRY_AFTER_S, LONGEST_PAUSE_S = 1.0, 2.0
"""Between two tries if the service names no interval, and the longest interval."""


class NotAnswering(TimedOut):
    """The service is unreachable, or the connection broke; the same request may be tried again."""


class Unavailable(TimedOut):
    """The service is reachable but cannot answer now: it is catching up, or has lost its bus."""

    retry_after_s: float = RETRY_AFTER_S
    """When the service wants the next try."""


_KINDS: dict[str, type[LoomError]] = {
    "usage": UsageError,
    "not-found": NotFound,
    "not-allowed": NotAllowed,
    "conflict": Conflict,
    "unavailable": Unavailable,
    "timed-out": TimedOut,
}

Event = tuple[str, str, dict[str, Any]]
"""Kind, id, body."""


class Transport:
    """One connection, kept open. Not for use by several threads."""

    def __init__(self, endpoint: Endpoint, timeout_s: float = TIMEOUT_S) -> None:
        self.endpoint = endpoint
        self.timeout_s = timeout_s
        """For each read from the connection, so a stream may last longer; may be changed at any time."""
        parts = urllib.parse.urlsplit(endpoint.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(
                "The address of torchloom is not of the form http://host:port",
                hint="correct LOOM_ADDRESS or the context",
            )
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._base = parts.path.rstrip("/") + PREFIX
        self._connection: http.client.HTTPConnection | None = None
        self.keep_text = False
        """Leave `text` fields as they are on a terminal too: for a caller that makes logs safe by itself."""
        self.next_cursor = ""
        """The cursor of the next page of the last list; empty if that was the last page."""

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        body: object = None,
        headers: Mapping[str, str | None] | None = None,
    ) -> Any:
        """One answer, decoded. Requests that only read are retried while the service is catching up."""
        deadline = time.monotonic() + min(self.timeout_s, PATIENCE_S)
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                return self._answer(method, path, query or {}, body, headers or {})
            except Unavailable as error:
                if method != "GET" or time.monotonic() > deadline:
                    raise
                # Soon at first, as most services are back in a moment; then at the interval it asks for.
                # With jitter, because other refused clients wait too.
                pause_s = min(pause_s * 2, error.retry_after_s)
            from random import uniform  # here: it takes a while to import, and most commands never wait

            time.sleep(pause_s * uniform(0.5, 1.5))

    def stream(
        self,
        path: str,
        last_id: str | None = None,
        /,
        **query: object,
    ) -> Iterator[Event]:
        """Server-sent events until the stream ends or the connection breaks (NotAnswering)."""
        headers = {"Accept": "text/event-stream", "Last-Event-ID": last_id or None}
        response = self._send("GET", path, query, None, headers)
        try:
            if response.status >= 400:
                raise problem_error(response.status, response.read())
            for kind, id, body in read_events(response):
                yield kind, id, self._as_shown(body)
        except (OSError, http.client.HTTPException) as error:
            raise self._away() from error

    def _answer(
        self,
        method: str,
        path: str,
        query: Mapping[str, object],
        body: object,
        headers: Mapping[str, str | None],
    ) -> Any:
        response = self._send(method, path, query, body, headers)
        try:
            data = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise self._away() from error
        if response.status >= 400:
            raise problem_error(response.status, data, response.headers.get("Retry-After", ""))
        self.next_cursor = response.headers.get("X-Next-Cursor", "")
        if not data:
            return None
        if "json" not in response.headers.get("Content-Type", ""):
            return self._as_shown(data.decode(errors="replace"))
        return self._as_shown(json.loads(data))

    def _as_shown(self, value: Any) -> Any:
        """In a program that shows it on a terminal, control characters do nothing there."""
        return all_visible(value, self.keep_text) if terminal.in_use else value

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, object],
        body: object,
        headers: Mapping[str, str | None],
    ) -> http.client.HTTPResponse:
        check_names(path)
        target = self._base + path + encode_query(query)
        sent = {name: value for name, value in headers.items() if value is not None}
        sent |= {"Authorization": f"Bearer {self.endpoint.token}", "User-Agent": _who()}
        payload = None
        if body is not None:
            payload = json.dumps(body).encode()
            sent["Content-Type"] = "application/json"
        fresh = self._connection is None
        try:
            connection = self._connect()
            try:
                connection.request(method, target, payload, sent)
                return connection.getresponse()
            except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                # A kept connection may have been closed meanwhile; a request that was read is never repeated
                # for POST, because it may have been done.
                if fresh or method != "GET":
                    raise
                self.close()
                connection = self._connect()
                connection.request(method, target, payload, sent)
                return connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            if self._secure:
                self._check_proof(error)
            raise self._away() from error
        except (UnicodeError, ValueError) as error:
            # What a header cannot carry, a token with a line break for instance. The value is not repeated.
            raise UsageError("The address or the token holds a character that HTTP cannot carry.") from error

    def _connect(self) -> http.client.HTTPConnection:
        if self._connection is None:
            self._connection = self._new_connection()
        self._connection.timeout = self.timeout_s
        opened: socket.socket | None = self._connection.sock
        if opened is None:
            self._connection.connect()
            self._check_owner(self._connection.sock)
        else:
            opened.settimeout(self.timeout_s)
        return self._connection

    def _new_connection(self) -> http.client.HTTPConnection:
        if not self._secure:
            return http.client.HTTPConnection(self._host, self._port, timeout=self.timeout_s)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=self.timeout_s, context=trusted(self.endpoint.ca)
        )

    def _check_owner(self, connection: Any) -> None:
        """Whose process would get the token? Asked for each new connection, before its first byte."""
        if self.endpoint.owner is None:
            return
        from torchloom.peer import owner_of_peer

        found = owner_of_peer(connection)
        if found != self.endpoint.owner:
            self.close()
            whose = "an unknown user" if found is None else f"user {found}"
            raise NotAllowed(
                f"A process of {whose} answers at {self.endpoint.url}, not torchloom's; no token was sent",
                hint="start torchloom with `loom up`, on another --port if this one stays taken",
            )

    def _check_proof(self, error: Exception) -> None:
        import ssl

        if isinstance(error, ssl.SSLCertVerificationError):
            self.close()
            raise NotAllowed(
                f"the service at {self.endpoint.url} cannot prove that it is torchloom's "
                f"({error.verify_message}); no token was sent",
                hint="name its certificate authority with LOOM_CA, or correct the address",
            ) from None

    def _away(self) -> NotAnswering:
        self.close()
        return NotAnswering(
            f"torchloom does not answer at {self.endpoint.url}",
            hint="start it with `loom up`, or choose another with --context or LOOM_ADDRESS",
        )


def trusted(ca: str) -> ssl.SSLContext:
    """Checks servers by the authorities in this file, or by the system's. Read anew for every connection."""
    import ssl

    try:
        return ssl.create_default_context(cafile=ca or None)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"{ca} cannot be used to check the server ({error})", hint="correct LOOM_CA"
        ) from None


def check_names(path: str) -> None:
    """Refuse a path in which a name would be read as something else: the route of another operation."""
    for part in path.removeprefix("/").split("/"):
        name = urllib.parse.unquote(part)
        if "/" in name or name in ("", ".", ".."):
            raise NotFound(f"There is nothing with the name {visible(name[:80])!r}")


def encode_query(query: Mapping[str, object]) -> str:
    """`?a=1&b=true`; what is None is left out, and a list repeats its name."""
    pairs: list[tuple[str, str]] = []
    for name, value in query.items():
        for one in value if isinstance(value, (list, tuple)) else (value,):
            if one is not None:
                pairs.append((name, str(one).lower() if isinstance(one, bool) else str(one)))
    return f"?{urllib.parse.urlencode(pairs)}" if pairs else ""


def read_events(lines: Iterator[bytes] | http.client.HTTPResponse) -> Iterator[Event]:
    """Server-sent events from the lines of a response. Comments only keep the connection alive."""
    kind, id, data = "message", "", ""
    for raw in lines:
        line = raw.decode(errors="replace").rstrip("\r\n")
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                yield kind, id, json.loads(data)
            kind, data = "message", ""
        elif name == "event":
            kind = value
        elif name == "id":
            id = value
        elif name == "data":
            data = f"{data}\n{value}" if data else value


def problem_error(status: int, data: bytes, retry_after: str = "") -> LoomError:
    """The error class that the server's problem document names."""
    try:
        found = json.loads(data)
        kind, detail = str(found["type"]).rpartition(":")[2], str(found["detail"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return LoomError(f"torchloom answered with HTTP status {status} and no reason.")
    shown = visible if terminal.in_use else str
    error = _KINDS.get(kind, LoomError)(shown(detail))
    if isinstance(error, UsageError):
        error.field, error.fault = str(found.get("field", "")), shown(str(found.get("fault", "")))
    if isinstance(error, Unavailable) and retry_after.isdecimal():
        error.retry_after_s = min(float(retry_after), LONGEST_PAUSE_S)
    return error


def _who() -> str:
    """Who asks, for the audit. The token is the proof, this is only a name."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = f"uid {os.getuid()}"
    return f"{user} with loom" if user.isascii() else "loom"
