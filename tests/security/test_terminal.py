"""A script or an API text that tries to steer the terminal of whoever looks at it."""

from __future__ import annotations

import json
import os
import pty
import select
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchloom.terminal import all_visible, visible

ATTACK = "\x1b]52;c;ZXZpbA==\x07\x1b]0;evil\x07\x1b[2J\x9b2Jclean\u202egnp.exe\x7f"
COLOURED = f"{ATTACK}\x1b[2mdim\x1b[0m\n"
DANGEROUS = [chr(c) for c in (*range(0x20), 0x7F, *range(0x80, 0xA0)) if chr(c) not in "\n\t"]


def test_what_would_steer_a_terminal_is_seen_instead() -> None:
    shown = visible(ATTACK)
    assert not any(sign in shown for sign in [*DANGEROUS, "\u202e"])
    assert "␛]52;c;ZXZpbA==␇" in shown and "\\x9b2J" in shown and "clean" in shown
    assert visible("plain\ttext\nünd 日本 🙂") == "plain\ttext\nünd 日本 🙂"
    assert all_visible({"reason": "a\rb", "text": "a\rb"}) == {"reason": "a␍b", "text": "a␍b"}
    log = {"error": "a\rb", "text": "a\rb", "lines": [{"text": "\x1b"}]}
    kept = {"error": "a␍b", "text": "a\rb", "lines": [{"text": "\x1b"}]}
    assert all_visible(log, keep_text=True) == kept, "only for callers that fold it"
    assert all_visible({"a\x1b": ["\x1b", 1, None, {"b": "\x07"}]}) == {"a␛": ["␛", 1, None, {"b": "␇"}]}


@given(st.text())
def test_no_text_gets_through(text: str) -> None:
    assert not any(sign in visible(text) for sign in DANGEROUS)
    assert visible(visible(text)) == visible(text)


class _Api(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if "/logs" in self.path:
            log = {
                "rank": 0,
                "text": "",
                "offset": 0,
                "next_offset": 9,
                "lost_bytes": 0,
                "error": "",
            }
            lines = [{"rank": 0, "at_ns": 1, "text": COLOURED}]
            body: object = {"logs": [log], "job": "j", "lines": lines}
        else:
            body = {"status": "ok", "ready": True, "active": True, "troubles": [], "version": "0"}
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def api() -> Iterator[int]:
    server = HTTPServer(("127.0.0.1", 0), _Api)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def on_a_terminal(port: int, tmp_path: Path, *words: str) -> bytes:
    """All that the command writes to a terminal of its own."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"LOOM_ADDRESS": f"127.0.0.1:{port}", "LOOM_TOKEN": "t", "LOOM_HOME": str(tmp_path)}
        os.execv(str(Path(sys.executable).parent / "loom"), ["loom", *words])
    found = b""
    try:
        while select.select([terminal], [], [], 120)[0]:
            piece = os.read(terminal, 65536)
            if not piece:
                break
            found += piece
    except OSError:
        pass  # the other end is closed
    finally:
        os.waitpid(pid, 0)
        os.close(terminal)
    return found


def test_a_log_on_a_terminal_is_shown_and_raw_only_on_request(api: int, tmp_path: Path) -> None:
    shown = on_a_terminal(api, tmp_path, "logs", "j")
    assert b"clean" in shown, shown
    assert b"\x1b[2mdim\x1b[0m" in shown, "colours of the script stay for a person"
    assert b"\x1b]52" not in shown and b"\x1b]0" not in shown and b"\x1b[2J" not in shown
    raw = on_a_terminal(api, tmp_path, "logs", "j", "--raw")
    assert b"\x1b]52" in raw
