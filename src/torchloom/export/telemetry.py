"""Incidents and operations as OpenTelemetry traces, and our metrics, over OTLP (extra `otel`).

A trace per incident: the span is the incident, its children are the phases of detection and recovery. A trace
per operation. Ids are made from ours, so that a second export of the same thing is the same span.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from torchloom import __version__
from torchloom.export.prometheus_text import samples

if TYPE_CHECKING:
    from torchloom.client.schema import IncidentDetail, OperationView

RESOURCE = Resource({"service.name": "torchloom", "service.version": __version__})
SCOPE = InstrumentationScope("torchloom", __version__)
_PHASES = (
    ("detection", "fault_ns", "detected_ns"),
    ("decision", "detected_ns", "decided_ns"),
    ("stopping", "decided_ns", "stopped_ns"),
    ("starting", "stopped_ns", "spawned_ns"),
    ("restoring", "spawned_ns", "restored_ns"),
    ("first step", "restored_ns", "first_step_ns"),
)


def incident_spans(found: IncidentDetail) -> list[ReadableSpan]:
    """The incident and the phases that are known."""
    times: dict[str, int] = dict(found["timeline"])  # type: ignore[arg-type]
    known = [at for at in times.values() if at]
    if not known:
        return []
    root = _context(found["id"], "incident")
    attributes = {
        "loom.job": found["job"],
        "loom.incident": found["id"],
        "loom.kind": found["kind"],
        "loom.verdict": found["verdict"],
        "loom.decision": found["decision"],
        "loom.generation": found["generation"],
        "loom.lost_steps": found["lost_steps"],
        "loom.culprit_rank": found["culprit"],
        "loom.resolution": found["resolution"],
    }
    status = Status(StatusCode.ERROR, found["verdict"])
    made = [
        _span(f"{found['kind']} in {found['job']}", root, None, min(known), max(known), attributes, status)
    ]
    for name, first, last in _PHASES:
        start = times[first] or _before(times, last)
        if start and times[last] >= start:
            made.append(_span(name, _context(found["id"], name), root, start, times[last], {}, Status()))
    return made


def operation_span(found: OperationView) -> ReadableSpan:
    """One operation that has ended."""
    attributes: dict[str, Any] = {
        "loom.job": found["job"],
        "loom.operation": found["id"],
        "loom.state": found["state"],
        "loom.reason": found["reason"],
        "loom.by": found["by"],
        "loom.step": found["at_step"],
    }
    fine = found["state"] == "applied"
    status = Status(StatusCode.OK) if fine else Status(StatusCode.ERROR, found["reason"])
    context = _context(f"{found['job']}/{found['id']}", "operation")
    end = max(found["ended_at_ns"], found["asked_at_ns"])
    return _span(
        f"{found['kind']} {found['job']}", context, None, found["asked_at_ns"], end, attributes, status
    )


def metrics_data(text: str, at_ns: int, since_ns: int) -> MetricsData:
    """What `/metrics` answered at a time."""
    points: dict[tuple[str, bool], list[NumberDataPoint]] = {}
    for one in samples(text):
        start = since_ns if one.grows else None
        point = NumberDataPoint(dict(one.labels), start, at_ns, one.value)  # type: ignore[arg-type]
        points.setdefault((one.name, one.grows), []).append(point)
    made = [
        Metric(
            name, None, None, Sum(found, AggregationTemporality.CUMULATIVE, True) if grows else Gauge(found)
        )
        for (name, grows), found in points.items()
    ]
    return MetricsData([ResourceMetrics(RESOURCE, [ScopeMetrics(SCOPE, made, "")], "")])


def _span(
    name: str,
    context: SpanContext,
    parent: SpanContext | None,
    start_ns: int,
    end_ns: int,
    attributes: Mapping[str, Any],
    status: Status,
) -> ReadableSpan:
    return ReadableSpan(
        name=name,
        context=context,
        parent=parent,
        resource=RESOURCE,
        attributes={key: value for key, value in attributes.items() if value not in (None, "")},
        kind=SpanKind.INTERNAL,
        instrumentation_scope=SCOPE,
        status=status,
        start_time=start_ns,
        end_time=end_ns,
    )


def _context(id: str, part: str) -> SpanContext:
    return SpanContext(_number(id, 16), _number(f"{id}\0{part}", 8), False, TraceFlags(TraceFlags.SAMPLED))


def _number(text: str, size: int) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:size], "big") or 1


def _before(times: Mapping[str, int], name: str) -> int:
    """The newest known moment not after the one that is named."""
    return max((at for key, at in times.items() if at and at <= times[name] and key != name), default=0)
