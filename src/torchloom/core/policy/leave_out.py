"""A replica of a torchft job that costs more than it gives is left out of the quorum, and taken back.

With N replicas in lock-step a step takes as long as the slowest one; without it there are N − 1 replicas with
a shorter step. The replica that is left out keeps its processes and waits. After a while it is tried again:
it gets the others' weights and takes part until its own time is measured. As fast as the others, it stays;
else it is left out for twice as long. Never so that too few replicas remain, and only if the policy says so.
core/detect/slow_replicas.py measures, core/quorum.py has what the lighthouse does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torchloom.core.detect.slow_replicas import SLOWER, ReplicaPace, others_of, pace_of
from torchloom.core.detect.words import change, lasting
from torchloom.core.policy.reporting import key
from torchloom.core.recovery.incidents import close
from torchloom.core.steering.shared import lighthouse_node, replicas_of
from torchloom.core.steering.stop import stop_requested
from torchloom.core.turn import Turn
from torchloom.model.effects import SeatReplica
from torchloom.model.events import FindingMade, ReplicasMeasured, StopRequested
from torchloom.model.findings import Finding
from torchloom.model.fleet import Fleet, Job, JobState
from torchloom.model.incidents import Decision, DecisionOutcome, EndedBy, Ending, Incident
from torchloom.model.policy import LeftOutReplica
from torchloom.model.timers import TimerKind
from torchloom.model.windows import RankWindow

WORTH = 1.1
"""The others alone must train at least this much faster, in samples a second …"""
GAINED = 1.03
"""… and if it turns out to be less than this, the replica is taken back."""
RECOVERED = (1 + SLOWER) / 2
"""A replica that is slower by less than this is as fast as the others."""
FEWEST = 2
"""Replicas that must remain: a single one would have nobody to get its weights from."""
MEASURED = 8
"""Steps in one quorum that show what was gained, or how fast it is in a trial."""
LONGEST_S = 3600.0
"""At the latest after this long it is tried again."""


# -- choosing -----------------------------------------------------------------------------------
def _input(finding: Finding, name: str) -> float:
    found = finding.inputs.get(name)
    return float(found) if isinstance(found, int | float) else 0.0


def expected_gain(finding: Finding) -> float:
    """Samples a second without it against with it."""
    return _gain(int(_input(finding, "replicas")), _input(finding, "ratio"))


def _gain(replicas: int, slower: float) -> float:
    return (replicas - 1) / replicas * slower if replicas else 0.0


def why_not(job: Job, finding: Finding) -> str:
    """Why it cannot be done; empty if it can."""
    seat, remain = job.spec.replica, int(_input(finding, "replicas")) - 1
    if seat is None:
        return "it is not a replica of a torchft job"
    if job.left_out is not None:
        return "it is left out already"
    if job.state is not JobState.RUNNING or job.paused:
        return "it does not train at the moment"
    least = max(FEWEST, seat.min_replicas, (seat.size + 1) // 2)
    if remain < least:
        return f"only {remain} of {seat.size} replicas would remain, and at least {least} must"
    gain = expected_gain(finding)
    if gain < WORTH:
        return f"the other {remain} replicas alone would train {gain:.2f}× as fast, which is not worth it"
    return ""


def how(finding: Finding) -> str:
    remain = int(_input(finding, "replicas")) - 1
    return f"the other {remain} replicas alone should train {expected_gain(finding):.2f}× as fast"


def advice(job: Job, finding: Finding) -> str:
    """For slowness that is only reported: what the action would gain. Empty where it would not help."""
    if finding.kind != "replica-slow" or why_not(job, finding):
        return ""
    return f"`leave-out` in the policy would make the job about {expected_gain(finding):.2f}× as fast"


def is_under_way(job: Job, incident: Incident, action: str) -> bool:
    """Whether it is left out because of this, so that measuring decides what follows."""
    left = job.left_out
    return left is not None and left.incident == incident.id and action in ("leave-out", "report")


def is_held(job: Job) -> bool:
    """Whether it waits because it is left out: then it makes no step, and that is no fault."""
    cut = job.cut_off is not None and job.cut_off.out
    return cut or (job.left_out is not None and job.left_out.state in ("leaving", "out"))


def seat_note(job: Job) -> str:
    """Of a replica that trains with the others for a while, or not at all: its state does not show it."""
    left, cut = job.left_out, job.cut_off
    if cut is not None and cut.out and not job.ended:
        return f"; left out of the quorum because it cannot reach all others ({cut.incident})"
    if left is None or job.ended:
        return ""
    if is_held(job):
        again = f", tried again after {lasting(left.wait_s)}" if left.wait_s else ""
        return f"; left out of the quorum because it is slow ({left.incident}){again}"
    return f"; was left out of the quorum because it is slow ({left.incident}), and is tried again now"


# -- acting -------------------------------------------------------------------------------------
def leave_out(turn: Turn, job: Job, incident: Incident, event: FindingMade, reason: str) -> None:
    finding = event.finding
    incident.timeline.decided_ns = turn.now_ns
    job.left_out = LeftOutReplica(
        incident=incident.id,
        replicas=int(_input(finding, "replicas")),
        before_s=_input(finding, "own_s"),
        quorum=int(_input(finding, "quorum")),
        since_ns=turn.now_ns,
    )
    _decide(incident, DecisionOutcome.PENDING, reason)
    _seat(turn, job, job.left_out, incident.verdict, out=True)


def _seat(turn: Turn, job: Job, left: LeftOutReplica, reason: str, *, out: bool) -> None:
    assert job.spec.replica is not None, job.id
    left.state = "leaving" if out else "returning"
    name = job.spec.replica.set
    turn.want(
        SeatReplica(
            id=turn.next_effect_id(),
            cause=turn.seq,
            reason=reason,
            node=lighthouse_node(turn.fleet, name),
            job=job.id,
            set=name,
            generation=job.generation,
            out=out,
        )
    )


def seated(turn: Turn, effect: SeatReplica) -> None:
    """The lighthouse has done it."""
    job = turn.fleet.jobs.get(effect.job)
    left = job.left_out if job is not None else None
    if job is None or left is None or effect.generation != job.generation:
        return
    if not effect.out:
        left.state = "trial"
        if left.back:
            _conclude(turn, job, left, left.back)
        return
    left.state, left.wait_s = "out", _wait_s(job, left)
    turn.set_timer(TimerKind.TAKE_BACK, job, left.wait_s)
    if (incident := _incident(turn, left)) is not None and not left.trials:
        _decide(incident, DecisionOutcome.DONE, _so_far(left))


def seat_failed(turn: Turn, effect: SeatReplica, why: str) -> None:
    job = turn.fleet.jobs.get(effect.job)
    left = job.left_out if job is not None else None
    if job is None or left is None or effect.generation != job.generation:
        return
    if not effect.out:  # it still is left out, and nobody else would take it back
        left.state = "out"
        turn.set_timer(TimerKind.TAKE_BACK, job, left.wait_s)
        return
    incident, job.left_out = _incident(turn, left), None
    if incident is not None:
        _decide(incident, DecisionOutcome.REFUSED, why)


def time_is_up(turn: Turn, job: Job) -> None:
    """It has been left out for long enough: try it again."""
    left = job.left_out
    if left is not None and left.state == "out" and job.state is JobState.RUNNING:
        left.trials += 1
        _seat(turn, job, left, f"it is tried again after {lasting(left.wait_s)}", out=False)


def others_finished(turn: Turn, name: str) -> None:
    """All replicas but those left out have finished the training: nothing is left for these to do."""
    ended = turn.fleet.jobs.get(name)
    if ended is None or ended.spec.replica is None or ended.state is not JobState.COMPLETED:
        return
    rest = replicas_of(turn.fleet, ended.spec.replica.set)
    if rest and all(is_held(job) for job in rest):
        for job in rest:
            stop_requested(turn, StopRequested(job=job.id, by="policy: the other replicas have finished"))


def _wait_s(job: Job, left: LeftOutReplica) -> float:
    """Twice as long after every trial that failed."""
    return float(min(LONGEST_S, job.spec.policy.take_back_s * 2 ** min(left.trials, 12)))


# -- measuring ----------------------------------------------------------------------------------
def paces_of(
    fleet: Fleet, job: Job, windows: Callable[[str], Sequence[RankWindow]]
) -> dict[str, ReplicaPace]:
    """Of all replicas of its torchft job whose windows are fresh."""
    if job.spec.replica is None or job.paused:
        return {}
    found = {}
    for replica in replicas_of(fleet, job.spec.replica.set):
        seen = windows(replica.id)
        pace = pace_of(seen) if len(seen) == len(replica.workers) else None
        if pace is not None:
            found[replica.id] = pace
    return found


def measure(job: Job, paces: Mapping[str, ReplicaPace]) -> ReplicasMeasured | None:
    """How a replica that is left out, or is tried again, and the others do; None if that is no news."""
    others, mine = others_of(paces, job.id), paces.get(job.id)
    if job.left_out is None or not others:
        return None
    quorum = next(iter(others.values())).quorum
    measured = [*others.values(), mine] if mine is not None and mine.quorum == quorum else [*others.values()]
    if min(pace.steps for pace in measured) < MEASURED:
        return None
    event = ReplicasMeasured(
        job=job.id,
        generation=job.generation,
        quorum=quorum,
        own_s=mine.own_s if mine is not None and mine.quorum == quorum else None,
        others_s=max(pace.own_s for pace in others.values()),
        step_s=max(pace.step_s for pace in others.values()),
    )
    return event if is_news(job.left_out, event) else None


def is_news(left: LeftOutReplica, event: ReplicasMeasured) -> bool:
    """Whether anything follows from it. Steps of the quorum in which it was found slow are no news."""
    if event.quorum <= left.quorum:
        return False
    if event.own_s is None:
        return left.state == "out" and not left.after_s
    return left.state in ("out", "trial")


def replicas_measured(turn: Turn, event: ReplicasMeasured) -> None:
    """Report what it gained; after a trial, let it stay or leave it out again."""
    job = turn.fleet.jobs.get(event.job)
    left = job.left_out if job is not None else None
    if job is None or left is None or job.generation != event.generation or not is_news(left, event):
        return
    incident = _incident(turn, left)
    if incident is None:
        left.back = "its incident is closed"
        _seat(turn, job, left, left.back, out=False)
        return
    if event.own_s is None:
        left.after_s = event.step_s
        _decide(incident, DecisionOutcome.DONE, _so_far(left))
        if left.gain < GAINED:
            left.back = "it gained nothing"
            _seat(turn, job, left, left.back, out=False)
        return
    slower = event.own_s / max(event.others_s, 1e-9)
    left.quorum = event.quorum
    if slower < RECOVERED:
        _conclude(turn, job, left, f"{job.id} is as fast as the others again")
        return
    if _gain(left.replicas, slower) <= 1:
        _conclude(turn, job, left, f"{job.id} takes {slower:.1f}× as long as the others, which is worth it")
        return
    turn.cancel_timer(TimerKind.TAKE_BACK, job)
    again = f"tried again after {lasting(left.wait_s)}, it still took {slower:.1f}× as long as the others"
    _decide(incident, DecisionOutcome.DONE, f"{_so_far(left)}; {again}")
    _seat(turn, job, left, again, out=True)


def _conclude(turn: Turn, job: Job, left: LeftOutReplica, why: str) -> None:
    incident, job.left_out = _incident(turn, left), None
    turn.cancel_timer(TimerKind.TAKE_BACK, job)
    if incident is None:
        return
    lasted = lasting((turn.now_ns - left.since_ns) / 1e9)
    _decide(incident, DecisionOutcome.DONE, f"{_so_far(left)}; taken back after {lasted}, because {why}")
    close(turn, job, incident, Ending(EndedBy.ITSELF, why))
    if incident.finding is not None:
        job.findings.pop(key(incident.finding), None)


def _so_far(left: LeftOutReplica) -> str:
    text = f"left out of the quorum; the other {left.replicas - 1} replicas train without it"
    if not left.after_s:
        return text
    took = change(left.before_s, left.after_s)
    return f"{text}: their steps went from {took}, at least {left.gain:.2f}× the samples a second"


def _incident(turn: Turn, left: LeftOutReplica) -> Incident | None:
    found = turn.fleet.incidents.get(left.incident)
    return found if found is not None and found.open else None


def _decide(incident: Incident, outcome: DecisionOutcome, reason: str) -> None:
    incident.decided = Decision(action="leave-out", outcome=outcome, reason=reason)
