"""Sends one state of a rank of this host to its neighbour, whole or not at all.

Owns the sender's half of a `put` (door.py). Runs in the process for copies (copy_process.py).
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from torchloom.agent.neighbour import slot_transfer
from torchloom.agent.neighbour.channel import NeighbourFailed, call
from torchloom.agent.neighbour.plans import KeptPlan
from torchloom.agent.neighbour.slot_transfer import SendingPace

REPLACED = "its state in memory was replaced before it could be copied"
"""No trouble: a newer one is copied in a moment."""


class SendOrder(Struct, frozen=True):
    """Which state is to be sent, and where."""

    job: str
    folder: str
    plan: KeptPlan
    rank: int
    save: str
    keep: str
    """The save that the neighbour must not give up for it."""
    bytes_per_s: float


class CopyResult(Struct, frozen=True):
    """How that ended."""

    trouble: str
    """Empty: the neighbour has it."""
    ran_s: float = 0.0
    waited_s: float = 0.0
    """For a core."""


def send_state(order: SendOrder) -> CopyResult:
    """Never raises what a neighbour can cause."""
    began = _scheduled()
    trouble = _send(order)
    ran_s, waited_s = (after - before for before, after in zip(began, _scheduled(), strict=True))
    return CopyResult(trouble, ran_s, waited_s)


def _send(order: SendOrder) -> str:
    plan, peer = order.plan, order.plan.copy_to
    here = slot_transfer.own_slots(Path(order.folder), order.rank)
    found = [slot for slot in here if slot.header.save == order.save]
    if not found:
        return REPLACED
    try:
        with call(peer.host, peer.port, order.job, plan.secret) as channel:
            asked = {
                "rank": order.rank,
                "generation": plan.generation,
                "save": order.save,
                "keep": order.keep,
            }
            channel.say(ask="put", size=found[0].header.whole, **asked)
            if why := channel.hear().get("why"):
                raise NeighbourFailed(str(why))
            slot_transfer.send(channel, found[0], SendingPace(order.bytes_per_s), lambda: True)
            if channel.hear().get("done") is True:
                return ""
        return f"{peer.node} did not keep it"
    except NeighbourFailed as error:
        return f"{peer.node} has no copy: {error.message}"


def _scheduled() -> tuple[float, float]:
    """Seconds that this thread ran, and that it waited for a core."""
    with suppress(OSError, ValueError):
        ran, waited = Path("/proc/thread-self/schedstat").read_text().split()[:2]
        return int(ran) / 1e9, int(waited) / 1e9
    return 0.0, 0.0
