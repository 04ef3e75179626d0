"""The client against a real HTTP server of a few lines: errors, retries, streams, what is sent."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

import pytest

from torchloom.cli.show.wording import option_of, sentence
from torchloom.client import Client, Endpoint, NotAnswering, Unavailable, transport
from torchloom.client.transport import encode_query, problem_error, read_events
from torchloom.errors import Conflict, LoomError, NotAllowed, NotFound, TimedOut, UsageError

Answer = tuple[int, str, bytes]


class Server:
    """Answers with what `reply` says and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.reply: Callable[[int], Answer] = lambda _: (200, "application/json", b"{}")
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.asked.append((self.command, self.path, dict(self.headers), body))
                status, kind, data = outer.reply(len(outer.asked))
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_DELETE = _answer

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(Endpoint(server.url, "hush"), timeout_s=240.0) as made:
        yield made


def problem(kind: str, detail: str = "It went wrong.") -> bytes:
    return json.dumps({"type": f"urn:torchloom:{kind}", "detail": detail}).encode()


def test_token_path_query_and_body(server: Server, client: Client) -> None:
    client.job("..a b?x", wait_s=0.5)
    client.stop("j", {"kill": True})
    (get, path, headers, _), (post, _, _, body) = server.asked
    assert (get, path) == ("GET", "/api/v1/jobs/..a%20b%3Fx?wait_s=0.5")
    assert headers["Authorization"] == "Bearer hush" and headers["User-Agent"].endswith("loom")
    assert post == "POST" and json.loads(body) == {"kill": True}


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("usage", UsageError),
        ("not-found", NotFound),
        ("not-allowed", NotAllowed),
        ("conflict", Conflict),
        ("timed-out", TimedOut),
        ("of-a-newer-version", LoomError),
    ],
)
def test_problems_are_errors_of_ours(
    server: Server, client: Client, kind: str, error: type[LoomError]
) -> None:
    server.reply = lambda _: (400, "application/problem+json", problem(kind))
    with pytest.raises(error, match="It went wrong"):
        client.nodes()


def test_a_mistake_in_a_field_is_told_in_the_words_of_the_command_line() -> None:
    said = {"type": "urn:torchloom:usage", "detail": "limits.hang_act_s must be more than 0."}
    more = {"field": "limits.hang_act_s", "fault": "must be more than 0."}
    error = problem_error(422, json.dumps(said | more).encode())
    assert isinstance(error, UsageError) and error.field == "limits.hang_act_s"
    assert sentence(error) == "--hang-act must be more than 0."
    assert str(error) == "limits.hang_act_s must be more than 0.", "for whoever calls the API"
    assert option_of("ranks.3") == "--rank"
    assert option_of("policy.cooldown_s") == "policy.cooldown_s", "in a file it is called so"
    assert sentence(problem_error(422, json.dumps(said).encode())) == said["detail"]


def test_what_is_no_problem_document_is_an_error_too() -> None:
    for data in (b"", b"<html>", b"[]", b'{"type": 1}'):
        assert "502" in str(problem_error(502, data))


def test_a_service_that_catches_up_is_asked_again(server: Server, client: Client) -> None:
    busy = (503, "application/problem+json", problem("unavailable"))
    server.reply = lambda count: busy if count < 3 else (200, "application/json", b"[]")
    assert client.nodes() == [] and len(server.asked) == 3


def test_a_service_that_stays_busy_is_asked_ever_more_seldom(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(transport.time, "sleep", pauses.append)
    busy = (503, "application/problem+json", problem("unavailable"))
    server.reply = lambda count: busy if count < 7 else (200, "application/json", b"[]")
    monkeypatch.setattr(transport, "PATIENCE_S", 600.0)
    client.timeout_s = 600.0
    assert client.nodes() == []
    # Each of them by chance half as long, or as long again.
    wanted = (0.05, 0.1, 0.2, 0.4, 0.8, 1.0)
    assert all(w / 2 <= p <= w * 1.5 for w, p in zip(wanted, pauses, strict=True))


def test_a_service_that_stays_busy_is_not_asked_for_ever(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "PATIENCE_S", 0.1)
    server.reply = lambda _: (503, "application/problem+json", problem("unavailable"))
    with pytest.raises(Unavailable):
        client.nodes()


def test_what_the_service_asks_for_is_heeded() -> None:
    busy = problem("unavailable")
    assert [problem_error(503, busy, said).retry_after_s for said in ("2", "0", "", "Wed", "86400")] == [  # type: ignore[attr-defined]
        *(2.0, 0.0, 1.0, 1.0, 2.0)
    ]


def test_what_changes_something_is_sent_once(server: Server, client: Client) -> None:
    server.reply = lambda _: (503, "application/problem+json", problem("unavailable"))
    with pytest.raises(Unavailable):
        client.stop("j")
    assert len(server.asked) == 1


def test_nobody_there() -> None:
    with pytest.raises(NotAnswering, match="does not answer"):
        Client(Endpoint("http://127.0.0.1:9", ""), timeout_s=1.0).health()


@pytest.mark.parametrize("url", ["ftp://x", "http://", "127.0.0.1:1", ""])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(UsageError, match="http://host:port"):
        Client(Endpoint(url, ""))


def test_a_token_with_a_line_break_is_refused_without_repeating_it(server: Server) -> None:
    with pytest.raises(UsageError) as caught:
        Client(Endpoint(server.url, "hush\r\nX-Evil: 1")).health()
    assert "hush" not in str(caught.value) and server.asked == []


def test_streams(server: Server, client: Client) -> None:
    text = b': hello\n\nevent: log\nid: 0:5\ndata: {"rank": 0}\n\nevent: end\nid: 0:6\ndata: {}\n\n'
    server.reply = lambda _: (200, "text/event-stream", text)
    assert list(client.log_stream("j", rank=0, last_event_id="0:2")) == [
        ("log", "0:5", {"rank": 0}),
        ("end", "0:6", {}),
    ]
    assert server.asked[0][2]["Last-Event-ID"] == "0:2"


def test_events_by_the_letter_of_the_standard() -> None:
    lines = [b"id:7\r\n", b"data:{\r\n", b'data: "a": 1}\r\n', b"\r\n", b"event: x\n", b"\n", b"data: {}\n"]
    # Without data nothing is sent, and an event that is not ended was not received.
    assert list(read_events(iter(lines))) == [("message", "7", {"a": 1})]


def test_queries() -> None:
    assert encode_query({"a": True, "b": None, "c": ["x", "y"], "d": 1.5}) == "?a=true&c=x&c=y&d=1.5"
    assert encode_query({"a": None}) == ""


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../jobs", "/", "a/"])
def test_a_name_that_would_be_another_path_reaches_no_route(server: Server, name: str) -> None:
    with Client(Endpoint(server.url, "t")) as client:
        for ask in (client.device, client.node_gone, lambda one: client.drain_device(one, {})):
            with pytest.raises(NotFound, match="nothing with the name"):
                ask(name)
        with pytest.raises(NotFound):
            next(client.stream(f"/jobs/{name.replace('/', '%2F')}/events"))
    assert server.asked == []


@pytest.mark.parametrize("name", ["a.b", "a%2Fb", "...", "GPU-é", " "])
def test_other_names_are_sent_as_they_are(server: Server, name: str) -> None:
    with Client(Endpoint(server.url, "t")) as client:
        client.device(name)
    ((_, path, _, _),) = server.asked
    assert unquote(path) == f"/api/v1/devices/{name}"
