"""Who uses a device. Looked up from the workers, which are the only record of it."""

from __future__ import annotations

from torchloom.model.fleet import Fleet, Job, Worker

_MOST_CORES = 4096
"""Of a host. Ids come from agents: cores beyond these are not looked at."""


def users(fleet: Fleet, device: str) -> list[tuple[Job, Worker]]:
    """Workers on this device whose process may exist, by job and rank."""
    known = fleet.devices.get(device)
    node = fleet.nodes.get(known.node) if known is not None else None
    if node is None:
        return []
    return [
        (fleet.jobs[name], worker)
        for name in sorted(node.jobs)
        for worker in fleet.jobs[name].workers
        if worker.alive and worker.node == node.id and uses(worker, device)
    ]


def uses(worker: Worker, device: str) -> bool:
    """A worker that is pinned to some cores also uses the device that stands for all cores of its host."""
    if any(use.device == device for use in worker.devices):
        return True
    cores = _cores(device, worker.node)
    return bool(cores) and any(cores & _cores(use.device, worker.node) for use in worker.devices)


def _cores(device: str, node: str) -> set[int]:
    """The cores that `cpu-<node>-0-3,8` names; none for another kind of device."""
    prefix = f"cpu-{node}-"
    found: set[int] = set()
    for part in device.removeprefix(prefix).split(",") if device.startswith(prefix) else ():
        first, _, last = part.partition("-")
        if all(one.isdecimal() and len(one) <= 4 for one in (first, last or first)):
            found.update(range(int(first), min(int(last or first) + 1, _MOST_CORES)))
    return found


def jobs_on(fleet: Fleet, device: str) -> list[Job]:
    return list({job.id: job for job, _ in users(fleet, device)}.values())
