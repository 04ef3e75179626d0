"""Receivers of incidents: their file, what they get, and that nothing is lost or sent in vain."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from torchloom.errors import UsageError
from torchloom.export.delivery import outcome, wait_s
from torchloom.export.notify import Notifier
from torchloom.export.webhooks import Webhook, message, read_webhooks


class Receiver:
    """A real HTTP server that answers as it is told and keeps what it got."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.got: list[tuple[dict[str, str], bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.got.append(({k.lower(): v for k, v in self.headers.items()}, body))
                self.send_response(outer.answers.pop(0) if outer.answers else 204)
                self.send_header("Location", "http://127.0.0.1:1/elsewhere")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook?a=b"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(body) for _, body in self.got]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.shutdown()
    made.server.server_close()


def incident(id: str = "train.1", **changes: Any) -> dict[str, Any]:
    return {
        "id": id, "job": "train", "kind": "crash", "verdict": "rank 1 <died> & left", "decision": "restart 1",
        "open": True, "resolution": "", "action": "restart", "outcome": "", **changes,
    }  # fmt: skip


def event(*incidents: dict[str, Any], at_ns: int = 10**19) -> dict[str, Any]:
    return {"at_ns": at_ns, "incidents": list(incidents)}


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_file_names_receivers(tmp_path: Path) -> None:
    text = '[[webhook]]\nurl="https://h/x"\nformat="slack"\njobs=["train-*"]\nkinds=["hang"]\n[[webhook]]\nurl="http://g"'
    one, two = read_webhooks(write(tmp_path / "w.toml", text))
    assert (one.name, one.format, two.name, two.format) == ("h", "slack", "g", "json")
    assert one.wants(incident(job="train-3", kind="hang")) and not one.wants(incident(job="train-3"))
    assert not one.wants(incident(job="other", kind="hang")) and two.wants(incident())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no .*webhook.* entry"),
        ("webhook = 3", "no .*webhook.* entry"),
        ("[[webhook]]\nurl='ftp://x'", "begins with http"),
        ("[[webhook]]\nurl=3", "url is a text"),
        ("[[webhook]]\nurl='http://x'\nformat='xml'", "format is json or slack"),
        ("[[webhook]]\nurl='http://x'\nuri='y'", "unknown field uri"),
        ("[[webhook]]\nurl='http://x'\njobs='y'", "jobs is a list"),
        ("[[webhook", "no TOML"),
    ],
)
def test_a_bad_file_is_refused_with_its_fault(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        read_webhooks(write(tmp_path / "w.toml", text))


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="others may read"):
        read_webhooks(write(tmp_path / "w.toml", "[[webhook]]\nurl='http://x'", 0o644))


def test_a_missing_file_says_where_to_read_on(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"There is no .*w\.toml") as raised:
        read_webhooks(tmp_path / "w.toml")
    assert "docs/export.md" in raised.value.hint


def test_a_chat_gets_text_without_markup_of_the_script() -> None:
    text = message(Webhook("http://x", "slack", link="https://loom/"), "opened", incident())["text"]
    assert text == (
        "*crash* in *train*\nrank 1 &lt;died&gt; &amp; left\nDecision: restart 1\nhttps://loom/#/incident/train.1"
    )


def test_each_state_is_delivered_once_signed_and_in_order(tmp_path: Path, receiver: Receiver) -> None:
    notifier = Notifier([Webhook(receiver.url, secret="s")], tmp_path / "kept.json", lambda: 1000.0)
    notifier.take("7", event(incident()))
    notifier.take("8", event(incident(decision="another")))
    notifier.take("9", event(incident(open=False, resolution="recovered")))
    notifier.deliver_due()
    assert [body["event"] for body in receiver.bodies] == ["incident.opened", "incident.ended"]
    for headers, body in receiver.got:
        # As a receiver computes it after docs/export.md, without any function of ours.
        expected = hmac.new(b"s", b"1000." + body, hashlib.sha256).hexdigest()
        assert headers["x-loom-time"] == "1000" and headers["x-loom-signature"] == f"sha256={expected}"
    assert len({headers["x-loom-delivery"] for headers, _ in receiver.got}) == 2


def test_a_broken_receiver_is_asked_again_also_after_a_restart(tmp_path: Path, receiver: Receiver) -> None:
    now = 1000.0
    hook, file = Webhook(receiver.url), tmp_path / "kept.json"
    receiver.answers = [503, 500]
    first = Notifier([hook], file, lambda: now)
    first.take("7", event(incident()))
    assert first.deliver_due() == wait_s(1)
    second = Notifier([hook], file, lambda: now)
    assert second.place == "7" and second.deliver_due() == wait_s(1)
    now += wait_s(1)
    second.deliver_due()
    deliveries = [headers["x-loom-delivery"] for headers, _ in receiver.got]
    assert len(deliveries) == 3 and len(set(deliveries)) == 1
    third = Notifier([hook], file, lambda: now)
    third.take("7", event(incident()))
    third.deliver_due()
    assert len(receiver.got) == 3, "what was delivered is not delivered again"


def test_one_dead_receiver_does_not_hold_up_another(tmp_path: Path, receiver: Receiver) -> None:
    hooks = [Webhook("http://127.0.0.1:1/"), Webhook(receiver.url)]
    notifier = Notifier(hooks, tmp_path / "kept.json")
    notifier.take("7", event(incident()))
    notifier.deliver_due()
    assert len(receiver.got) == 1


def test_a_refusal_and_a_redirect_are_final(tmp_path: Path, receiver: Receiver) -> None:
    receiver.answers = [404, 302]
    notifier = Notifier([Webhook(receiver.url)], tmp_path / "kept.json")
    notifier.take("7", event(incident("a.1"), incident("a.2")))
    assert notifier.deliver_due() == 60.0 and len(receiver.got) == 2
    assert not outcome(429).done and not outcome(502).done and outcome(410).done


def test_incidents_from_before_the_first_start_are_not_reported(tmp_path: Path, receiver: Receiver) -> None:
    notifier = Notifier([Webhook(receiver.url)], tmp_path / "kept.json", lambda: 1000.0)
    notifier.take("3", event(incident(), at_ns=int(999e9)))
    notifier.deliver_due()
    assert not receiver.got and notifier.place == "3"


def test_a_damaged_record_of_deliveries_costs_no_start(tmp_path: Path, receiver: Receiver) -> None:
    (tmp_path / "kept.json").write_text('{"place": [')
    notifier = Notifier([Webhook(receiver.url)], tmp_path / "kept.json")
    notifier.take("7", event(incident()))
    notifier.deliver_due()
    assert len(receiver.got) == 1
    assert (tmp_path / "kept.json").stat().st_mode & 0o077 == 0
