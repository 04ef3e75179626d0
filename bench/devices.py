"""What one alert about a device costs the core in a large fleet: CPU time, in one process, without I/O.

Nodes with 8 GPUs each, jobs of 8 workers on most of them. Devices are reported as degraded (recorded) and
as failed (the jobs on them are ended), one event at a time, as the stream would deliver them. Run it with

    python bench/devices.py [--devices 10000] [--jobs 1000] [--alerts 200] [--json]
"""

from __future__ import annotations

import argparse
import json
import time
from statistics import median, quantiles

from torchloom.core.devices.users import users
from torchloom.core.reducer import apply
from torchloom.model.devices import DevicePolicy, HealthClass, HealthReport
from torchloom.model.effects import StartRendezvous, StartWorkers
from torchloom.model.events import (
    DeviceHealthReported,
    DevicePolicySet,
    Envelope,
    Event,
    JobSubmitted,
    NodeJoined,
    RendezvousStarted,
    StartedWorker,
    WorkersStarted,
)
from torchloom.model.fleet import Fleet
from torchloom.model.job import JobSpec, Program
from torchloom.model.node import Inventory, RendezvousAddress
from torchloom.model.worker import DeviceUse

GPUS_A_NODE = 8


class Stream:
    """A fleet, and events applied to it one after the other."""

    def __init__(self) -> None:
        self.fleet, self.seq = Fleet(), 0

    def tell(self, event: Event) -> float:
        """Apply one event; the CPU time it took."""
        self.seq += 1
        envelope = Envelope(f"e{self.seq}", "bench", event)
        began = time.process_time()
        apply(self.fleet, envelope, self.seq, self.seq * 10**6)
        return time.process_time() - began

    def join(self, number: int) -> None:
        node = f"n{number}"
        gpus = tuple(DeviceUse(f"GPU-{number:05d}-{at}", "gpu", "H100") for at in range(GPUS_A_NODE))
        inventory = Inventory(hostname=node, address=node, boot_id="b", max_workers=GPUS_A_NODE, devices=gpus)
        self.tell(NodeJoined(node=node, session="s", inventory=inventory))

    def run_job(self, number: int) -> None:
        name = f"job{number}"
        spec = JobSpec(program=Program("script", "train.py"), cwd="/", workers_per_node=GPUS_A_NODE)
        self.tell(JobSubmitted(job=name, spec=spec, by="bench"))
        for store in [e for e in self.fleet.outbox.values() if isinstance(e, StartRendezvous)]:
            address = RendezvousAddress(store.host, 29500)
            self.tell(RendezvousStarted(node=store.node, effect=store.id, store=store.store, address=address))
        for start in [e for e in self.fleet.outbox.values() if isinstance(e, StartWorkers)]:
            workers = tuple(StartedWorker(one.ref, 1000 + one.ref.rank) for one in start.launches)
            self.tell(WorkersStarted(node=start.node, effect=start.id, workers=workers))

    def alert(self, device: str, level: HealthClass) -> float:
        report = HealthReport(device=device, level=level, why="bench", source="bench")
        return self.tell(DeviceHealthReported(node=self.fleet.devices[device].node, health=(report,)))


def measure(devices: int, jobs: int, alerts: int) -> dict[str, float]:
    stream = Stream()
    began = time.process_time()
    for number in range(devices // GPUS_A_NODE):
        stream.join(number)
    for number in range(jobs):
        stream.run_job(number)
    built_s = time.process_time() - began
    stream.tell(DevicePolicySet(policy=DevicePolicy(acts_per_hour=10**9), by="bench"))
    used = [id for id in stream.fleet.devices if users(stream.fleet, id)]
    step = max(1, len(used) // (2 * alerts))
    degraded = [stream.alert(id, "degraded") for id in used[::step][:alerts]]
    failed = [stream.alert(id, "failed") for id in used[::step][alerts : 2 * alerts]]
    found: dict[str, float] = {"devices": len(stream.fleet.devices), "jobs": jobs, "build_s": built_s}
    for name, times in (("degraded", degraded), ("failed", failed)):
        found[f"{name}_p50_ms"] = 1e3 * median(times)
        found[f"{name}_p99_ms"] = 1e3 * quantiles(times, n=100)[98]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--devices", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=1_000)
    parser.add_argument("--alerts", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.devices, options.jobs, options.alerts)
    if options.json:
        print(json.dumps(found))
        return
    print(
        f"{found['devices']:.0f} devices, {found['jobs']:.0f} jobs; built in {found['build_s']:.1f} s of CPU"
    )
    for name in ("degraded", "failed"):
        p50, p99 = found[f"{name}_p50_ms"], found[f"{name}_p99_ms"]
        print(f"one alert, {name:<9} p50 {p50:.2f} ms   p99 {p99:.2f} ms of CPU")


if __name__ == "__main__":
    main()
