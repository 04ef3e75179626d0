"""Spans and metrics as a collector receives them: over HTTP, decoded with OpenTelemetry's own messages."""

from __future__ import annotations

import gzip
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

try:
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    from torchloom.export.otlp import Exporter
except ImportError:
    if os.environ.get("CI") == "true":
        raise
    pytest.skip("the extra otel is not installed", allow_module_level=True)

from torchloom.export.prometheus_text import samples

T = 10**18
METRICS = """# TYPE loom_steps_total counter
loom_steps_total{job="a\\"b"} 12
# TYPE loom_goodput gauge
loom_goodput{job="x"} 0.5
not a sample
loom_broken{ 1
"""


class Collector:
    def __init__(self) -> None:
        self.answer = 200
        self.got: list[tuple[str, bytes]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                packed = self.headers.get("Content-Encoding") == "gzip"
                outer.got.append((self.path, gzip.decompress(data) if packed else data))
                self.send_response(outer.answer)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def spans(self) -> list[Any]:
        found = []
        for path, data in self.got:
            if path == "/v1/traces":
                request = ExportTraceServiceRequest.FromString(data)
                found += [s for r in request.resource_spans for sc in r.scope_spans for s in sc.spans]
        return found


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.server.shutdown()
    made.server.server_close()


class Api:
    """The answers of an API with one ended incident, one open incident and one operation."""

    def incidents(self) -> list[dict[str, Any]]:
        return [{"id": "j.1", "open": False}, {"id": "j.2", "open": True}]

    def incident(self, id: str) -> dict[str, Any]:
        moments = (
            "fault",
            "first_sign",
            "detected",
            "decided",
            "stopped",
            "spawned",
            "restored",
            "first_step",
        )
        times = {f"{name}_ns": T + i * 10**8 for i, name in enumerate(moments)} | {"restored_ns": 0}
        return {
            "id": id, "job": "j", "kind": "crash", "verdict": "rank 1 died", "decision": "restart",
            "generation": 2, "lost_steps": 4, "culprit": 1, "resolution": "", "timeline": times,
        }  # fmt: skip

    def all_jobs(self) -> list[dict[str, Any]]:
        return [{"id": "j"}]

    def operations(self, job: str) -> list[dict[str, Any]]:
        one = {"id": "op1", "job": job, "kind": "set", "state": "applied", "reason": "", "by": "admin"}
        return [one | {"at_step": 7, "ended": True, "asked_at_ns": T, "ended_at_ns": T + 5}]

    def metrics(self) -> str:
        return METRICS


def test_an_incident_is_a_trace_with_its_phases(collector: Collector) -> None:
    exporter = Exporter(collector.url)
    sent = exporter.export(Api())  # type: ignore[arg-type]
    spans = {span.name: span for span in collector.spans()}
    assert sent.spans == len(spans) == 7 and not sent.failed
    root, phase = spans["crash in j"], spans["detection"]
    assert phase.parent_span_id == root.span_id and phase.trace_id == root.trace_id
    assert (root.start_time_unix_nano, root.end_time_unix_nano) == (T, T + 7 * 10**8)
    assert "restoring" not in spans and spans["first step"].start_time_unix_nano == T + 5 * 10**8
    assert spans["set j"].trace_id != root.trace_id
    attributes = {a.key: a.value for a in root.attributes}
    assert attributes["loom.verdict"].string_value == "rank 1 died"
    assert attributes["loom.lost_steps"].int_value == 4


def test_what_was_exported_is_not_exported_again_and_what_was_refused_is(collector: Collector) -> None:
    exporter = Exporter(collector.url)
    collector.answer = 400
    assert exporter.export(Api()).failed  # type: ignore[arg-type]
    collector.answer, collector.got = 200, []
    assert exporter.export(Api()).spans == 7  # type: ignore[arg-type]
    assert exporter.export(Api()).spans == 0  # type: ignore[arg-type]


def test_metrics_are_sums_and_gauges(collector: Collector) -> None:
    Exporter(collector.url).export(Api())  # type: ignore[arg-type]
    data = next(data for path, data in collector.got if path == "/v1/metrics")
    request = ExportMetricsServiceRequest.FromString(data)
    found = {m.name: m for m in request.resource_metrics[0].scope_metrics[0].metrics}
    total = found["loom_steps_total"].sum
    assert total.is_monotonic and total.data_points[0].as_double == 12
    assert total.data_points[0].attributes[0].value.string_value == 'a"b'
    assert found["loom_goodput"].gauge.data_points[0].as_double == 0.5 and len(found) == 2


def test_the_text_is_read_line_by_line() -> None:
    assert [(s.name, s.value, s.grows) for s in samples(METRICS)] == [
        ("loom_steps_total", 12.0, True),
        ("loom_goodput", 0.5, False),
    ]


def test_a_collector_that_is_away_is_one_sentence(
    collector: Collector, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    collector.answer = 400
    sent = Exporter(collector.url).export(Api())  # type: ignore[arg-type]
    assert sent.failed == f"The collector at {collector.url} accepted no spans"
    assert capfd.readouterr() == ("", "") and not caplog.records
