"""What following a job does with a service that is late: Ctrl-C is said again, and no line is left out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from torchloom.cli.jobs import follow
from torchloom.cli.jobs.follow import Follower
from torchloom.client import Endpoint


class Late(BaseHTTPRequestHandler):
    """A service that is catching up when it is asked for the first time."""

    asked: list[str]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.asked.append(self.path)
        late = len(self.asked) == 1
        body = {"type": "urn:torchloom:unavailable", "detail": "catching up"} if late else {}
        data = json.dumps(body).encode()
        self.send_response(503 if late else 202)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def service() -> Iterator[tuple[Endpoint, list[str]]]:
    asked: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("LateHere", (Late,), {"asked": asked}))
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield Endpoint(f"http://127.0.0.1:{server.server_port}", "token"), asked
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_service_that_is_catching_up_is_told_again_to_stop_the_job(
    service: tuple[Endpoint, list[str]],
) -> None:
    endpoint, asked = service
    follower = Follower(endpoint, "j", None, None, quiet=False)
    follower._stop(kill=False)
    assert len(asked) == 2, "asked until it was heard"
    assert follower._queue.empty(), "nothing went wrong"


def test_lines_that_have_come_are_shown_however_late_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(follow, "LAST_WORDS_WITHIN_S", -1.0)  # as if it had stood still since the end
    follower = Follower(Endpoint("http://127.0.0.1:1", ""), "j", None, None, quiet=False)
    monkeypatch.setattr(follower, "_show_job", lambda view: None)
    follower._queue.put(("job", {"ended": True, "state": "completed"}))
    for n in range(3):
        follower._queue.put(("log", {"rank": 0, "text": f"line {n}\n", "lost_bytes": 0, "at_ns": 1}))
    assert follower._show()["state"] == "completed"
    assert "line 2" in capsys.readouterr().out
