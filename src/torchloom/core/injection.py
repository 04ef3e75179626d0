"""Which faults may be injected, what their numbers mean, and to whom an injection goes.

Chooses and checks; the agent (signals, load) and the probe (everything inside the worker) do it. Every
injection is an event before it happens, so that the detectors' findings can be compared with the truth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from msgspec.structs import replace

from torchloom.core.config.settings import unknown_name
from torchloom.core.turn import Turn
from torchloom.errors import UsageError
from torchloom.model.effects import InjectFault
from torchloom.model.events import FaultInjected
from torchloom.model.faults import Fault, FaultKind

LONGEST_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Description:
    """One kind of fault, for the check and for people."""

    what: str
    amount: str = ""
    """What its number means; empty: it has none."""
    default: float = 0.0
    least: float = 0.0
    most: float = 0.0
    by_agent: bool = False
    """Done to the worker from outside. Everything else needs a worker with a black box that makes steps."""
    everybody: bool = False
    """Makes sense only on all ranks at one step."""
    lasting: bool = False
    """Lasts until `duration_s` is over; others happen once."""
    needs_duration: bool = False
    """Nothing else would end it."""
    has_peer: bool = False
    """It is between two ranks."""
    of_checkpoints: bool = False
    """It makes no sense for a job without them."""
    in_store: bool = False
    """Done to the stored data, by the agent that reads the catalogue; no worker is involved."""


_PACE = ("MB/s", 10.0, 0.01, 100_000.0)
KINDS: dict[FaultKind, Description] = {
    "kill": Description("SIGKILL", by_agent=True),
    "stop": Description("SIGSTOP, and SIGCONT after the duration", by_agent=True, lasting=True),
    "contention": Description(
        "other programs on the worker's only core", "how many", 2, 1, 16, by_agent=True, lasting=True
    ),
    "cpu-quota": Description(
        "the kernel gives the worker a share of a core (cgroup; the agent needs the right to make one)",
        "percent",
        25,
        5,
        100,
        by_agent=True,
        lasting=True,
    ),
    "exit": Description("the script exits", "exit code", 1, 0, 255),
    "hang": Description("the training thread never continues", lasting=True),
    "gil-hold": Description("a call that never gives up the interpreter's lock", lasting=True),
    "slow": Description("more computation in every step", "times as long", 1.5, 1.01, 100, lasting=True),
    "data-slow": Description("every batch comes later", "milliseconds", 100, 1, 600_000, lasting=True),
    "nan": Description("a gradient becomes not-a-number"),
    "gradient": Description("gradients are multiplied", "factor", 1000, -1e12, 1e12),
    "bit-flip": Description("one bit of one parameter changes on this rank only"),
    "mismatch": Description("a collective of another size than the others' next one"),
    "skip": Description("one step's gradients are not reduced here"),
    "deadlock": Description("two collectives in another order on every second rank", everybody=True),
    "memory": Description("memory is taken and touched", "MiB", 256, 1, 1 << 20, lasting=True),
    "disk-full": Description("saving a checkpoint finds no room", lasting=True, of_checkpoints=True),
    "device-error": Description("the backward pass fails as with a broken device"),
    "checkpoint-damage": Description(
        "one bit of the newest checkpoint in the store is flipped",
        by_agent=True,
        of_checkpoints=True,
        in_store=True,
    ),
    "slow-link": Description(
        "what a rank sends to --peer is paced by the kernel", *_PACE, lasting=True, has_peer=True
    ),
    "slow-sender": Description("all that a rank sends is paced by the kernel", *_PACE, lasting=True),
    "slow-receiver": Description("all that is sent to a rank is paced by the kernel", *_PACE, lasting=True),
    "partition": Description(
        "the agent of the rank's node does not reach NATS", by_agent=True, lasting=True, needs_duration=True
    ),
    "agent-kill": Description("SIGKILL to the agent of the rank's node", by_agent=True),
    "weaver-kill": Description("SIGKILL to the control service on the rank's node", by_agent=True),
    "nats-kill": Description("SIGKILL to nats-server on the rank's node", by_agent=True),
}
assert set(KINDS) == set(get_args(FaultKind))


def check(fault: Fault, ranks: tuple[int, ...], world: int) -> Fault:
    """The fault as it will be done, its number filled in; UsageError if it makes no sense."""
    known = KINDS[fault.kind]
    if not ranks:
        raise UsageError("No rank is named", hint="name the ranks to hit, for example --rank 1")
    wrong = [rank for rank in ranks if not 0 <= rank < world]
    if wrong:
        raise UsageError(f"There is no rank {wrong[0]}", hint=f"the job has ranks 0 to {world - 1}")
    if known.everybody and (set(ranks) != set(range(world)) or world < 2):
        raise UsageError(f"{fault.kind} must hit all ranks of a job of at least 2", hint="leave --rank out")
    if not 0 <= fault.duration_s <= LONGEST_S:
        raise UsageError(f"A fault lasts 0 to {LONGEST_S:g} s")
    if fault.duration_s and not known.lasting:
        raise UsageError(f"{fault.kind} happens once and has no duration")
    if known.needs_duration and not fault.duration_s:
        raise UsageError(f"{fault.kind} needs an end", hint="for example --for 20s")
    _check_peer(fault, ranks, world)
    if fault.at_step is not None and known.by_agent:
        raise UsageError(f"{fault.kind} comes from outside and knows no step")
    if fault.where != "step" and fault.kind != "hang":
        raise UsageError(f"{fault.kind} has no place", hint="only a hang has one")
    if fault.amount is None:
        return replace(fault, amount=known.default)
    if not known.amount:
        raise UsageError(f"{fault.kind} has no number")
    if not known.least <= fault.amount <= known.most:
        raise UsageError(
            f"{fault.kind} cannot have {fault.amount:g}",
            hint=f"{known.amount}: {known.least:g} to {known.most:g}",
        )
    return fault


def _check_peer(fault: Fault, ranks: tuple[int, ...], world: int) -> None:
    if fault.kind == "slow-receiver" and set(ranks) == set(range(world)):
        raise UsageError("Nobody is left to send to a slow receiver", hint="name one, for example --rank 1")
    if not KINDS[fault.kind].has_peer:
        if fault.peer is not None:
            raise UsageError(f"{fault.kind} has no peer", hint="only a slow link has one")
        return
    if fault.peer is None:
        raise UsageError(f"{fault.kind} needs its other end", hint="for example --rank 1 --peer 2")
    if not 0 <= fault.peer < world or fault.peer in ranks:
        raise UsageError(
            f"Rank {fault.peer} is no other end of this link", hint=f"the job has ranks 0 to {world - 1}"
        )


def _workers(event: FaultInjected, world: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ranks that must do something, and those among them that are sent to slowly."""
    fault = event.fault
    if fault.kind == "slow-receiver":
        return tuple(range(world)), event.ranks
    if fault.peer is not None:
        return (*event.ranks, fault.peer), (fault.peer,)
    return event.ranks, ()


def kind_of(name: str) -> FaultKind:
    """The kind that a person named."""
    for kind in KINDS:
        if kind == name:
            return kind
    raise unknown_name(name, KINDS, "there is no fault")


def fault_injected(turn: Turn, event: FaultInjected) -> None:
    """Send it to the agents of the workers it is meant for, if they are still those that were meant."""
    job = turn.fleet.jobs.get(event.job)
    if job is None or job.generation != event.generation or KINDS[event.fault.kind].in_store:
        return
    by_node: dict[str, list[int]] = {}
    hit = ", ".join(map(str, event.ranks))
    ranks_told, peers = _workers(event, len(job.workers))
    for rank in ranks_told:
        if rank < len(job.workers) and job.workers[rank].alive:
            by_node.setdefault(job.workers[rank].node, []).append(rank)
    for node, ranks in by_node.items():
        turn.want(
            InjectFault(
                id=turn.next_effect_id(),
                cause=turn.seq,
                reason=f"{event.by} injects {event.fault.kind} into rank {hit}",
                node=node,
                fault=event.fault,
                name=event.name,
                workers=tuple(job.workers[rank].ref for rank in ranks),
                peers=peers,
            )
        )
