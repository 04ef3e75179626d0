"""A slow rank takes fewer samples of each step: how many, whether that helped, and when they are given back.

Owns the shares that a policy asked for. All ranks change them at one step (the same operation as a person's
`loom set JOB shares=…`), and the loader keeps the samples of a step and their weights what they were. What a
rank takes is corrected by what is measured, a few times; given back when the rank is as fast as the others
per sample, when it gained nothing, or when the rank is somewhere else. pace.py measures.
"""

from __future__ import annotations

from torchloom.core.config.batch_shares import EVEN, shares_of, write_shares
from torchloom.core.config.settings import SHARES
from torchloom.core.detect.words import change, lasting, ranks_text
from torchloom.core.policy.pace import corrected, recovered
from torchloom.core.policy.reporting import key
from torchloom.core.recovery.incidents import close
from torchloom.core.steering.driver import change_requested
from torchloom.core.turn import Turn
from torchloom.model.events import ChangeRequested, FindingMade, PaceMeasured
from torchloom.model.findings import Finding
from torchloom.model.fleet import Job, JobState
from torchloom.model.incidents import Decision, DecisionOutcome, EndedBy, Ending, Incident
from torchloom.model.policy import Action, Balance
from torchloom.model.steering import OperationRecord, Origin
from torchloom.model.transaction.messages import Kind

LEAST = 0.25
"""Nobody takes less than this of what another rank takes: the others would take too much more."""
WORTH = 1.03
"""Shares that make the job faster by less than this are given back."""
NOT_OURS = "the script does not load its data with loom.ElasticLoader, or does not weigh its loss with it"


# -- choosing -----------------------------------------------------------------------------------


def _ratio(finding: Finding) -> float:
    ratio = finding.inputs.get("ratio")
    return float(ratio) if isinstance(ratio, int | float) else 0.0


def helps(finding: Finding) -> bool:
    """Whether fewer samples on these ranks would make up for it."""
    known = finding.traits.by_sample and bool(finding.ranks) and "every" not in finding.inputs
    return known and _ratio(finding) > 1 + 1e-3


def _weight(finding: Finding) -> float:
    return round(max(LEAST, 1 / _ratio(finding)), 3)


def why_not(job: Job, event: FindingMade) -> str:
    """Why it cannot be done; empty if it can."""
    finding, balance = event.finding, job.balance
    if not helps(finding):
        return "it is not known how much slower a sample is on which rank"
    if job.spec.replica is not None:
        return "replicas of torchft keep equal shares"
    if job.state is not JobState.RUNNING or not job.control.step or job.paused:
        return "not every rank makes steps"
    if event.shares is None:
        return NOT_OURS
    if balance is None and event.shares != EVEN:
        return f"a person has set the shares ({event.shares})"
    if balance is not None and (balance.back or not balance.since_step):
        return "its shares are being changed already"
    if len({*finding.ranks, *(balance.weights if balance else ())}) > len(job.workers) // 2:
        return "more than half of the ranks would take less"
    return ""


def how(job: Job, event: FindingMade) -> str:
    finding = event.finding
    verb = "takes" if len(finding.ranks) == 1 else "take"
    return (
        f"{ranks_text(finding.ranks)} {verb} {_weight(finding):.0%} of the samples that each other rank takes"
    )


def advice(job: Job, event: FindingMade) -> str:
    """For slowness that is only reported: what the action would gain. Empty where it would not help."""
    finding = event.finding
    if not helps(finding) or len(finding.ranks) > len(job.workers) // 2 or job.spec.replica is not None:
        return ""
    gain = expected_gain(job, event)
    if gain < WORTH:
        return ""
    if event.shares is None:
        return (
            f"fewer samples on {ranks_text(finding.ranks)} would make the job about {gain:.2f}× as fast, "
            f"but {NOT_OURS}"
        )
    return f"`rebalance` in the policy would make the job about {gain:.2f}× as fast"


def expected_gain(job: Job, event: FindingMade) -> float:
    """The job's speed with balanced shares against its speed now: at most what the slow ranks cost it."""
    finding, world = event.finding, len(job.workers)
    ratio, weight = _ratio(finding), _weight(finding)
    excess = finding.inputs.get("excess_s")
    if not isinstance(excess, int | float) or event.step_s <= 0:
        return 1.0
    peers_s = excess / (ratio - 1)
    more = world / (world - len(finding.ranks) * (1 - weight))
    saved_s = peers_s * (ratio - more * max(1.0, ratio * weight))
    gain = event.step_s / max(event.step_s - saved_s, 0.1 * event.step_s)
    cost = finding.inputs.get("cost")
    return min(gain, 1 / max(0.1, 1 - cost)) if isinstance(cost, int | float) else gain


def is_under_way(job: Job, incident: Incident, action: str) -> bool:
    """Whether the shares were changed because of this, so that measuring decides what follows."""
    balance = job.balance
    return balance is not None and balance.incident == incident.id and action in ("rebalance", "report")


def open_keys(job: Job) -> list[str]:
    """Faults that the stream has open and that end when they are not found any more. A rank that takes fewer
    samples, or a replica that is left out, is not found any more, although it is as slow as before."""
    held = {one.incident for one in (job.balance, job.left_out) if one is not None}
    return [name for name, id in job.findings.items() if id not in held]


def holds_open(job: Job, finding_key: str) -> bool:
    return finding_key in job.findings and finding_key not in open_keys(job)


# -- acting -------------------------------------------------------------------------------------


