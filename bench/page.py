"""The page with 1,000 and 10,000 ranks and a log of a million lines in a browser; what it costs a weaver.

    python bench/page.py [--json]

The browser gets the built page and answers of the API that are made here, so that only the page is measured.
What an open page costs the control service is measured on a real one, with 1,000 ranks that are only played.
30 minutes of updates are run through as fast as they can be, by a clock that is set ahead.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import math
import mimetypes
import random
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import Browser, Page, sync_playwright

from support.open_pages import SECONDS, weaver_rows
from support.table import emit, progress
from torchloom.api.page import DIST

LINES = 1_000_000
MINUTES = 30
REFRESH_S = 3.0
FRAMES = """ms => new Promise(done => {
  const gaps = [];
  let last = performance.now();
  const first = last;
  const next = now => {
    gaps.push(now - last);
    last = now;
    now - first < ms ? requestAnimationFrame(next) : done(gaps.sort((a, b) => a - b));
  };
  requestAnimationFrame(next);
})"""
LONG = """() => {
  window.long = [];
  new PerformanceObserver(list => list.getEntries().forEach(e => window.long.push(e.duration)))
    .observe({type: 'longtask', buffered: true});
}"""


class Api:
    """Answers for one job of so many ranks."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.random = random.Random(1)
        self.asked = 0
        self.log = b""
        self.over = threading.Event()

    @contextmanager
    def served(self) -> Iterator[str]:
        """The page and these answers on a port of loopback; the address."""
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                api.respond(self)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            self.over.set()
            server.shutdown()

    def respond(self, request: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(request.path)
        path = parts.path.removeprefix("/api/v1")
        if not parts.path.startswith("/api/"):
            name = "index.html" if parts.path == "/" else parts.path.lstrip("/")
            kind = mimetypes.guess_type(name)[0] or "text/html"
            self.send(request, (DIST / name).read_bytes(), kind)
        elif path == "/events":
            self.send(request, b": events\n\n", "text/event-stream", whole=False)
            self.over.wait()  # a stream without events stays open
        elif path.endswith("/logs/stream"):
            self.send(request, self.log, "text/event-stream")
        else:
            self.asked += 1
            body = self.answer(path, {k: v[0] for k, v in parse_qs(parts.query).items()})
            self.send(request, json.dumps(body).encode(), "application/json")

    def send(self, request: BaseHTTPRequestHandler, body: bytes, kind: str, whole: bool = True) -> None:
        request.send_response(200)
        request.send_header("Content-Type", kind)
        if whole:
            request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        with contextlib.suppress(OSError):  # the browser has left
            request.wfile.write(body)
            request.wfile.flush()

    def answer(self, path: str, query: dict[str, str]) -> Any:
        if path == "/whoami":
            return {"name": "bench", "role": "admin"}
        if path.endswith("/summary"):
            return self.summary()
        if path.endswith("/ranks") and "/series" not in path:
            return self.now()
        if path.endswith("/series/ranks"):
            return self.over_time(int(query["columns"]), int(query["rows"]))
        if path.endswith("/series"):
            return self.series(int(query["points"]))
        if path == "/devices":
            return {"devices": [], "workers": []}
        if path.endswith("/checkpoints"):
            return {"checkpoints": [], "store": ""}
        return []

    def summary(self) -> dict[str, Any]:
        step = int(time.time() * 10) % 10**6
        return {
            "id": "wide", "state": "running", "reason": "all workers run", "ended": False, "generation": 1,
            "restarts": 0, "max_restarts": 10, "world_size": self.ranks, "wanted_workers": self.ranks,
            "standby": 0, "spares": [], "running_workers": self.ranks, "step": step, "step_is_training": True,
            "total_steps": 10**6, "steps_per_s": 10.0, "eta_s": 1e4, "goodput": 0.99, "elapsed_s": 7200.0,
            "submitted_at_ns": time.time_ns(), "started_at_ns": time.time_ns(), "ended_at_ns": 0, "by": "me",
            "program": "train.py", "incidents": [], "open_incidents": [], "labels": {}, "max_steps": None,
            "progress": step / 1e6,
            "samples_per_s": None, "last_loss": 1.5, "replicas": [], "checkpoint_step": 100,
            "checkpoint_interval": 100, "restoring": None, "paused": False, "config_version": 0,
            "operation": "",
        }  # fmt: skip

    def now(self) -> dict[str, Any]:
        n = self.ranks
        own = [round(0.08 + 0.01 * self.random.random(), 5) for _ in range(n)]
        own[n // 3] = 0.2
        return {
            "job": "wide", "generation": 1, "as_of_ns": time.time_ns(), "phases": ["", "training"],
            "nodes": [f"node-{i}" for i in range(-(-n // 8))], "rank": list(range(n)),
            "node": [r // 8 for r in range(n)], "replica": [0] * n, "alive": [True] * n, "step": [1000] * n,
            "phase": [1] * n, "idle_s": [0.01] * n, "own_s": own, "wait_s": [round(0.2 - s, 5) for s in own],
            "data_s": [0.001] * n, "lost_share": [0.0] * n,
        }  # fmt: skip

    def over_time(self, columns: int, rows: int) -> dict[str, Any]:
        per = -(-self.ranks // rows)
        phases = ["", "training", "other", "data-wait", "compiling"]
        return {
            "job": "wide", "what": "phase", "as_of_ns": time.time_ns(), "ranks": self.ranks,
            "ranks_per_row": per, "width_s": 10.0, "at_s": [1.8e9 + 10 * c for c in range(columns)],
            "rows": [[1 + (self.random.random() > 0.98) * 2 for _ in range(columns)]
                     for _ in range(-(-self.ranks // per))],
            "phases": phases,
        }  # fmt: skip

    def series(self, points: int) -> dict[str, Any]:
        at = [time.time() - 10 * (points - i) for i in range(points)]
        made = []
        for name in ("step_s", "step_s_p95", "steps_per_s", "metric:loss", "metric:grad_norm", "setting:lr"):
            mean = [1 + math.sin(i / 20) / 3 for i in range(points)]
            made.append({"name": name, "width_s": 10.0, "at_s": at, "mean": mean,
                         "low": [v * 0.9 for v in mean], "high": [v * 1.1 for v in mean]})  # fmt: skip
        return {"job": "wide", "as_of_ns": 0, "names": [], "series": made}

    def write_log(self, lines: int) -> None:
        per, made = 200, []
        for first in range(0, lines, per):
            text = "".join(f"step {n} loss {1 / (n + 1):.6f} on rank 0\n" for n in range(first, first + per))
            body = json.dumps({"rank": 0, "text": text, "lost_bytes": 0})
            made.append(f"event: log\nid: 0:{first}\ndata: {body}\n\n")
        made.append('event: end\nid: 0:1\ndata: {"state":"completed","unread_ranks":[]}\n\n')
        self.log = "".join(made).encode()


def heap_mb(page: Page) -> float:
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    used = session.send("Runtime.getHeapUsage")["usedSize"]
    return round(float(used) / 1e6, 1)


def ranks_row(browser: Browser, ranks: int) -> dict[str, object]:
    progress(f"{ranks} ranks…")
    api = Api(ranks)
    with api.served() as address:
        return _ranks_row(browser.new_page(viewport={"width": 1280, "height": 900}), api, address)


def _ranks_row(page: Page, api: Api, address: str) -> dict[str, object]:
    page.clock.install()
    page.add_init_script(f"({LONG})()")
    began = time.perf_counter()
    page.goto(f"{address}#/job/wide")
    page.get_by_test_id("step").wait_for(timeout=120_000)
    useful_s = time.perf_counter() - began
    page.locator("#ranks canvas").wait_for(timeout=120_000)
    first_s = time.perf_counter() - began
    page.clock.resume()
    page.evaluate("window.long.length = 0")
    gaps = page.evaluate(FRAMES, 15_000)
    long = page.evaluate("window.long")
    before = heap_mb(page)
    page.clock.pause_at(time.time() + 3600)
    asked, turns = api.asked, int(MINUTES * 60 / REFRESH_S)
    for _ in range(turns):
        page.clock.run_for(REFRESH_S * 1000)
    return {
        "ranks": api.ranks,
        "step_shown_s": round(useful_s, 2),
        "ranks_shown_s": round(first_s, 2),
        "frame_p50_ms": round(gaps[len(gaps) // 2], 1),
        "frame_p95_ms": round(gaps[int(0.95 * len(gaps))], 1),
        "longest_task_ms": round(max(long, default=0.0), 0),
        "long_tasks_in_15_s": len(long),
        "heap_mb": before,
        f"heap_after_{MINUTES}_min_mb": heap_mb(page),
        "answers_meanwhile": api.asked - asked,
    }


def log_row(browser: Browser) -> dict[str, object]:
    progress(f"{LINES} lines of log…")
    api = Api(1)
    api.write_log(LINES)
    with api.served() as address:
        return _log_row(browser.new_page(viewport={"width": 1280, "height": 900}), address)


def _log_row(page: Page, address: str) -> dict[str, object]:
    began = time.perf_counter()
    page.goto(f"{address}#/job/wide/logs")
    page.get_by_text("end of the log").wait_for(timeout=240_000)
    whole_s = time.perf_counter() - began
    page.evaluate("""() => { const box = document.querySelector('.log'); let at = 0;
        window.rolling = setInterval(() => { at += 40_000; box.scrollTop = at % box.scrollHeight }, 30) }""")
    gaps = page.evaluate(FRAMES, 8_000)
    return {
        "lines": LINES,
        "read_s": round(whole_s, 1),
        "frame_p50_ms": round(gaps[len(gaps) // 2], 1),
        "frame_p95_ms": round(gaps[int(0.95 * len(gaps))], 1),
        "rows_drawn": page.locator(".log .row").count(),
        "heap_mb": heap_mb(page),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if shutil.which("chromium") is None or not (DIST / "index.html").is_file():
        progress("skipped: needs chromium and the built page (make setup with Node)")
        return 0
    size = sum(len(gzip.compress(f.read_bytes(), 9)) for f in DIST.rglob("*") if f.suffix in (".js", ".css"))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        rows = [ranks_row(browser, 1000), ranks_row(browser, 10_000)]
        log = log_row(browser)
        weaver = weaver_rows(browser, 1000)
        browser.close()
    notes = [f"the bundle is {size / 1000:.0f} KB gzip", "a long task is one of more than 50 ms"]
    emit("The page: a job of many ranks", rows, notes, options.json)
    emit("The page: a long log, scrolled", [log], [], options.json)
    over = f"CPU time of the weaver over {SECONDS} s, in percent of one core; pages of one job of 1,000 ranks"
    emit("The page: what it costs the control service", weaver, [over], options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
