"""Nodes with GPUs, and what people, monitors and agents say about them: for the core's tests of devices."""

from __future__ import annotations

from core_story import Story

from torchloom.core.devices.users import users
from torchloom.model.devices import HealthClass, HealthReport
from torchloom.model.effects import Effect
from torchloom.model.events import DeviceHealthReported, DeviceMarked, NodeJoined
from torchloom.model.node import Inventory, LiveWorker
from torchloom.model.worker import DeviceUse, WorkerRef


def gpus(node: str, count: int) -> tuple[DeviceUse, ...]:
    return tuple(DeviceUse(f"GPU-{node}{index}", "gpu", "H100") for index in range(count))


class DeviceStory(Story):
    """Like Story; each node has as many GPUs as slots, unless it has another number of slots."""

    def gpu_node(
        self,
        node: str,
        count: int,
        slots: int | None = None,
        without: tuple[str, ...] = (),
        live: tuple[WorkerRef, ...] = (),
    ) -> list[Effect]:
        listed = tuple(use for use in gpus(node, count) if use.device not in without)
        inventory = Inventory(
            hostname=node,
            address=f"{node}.example",
            boot_id="boot-1",
            max_workers=count if slots is None else slots,
            devices=listed,
            workers=tuple(LiveWorker(ref, 4000 + ref.rank) for ref in live),
        )
        return self.tell(NodeJoined(node=node, session="s1", inventory=inventory))

    def mark(self, mark: str, device: str, **more: object) -> list[Effect]:
        node = self.fleet.devices[device].node if device in self.fleet.devices else ""
        event = DeviceMarked(device=device, mark=mark, by="ann", node=node, **more)  # type: ignore[arg-type]
        return self.tell(event)

    def health(self, device: str, level: HealthClass, why: str = "", source: str = "nvml") -> list[Effect]:
        report = HealthReport(device=device, level=level, why=why, source=source)
        node = self.fleet.devices[device].node
        return self.tell(DeviceHealthReported(node=node, health=(report,)))

    def on(self, device: str) -> list[tuple[str, int]]:
        """Job and rank of everybody on a device."""
        return [(job.id, worker.ref.rank) for job, worker in users(self.fleet, device)]

    def devices(self, job: str = "j") -> list[str]:
        """The device of each rank."""
        return [worker.devices[0].device if worker.devices else "" for worker in self.job(job).workers]

    def check_map(self) -> None:
        """Both directions agree: who uses a device, and what each worker uses."""
        there = {(d, j, r) for d in self.fleet.devices for j, r in self.on(d)}
        here = {
            (use.device, job.id, worker.ref.rank)
            for job in self.fleet.jobs.values()
            for worker in job.workers
            if worker.alive
            for use in worker.devices
            if use.device in self.fleet.devices
        }
        assert there == here
