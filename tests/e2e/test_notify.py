"""An incident of a real job reaches a webhook, and `loom up` keeps the sender alive."""

from __future__ import annotations

import json
import os
import signal
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from stack import Stack, wait_until

CRASHES_ONCE = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
marker = os.path.join(os.path.dirname(__file__), "crashed")
weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(30):
    weight.grad = torch.ones(1)
    dist.all_reduce(weight.grad)
    optimizer.step()
    if step == 10 and dist.get_rank() == 1 and not os.path.exists(marker):
        open(marker, "w").close()
        raise RuntimeError("a bad batch")
dist.destroy_process_group()
"""


def test_an_incident_reaches_a_webhook(tmp_path: Path) -> None:
    got: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    hooks = home / "webhooks.toml"
    hooks.write_text(f'[[webhook]]\nurl = "http://127.0.0.1:{server.server_address[1]}/secret-path"\n')
    hooks.chmod(0o600)
    script = tmp_path / "train.py"
    script.write_text(CRASHES_ONCE)
    stack = Stack(home)
    try:
        stack.up()
        record = home / "parts" / "notify.json"
        pid = json.loads(wait_until(lambda: record.exists() and record.read_text(), "it runs"))["pid"]
        os.kill(pid, signal.SIGKILL)
        stack.loom("submit", "--nproc-per-node", "2", "--name", "noisy", str(script))
        stack.loom("wait", "noisy")
        wait_until(lambda: len(got) == 2, "both states are delivered")
        assert [one["event"] for one in got] == ["incident.opened", "incident.ended"]
        assert "a bad batch" in got[0]["incident"]["verdict"] and got[0]["incident"]["job"] == "noisy"
        logs = "".join(path.read_text() for path in (home / "logs").glob("*.log"))
        assert "secret-path" not in logs, "an address is a secret"
        stack.loom("down")
        assert not record.exists()
    finally:
        stack.end()
        server.shutdown()
        server.server_close()
