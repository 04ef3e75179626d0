"""GET /metrics: the fleet in Prometheus's text format. Names are a promise (docs/metrics.md), in base units.

Made from the state at the moment of the scrape, so there is nothing to keep and nothing that can go stale.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse

from torchloom.api.ports import Control
from torchloom.api.views import jobs
from torchloom.api.views.devices import device_map
from torchloom.core.detect.cost import per_rank
from torchloom.model.devices import CLASSES
from torchloom.model.fleet import JobState, NodeState

Sample = tuple[dict[str, str], float]
_NAMED = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}
"""What is no number, as the format spells it."""


MEASURED = {
    "loom_device_temperature_celsius": ("temperature_celsius", "Temperature of a device."),
    "loom_device_power_watts": ("power_watts", "Power that a device draws."),
    "loom_device_utilization_ratio": ("utilization_ratio", "Share of the time in which a device was busy."),
    "loom_device_memory_used_bytes": ("memory_used_bytes", "Memory of a device that is in use."),
    "loom_device_memory_bytes": ("memory_bytes", "Memory of a device."),
    "loom_device_clock_hertz": ("clock_hertz", "Clock of a device's processors."),
    "loom_device_ecc_uncorrected_errors": (
        "ecc_uncorrected_errors",
        "Uncorrected ECC errors since the driver was loaded.",
    ),
}
"""Metric → the value of a reading, and its description."""


class PrometheusText(PlainTextResponse):
    media_type = "text/plain; version=0.0.4"


def routes(control: Control, version: str) -> APIRouter:
    router = APIRouter(tags=["fleet"])

    @router.get("/metrics", operation_id="metrics", response_class=PrometheusText)
    async def metrics() -> PrometheusText:
        return PrometheusText("".join(lines(control, version, time.time_ns())))

    return router


def lines(control: Control, version: str, now_ns: int) -> Iterator[str]:
    fleet = control.fleet
    yield from _gauge("loom_build_info", "Version of the control service.", [({"version": version}, 1)])
    yield from _gauge("loom_weaver_active", "Whether this service leads.", [({}, control.active)])
    yield from _gauge("loom_weaver_ready", "Whether it is connected and caught up.", [({}, control.ready)])
    troubles: list[tuple[dict[str, str], float]] = [({}, len(control.troubles()))]
    yield from _gauge("loom_weaver_troubles", "What keeps it from acting, see /health.", troubles)
    yield from _counter("loom_events_total", "Events of the stream applied here.", [({}, fleet.seq)])
    yield from _gauge(
        "loom_effects_open", "Effects that no agent has answered yet.", [({}, len(fleet.outbox))]
    )
    states = Counter(job.state for job in fleet.jobs.values())
    yield from _gauge("loom_jobs", "Jobs by state.", [({"state": str(s)}, states[s]) for s in JobState])
    nodes = Counter(node.state for node in fleet.nodes.values())
    yield from _gauge("loom_nodes", "Nodes by state.", [({"state": str(s)}, nodes[s]) for s in NodeState])
    slots = [({"node": n.id}, float(n.inventory.max_workers)) for n in fleet.nodes.values()]
    yield from _gauge("loom_node_slots", "Workers that a node may hold.", slots)
    taken = [({"node": n.id}, float(n.taken)) for n in fleet.nodes.values()]
    yield from _gauge("loom_node_workers", "Workers that a node holds.", taken)
    yield from _counter(
        "loom_control_incidents_total", "Incidents of the control plane itself.", [({}, fleet.disturbances)]
    )
    over = [({"node": node}, float(count)) for node, count in control.dropped.items()]
    yield from _counter("loom_agent_messages_dropped_total", "Messages of an agent beyond its share.", over)
    yield from _devices(control)
    floods = [({"node": node}, float(count)) for node, count in fleet.flood_counts.items()]
    yield from _counter("loom_agent_floods_total", "Times an agent's events were refused.", floods)
    open_now = sum(incident.open for incident in fleet.incidents.values()) + len(control.disturbances())
    yield from _gauge("loom_incidents_open", "Incidents whose recovery is not over.", [({}, open_now)])
    yield from _jobs(control, now_ns)
    yield from _workers(control)


def _jobs(control: Control, now_ns: int) -> Iterator[str]:
    fleet = control.fleet
    seen = [jobs.job_summary(fleet, job, control.pulse(job.id), now_ns) for job in fleet.jobs.values()]
    each = [({"job": s.id}, s) for s in seen]
    yield from _counter("loom_job_restarts_total", "Restarts of a job.", [(n, s.restarts) for n, s in each])
    count = [(n, float(len(s.incidents))) for n, s in each]
    yield from _counter("loom_job_incidents_total", "Incidents of a job.", count)
    living = [(n, s) for n, s in each if not s.ended]
    step = [(n, float(s.step)) for n, s in living]
    yield from _gauge("loom_job_step", "Step that all ranks have reached.", step)
    rate = [(n, s.steps_per_s) for n, s in living]
    yield from _gauge("loom_job_steps_per_second", "Steps per second of the slowest rank.", rate)
    eta = [(n, s.eta_s) for n, s in living if s.eta_s is not None]
    yield from _gauge("loom_job_eta_seconds", "Expected time to the known end.", eta)
    good = [(n, s.goodput) for n, s in living if s.goodput is not None]
    yield from _gauge("loom_job_goodput_ratio", "Share of the time that was not lost to faults.", good)
    loss = [(n, float(s.last_loss)) for n, s in living if s.last_loss is not None]
    yield from _gauge("loom_job_loss", "Loss as the script reports it, mean over the ranks.", loss)
    workers = [(n, float(s.running_workers)) for n, s in living]
    yield from _gauge("loom_job_workers", "Running workers of a job.", workers)


def _devices(control: Control) -> Iterator[str]:
    each = device_map(control.fleet).devices
    count = Counter((one.node, one.kind, one.state) for one in each)
    states: list[Sample] = [({"node": n, "kind": k, "state": s}, c) for (n, k, s), c in sorted(count.items())]
    yield from _gauge("loom_devices", "Devices by node, kind and state.", states)
    used: list[Sample] = [({"device": one.device, "node": one.node}, len(one.workers)) for one in each]
    yield from _gauge("loom_device_workers", "Workers on a device.", used)
    levels: list[Sample] = [
        ({"device": one.device, "node": one.node, "class": one.health}, CLASSES.index(one.health))
        for one in each
    ]
    text = "Class of health: 0 ok, 1 degraded, 2 failing, 3 failed."
    yield from _gauge("loom_device_health", text, levels)
    risks: list[Sample] = [
        ({"device": one.device, "node": one.node}, one.risk) for one in each if one.risk is not None
    ]
    text = "Probability that a device fails within a day, by a simple model; absent without enough data."
    yield from _gauge("loom_device_risk_ratio", text, risks)
    readings = [reading for one in each for reading in control.devices.readings(one.device)]
    readings += [
        reading for node in control.fleet.nodes for reading in control.devices.readings(f"host-{node}")
    ]
    for name, (key, says) in MEASURED.items():
        found: list[Sample] = [
            ({"device": r.device, "source": r.source}, r.values[key]) for r in readings if key in r.values
        ]
        yield from _gauge(name, says, found)
    dropped: list[Sample] = [({}, control.devices.health_dropped())]
    text = "Changes of health that came faster than they are recorded."
    yield from _counter("loom_device_health_dropped_total", text, dropped)


def _workers(control: Control) -> Iterator[str]:
    step_s: list[Sample] = []
    costs: list[Sample] = []
    idle_s: list[Sample] = []
    uncopied: list[Sample] = []
    for job in control.fleet.jobs.values():
        if job.ended:
            continue
        for rank, pulse in control.pulse(job.id).items():
            names = {"job": job.id, "rank": str(rank)}
            step_s.append((names, pulse.step_s))
            idle_s.append((names, pulse.idle_s))
            uncopied.append((names, bool(pulse.copy_trouble)))
        for one in per_rank(control.windows(job.id)):
            costs.append(({"job": job.id, "rank": str(one.rank)}, one.cost.share))
    yield from _gauge("loom_worker_step_seconds", "Median of the newest steps.", step_s)
    costs_help = "Share of the job's speed that is lost to this rank's being late."
    yield from _gauge("loom_worker_lost_ratio", costs_help, costs)
    yield from _gauge("loom_worker_idle_seconds", "Time since the last sign of progress.", idle_s)
    copies_help = "1 while no other node has a copy of this rank's newest state in memory, though one should."
    yield from _gauge("loom_worker_uncopied", copies_help, uncopied)


def _gauge(name: str, says: str, samples: list[Sample]) -> Iterator[str]:
    return _family(name, "gauge", says, samples)


def _counter(name: str, says: str, samples: list[Sample]) -> Iterator[str]:
    return _family(name, "counter", says, samples)


def _family(name: str, kind: str, says: str, samples: list[Sample]) -> Iterator[str]:
    yield f"# HELP {name} {says}\n# TYPE {name} {kind}\n"
    for labels, value in samples:
        inner = ",".join(f'{key}="{_escape(text)}"' for key, text in labels.items())
        told = _NAMED.get(f"{float(value):.17g}", f"{float(value):.17g}")
        yield f"{name}{{{inner}}} {told}\n" if inner else f"{name} {told}\n"


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
