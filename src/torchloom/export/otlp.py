"""Sends spans and metrics to a collector. What the collector did not take is sent again the next time."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import MetricExportResult
from opentelemetry.sdk.trace.export import SpanExportResult

from torchloom.client import Client
from torchloom.export.telemetry import incident_spans, metrics_data, operation_span

WITHIN_S = 10
SPANS_AT_ONCE = 256


@dataclass(frozen=True)
class Sent:
    spans: int
    points: int
    failed: str = ""


class Exporter:
    def __init__(self, endpoint: str) -> None:
        # The library logs every try with a traceback's length; `Sent.failed` is one sentence.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        base = endpoint.rstrip("/")
        self._base = base
        self._spans = OTLPSpanExporter(f"{base}/v1/traces", timeout=WITHIN_S)
        self._metrics = OTLPMetricExporter(f"{base}/v1/metrics", timeout=WITHIN_S)
        self._since_ns = time.time_ns()
        self._done: set[str] = set()

    def export(self, client: Client) -> Sent:
        """Send what has ended since the last time, and all metrics as they are now."""
        found, ids = [], []
        for incident in client.incidents():
            if not incident["open"] and incident["id"] not in self._done:
                found += incident_spans(client.incident(incident["id"]))
                ids.append(incident["id"])
        for job in client.all_jobs():
            for operation in client.operations(job["id"]):
                id = f"{job['id']}/{operation['id']}"
                if operation["ended"] and id not in self._done:
                    found.append(operation_span(operation))
                    ids.append(id)
        for first in range(0, len(found), SPANS_AT_ONCE):
            if self._spans.export(found[first : first + SPANS_AT_ONCE]) is not SpanExportResult.SUCCESS:
                return Sent(0, 0, f"The collector at {self._base} accepted no spans")
        self._done |= set(ids)
        data = metrics_data(client.metrics(), time.time_ns(), self._since_ns)
        points = sum(len(one.data.data_points) for one in data.resource_metrics[0].scope_metrics[0].metrics)
        if self._metrics.export(data) is not MetricExportResult.SUCCESS:
            return Sent(len(found), 0, f"The collector at {self._base} accepted no metrics")
        return Sent(len(found), points)
