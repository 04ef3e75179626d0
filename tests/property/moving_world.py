"""The hostile world, in which nodes are also drained, left because of findings, and fence themselves."""

from __future__ import annotations

from collections.abc import Callable

from hosts import KILLED, Host
from msgspec.structs import replace
from world import ACTIONS, WEIGHTS, World

from torchloom.core.policy.reporting import key
from torchloom.model.checkpoints import CheckpointPlace
from torchloom.model.events import (
    CheckpointStoreOpened,
    Event,
    FindingEnded,
    FindingMade,
    JobSubmitted,
    NodeDrained,
    NodeGone,
    NodeUnreachable,
    StepReached,
)
from torchloom.model.findings import Finding
from torchloom.model.fleet import Job, JobState
from torchloom.model.policy import Policy

POLICY = Policy(
    rules={
        "hang": {"certain": "evict", "lasting": "promote"},
        "compute-slow": {"likely": "evict"},
        "host-contention": {"likely": "drain"},
    },
    restarts_per_hour=1000,
    cooldown_s=0.0,
    restart_cost_s=0.0,
    self_fence_s=20.0,
)


class MovingWorld(World):
    """Every job has a policy that moves and fences, and there is a host more, so that it can."""

    def __init__(self) -> None:
        super().__init__()
        self.hosts.append(Host("node-3", 4, self._may_start))
        self.hosts[-1].start_agent()
        self._flush(self.hosts[-1])

    def say(self, event: Event) -> None:
        if isinstance(event, JobSubmitted):
            event = replace(event, spec=replace(event.spec, policy=POLICY))
        super().say(event)

    def drain(self, number: int) -> None:
        """A person drains a node; nobody saves here, so only what is forced leaves."""
        host = self.host(number)
        for name in self.fleet.nodes[host.node].jobs:
            self._may_begin_once_more(self.fleet.jobs[name])
        move, force = number // 2 % 3 > 0, number // 2 % 3 == 2
        self.say(NodeDrained(node=host.node, by="ann", why="dust", move=move, force=force))

    def open_node(self, number: int) -> None:
        self.say(NodeDrained(node=self.host(number).node, by="ann", open=True))

    def find(self, number: int) -> None:
        """A detector names a rank, for which the policy leaves its node."""
        self.good_start(number)
        running = [job for job in self.fleet.jobs.values() if job.state is JobState.RUNNING]
        if not running:
            return
        job = running[number % len(running)]
        self._may_begin_once_more(job)
        worker = job.workers[number // 3 % len(job.workers)]
        if (
            number % 2
        ):  # then what is slow is saved before it is moved, or it is tried: the ranks are deaf here
            place = CheckpointPlace("/ckpt", job.id)
            self.say(CheckpointStoreOpened(node=worker.node, ref=worker.ref, place=place))
            self.say(StepReached(job=job.id, generation=job.generation, step=30, step_s=0.1))
        kind = ("hang", "hang", "compute-slow", "host-contention")[number // 5 % 4]
        lasting = number // 5 % 4 == 1
        finding = Finding(
            kind=kind,  # type: ignore[arg-type]
            ranks=(worker.ref.rank,),
            node=worker.node,
            sentence=f"rank {worker.ref.rank} is the one",
            confidence=0.9,
            lasting_s=30.0,
            certain=kind == "hang" and not lasting,
            may_act=kind == "hang",
            certainty="it is stopped",
            inputs={"cost": 5.0},
        )
        for _ in range(2):  # what slowness has cost is known at the second time
            self.now_ns += 10**9
            self.say(
                FindingMade(job=job.id, generation=job.generation, finding=finding, steps=30, step_s=0.1)
            )
        if number % 7 == 0:
            over = FindingEnded(job=job.id, generation=job.generation, key=key(finding), lasted_s=1.0)
            self.say(over)

    def fence(self, number: int) -> None:
        """A host that was cut off ends its workers itself; then, and only then, the weaver says so."""
        host = self.host(number)
        self.say(NodeUnreachable(node=host.node, silent_s=3.5))
        self.in_flight = [e for e in self.in_flight if e.node != host.node]
        for ref in list(host.processes):
            host.end(ref, KILLED, self.now_ns)
        if number % 3 == 0:
            host.kill_agent()
        jobs = tuple(sorted(self.fleet.nodes[host.node].jobs))
        self.say(NodeGone(node=host.node, by="self-fencing", fenced=jobs))

    def calm(self, rounds: int = 80) -> None:
        for node in list(self.fleet.nodes.values()):
            if node.drained:
                self.say(NodeDrained(node=node.id, by="ann", open=True))
        super().calm(rounds)

    def _may_begin_once_more(self, job: Job) -> None:
        key = (job.id, job.submitted_at_ns)
        self._restores[key] = self._restores.get(key, 0) + 1


MOVES: dict[str, Callable[[MovingWorld, int], None]] = {
    **ACTIONS,
    "drain": MovingWorld.drain,
    "open node": MovingWorld.open_node,
    "find": MovingWorld.find,
    "fence": MovingWorld.fence,
}
MOVE_WEIGHTS = {**WEIGHTS, "drain": 3, "open node": 6, "find": 12, "fence": 2}
