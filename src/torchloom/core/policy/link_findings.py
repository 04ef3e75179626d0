"""The ranks have measured their links: keeps the matrix, and reports what stands out as a finding.

Where the job's transfers are said to be slow already it is the same fault, and the incident learns whose it
is; otherwise a person asked, and what stood out is one incident of a moment. Measures nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torchloom.core.detect.matrix import judge_links
from torchloom.core.policy.findings import finding_made
from torchloom.core.policy.link_probing import note_probing
from torchloom.core.policy.reporting import LINKS_KEY
from torchloom.core.recovery.incidents import close
from torchloom.core.turn import Turn
from torchloom.model.events import FindingMade
from torchloom.model.findings import Finding
from torchloom.model.fleet import Job
from torchloom.model.incidents import EndedBy, Ending
from torchloom.model.links import LinkDelay, LinkMatrix
from torchloom.model.steering import OperationRecord, Origin
from torchloom.model.transaction.messages import Changed

TRANSFER_FLOOR_S = 0.005
"""A megabyte that takes this much longer than others is worth a word …"""
DELAY_FLOOR_S = 0.005
"""… and so is a message. Less is what a busy host does to anybody now and then."""
NOTHING = "no link, sender or receiver is unusual"


def links_measured(turn: Turn, job: Job, record: OperationRecord) -> None:
    told = (record.changed, *record.differing.values())
    record.changed, record.differing = (), {}  # they are in the matrix now
    delays = rows(told)
    names = {worker.ref.rank: f"rank {worker.ref.rank} on node {worker.node}" for worker in job.workers}
    found = judge(delays, names)
    matrix = LinkMatrix(
        operation=record.id,
        generation=record.generation,
        at_ns=turn.now_ns,
        at_step=record.training_step if record.training_step is not None else record.at_step,
        delays=delays,
        silent=_silent(told),
        verdict=found[0].sentence if found else NOTHING if delays else "no pair of ranks could be measured",
    )
    job.links = matrix
    record.reason = f"{record.reason}: {matrix.verdict}"
    suspected = turn.fleet.incidents.get(job.findings.get(LINKS_KEY, ""))
    known = suspected is not None and suspected.open
    if found and job.generation == record.generation:
        steps = max((worker.steps for worker in job.workers), default=0)
        finding_made(turn, FindingMade(job=job.id, generation=job.generation, finding=found[0], steps=steps))
    incident = turn.fleet.incidents.get(job.findings.get(LINKS_KEY, ""))
    if incident is None or not incident.open:
        return
    incident.links = matrix
    if not known:
        close(turn, job, incident, Ending(EndedBy.ITSELF, f"as measured once, at step {matrix.at_step}"))
        job.findings.pop(LINKS_KEY, None)


def links_not_measured(turn: Turn, job: Job, record: OperationRecord) -> None:
    """Record that no result will come, for the incident that waits for one."""
    incident = turn.fleet.incidents.get(job.findings.get(LINKS_KEY, ""))
    if record.origin is Origin.POLICY and incident is not None and incident.open:
        note_probing(incident, "failed", record.reason)


def judge(delays: Iterable[LinkDelay], names: Mapping[int, str]) -> list[Finding]:
    """What stands out: first in how long a megabyte takes, else in how long a message takes."""
    every = list(delays)
    transfers = {(d.sender, d.receiver): d.transfer_s for d in every}
    found = judge_links(transfers, names=names, what="a megabyte", floor_s=TRANSFER_FLOOR_S)
    if found:
        return found
    delay = {(d.sender, d.receiver): d.delay_s for d in every}
    return judge_links(delay, names=names, what="a small message", floor_s=DELAY_FLOOR_S)


def rows(told: Iterable[tuple[Changed, ...]]) -> tuple[LinkDelay, ...]:
    """What ranks reported about links. It comes from the user's process, so invalid rows are ignored."""
    found: dict[tuple[int, int], LinkDelay] = {}
    for changed in told:
        for address, delay_ns, transfer_ns in changed:
            sender, arrow, receiver = address.partition(">")
            if not (arrow and sender.isdecimal() and receiver.isdecimal()):
                continue
            if _is_time(delay_ns) and _is_time(transfer_ns):
                pair = int(sender), int(receiver)
                found[pair] = LinkDelay(*pair, float(str(delay_ns)) / 1e9, float(str(transfer_ns)) / 1e9)
    return tuple(found[pair] for pair in sorted(found))


def _silent(told: Iterable[tuple[Changed, ...]]) -> dict[int, str]:
    return {
        int(address[:-1]): str(why)[:200]
        for changed in told
        for address, _, why in changed
        if address.endswith(">") and address[:-1].isdecimal()
    }


def _is_time(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**13