def rebalance(turn: Turn, job: Job, incident: Incident, event: FindingMade, reason: str) -> None:
    finding, before = event.finding, job.balance
    incident.timeline.decided_ns = turn.now_ns
    asked = {rank: _weight(finding) for rank in finding.ranks}
    _decide(incident, DecisionOutcome.PENDING, reason)
    if before is not None:
        _ask(turn, job, before, {**before.weights, **asked}, incident.verdict)
        return
    balance = Balance(
        incident=incident.id,
        generation=job.generation,
        world=len(job.workers),
        weights={},
        nodes={},
        operation="",
        before_s=event.step_s,
    )
    job.balance = balance
    _ask(turn, job, balance, asked, incident.verdict)


def _ask(turn: Turn, job: Job, balance: Balance, asked: dict[int, float], why: str, back: str = "") -> None:
    balance.asked, balance.back = asked, back
    balance.operation = f"{balance.incident}.shares.{turn.seq}"
    balance.nodes = {rank: job.workers[rank].node for rank in asked if rank < len(job.workers)}
    change_requested(
        turn,
        ChangeRequested(
            job=job.id,
            operation=balance.operation,
            kind=Kind.SET,
            values={SHARES: write_shares(shares_of(balance.world, asked))},
            two_phase=True,
            step_s=balance.before_s,
            by="policy",
            why=why,
            origin=Origin.POLICY,
            incident=balance.incident,
        ),
    )


def _give_back(turn: Turn, job: Job, balance: Balance, why: str) -> None:
    _ask(turn, job, balance, {}, f"even shares again: {why}", back=why)


def pace_measured(turn: Turn, event: PaceMeasured) -> None:
    """Correct the shares, give them back, or report what they gained."""
    job = turn.fleet.jobs.get(event.job)
    balance = job.balance if job is not None else None
    if job is None or balance is None or job.generation != event.generation or job.paused:
        return
    if event.operation != balance.operation or balance.back or job.state is not JobState.RUNNING:
        return
    if balance.generation != job.generation:
        moved = any(
            rank >= len(job.workers) or job.workers[rank].node != node for rank, node in balance.nodes.items()
        )
        if moved or balance.world != len(job.workers):
            _give_back(turn, job, balance, "the job has other places or another size now")
            return
        balance.generation = job.generation
    balance.measured = balance.operation
    gained = balance.before_s / event.step_s if event.step_s > 0 else 0.0
    fast = recovered(balance, event)
    asked = corrected(balance, event, LEAST)
    if fast and len(fast) == len(balance.weights):
        _give_back(turn, job, balance, f"{ranks_text(fast)} {_is(fast)} as fast as the others again")
    elif asked != balance.weights:
        balance.changes += 1
        _ask(turn, job, balance, asked, "the shares are corrected by what was measured")
    elif gained < WORTH:
        took = change(balance.before_s, event.step_s)
        _give_back(turn, job, balance, f"it gained nothing: steps went from {took}")
    elif (incident := _incident(turn, balance)) is not None:
        took = change(balance.before_s, event.step_s)
        _decide(
            incident, DecisionOutcome.DONE, f"{_in_force(balance)}; steps went from {took} ({gained:.2f}×)"
        )


# -- outcomes -----------------------------------------------------------------------------------


def shares_changed(turn: Turn, job: Job, record: OperationRecord) -> None:
    """All ranks have changed settings at one step."""
    balance = job.balance
    if balance is None or SHARES not in record.values:
        return
    incident = _incident(turn, balance)
    if record.id != balance.operation:
        job.balance = None
        if incident is not None:
            _decide(incident, DecisionOutcome.REFUSED, f"{record.by} set the shares since then")
        return
    if balance.back:
        job.balance = None
        if incident is not None:
            _ended(turn, job, incident, balance)
        return
    balance.weights, balance.since_step = balance.asked, record.at_step or 1
    balance.generation = job.generation
    if incident is not None:
        _decide(incident, DecisionOutcome.DONE, _in_force(balance))


def shares_not_changed(turn: Turn, job: Job, record: OperationRecord) -> None:
    """No rank has: what was in force before still is."""
    balance = job.balance
    if balance is None or record.id != balance.operation:
        return
    incident = _incident(turn, balance)
    if not balance.since_step:
        job.balance = None
        if incident is not None:
            _decide(incident, DecisionOutcome.REFUSED, record.reason)
        return
    balance.back, balance.asked = "", balance.weights  # the next measurement decides again


def rolled_back(turn: Turn, job: Job) -> None:
    """The ranks went back to an earlier state, and with it to the shares of then."""
    if job.balance is not None and job.state is JobState.RUNNING:
        _give_back(turn, job, job.balance, "the job was rolled back")


def _ended(turn: Turn, job: Job, incident: Incident, balance: Balance) -> None:
    lasted_s = (turn.now_ns - incident.timeline.decided_ns) / 1e9
    text = f"{_in_force(balance)}, for {lasting(lasted_s)}; even shares again, because {balance.back}"
    _decide(incident, DecisionOutcome.DONE, text)
    close(turn, job, incident, Ending(EndedBy.ITSELF, balance.back))
    if incident.finding is not None:
        job.findings.pop(key(incident.finding), None)


def _incident(turn: Turn, balance: Balance) -> Incident | None:
    found = turn.fleet.incidents.get(balance.incident)
    return found if found is not None and found.open else None


def _in_force(balance: Balance) -> str:
    parts = [
        f"{ranks_text((rank,))} took {weight:.0%} of the samples of each other rank"
        for rank, weight in sorted(balance.weights.items())
    ]
    text = f"rebalanced from step {balance.since_step} on: {', '.join(parts)}"
    return text if balance.back else text.replace(" took ", " takes ")


def _is(ranks: list[int]) -> str:
    return "is" if len(ranks) == 1 else "are"


def _decide(incident: Incident, outcome: DecisionOutcome, reason: str) -> None:
    action: Action = "rebalance"
    incident.decided = Decision(action=action, outcome=outcome, reason=reason)
