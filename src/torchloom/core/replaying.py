"""Applies recorded events to the core again and explains each: what it changed, what was decided and why.

Pure: the caller reads the stream. What the replay decides is compared with what the stream recorded at the
time (`Decided`), so a replay that differs is visible as such.
"""

from __future__ import annotations

from collections import deque

import msgspec

from torchloom.core.changes import apply_and_compare
from torchloom.core.detect.words import ranks_text
from torchloom.core.notices import notice_of
from torchloom.core.turn import jobs_of
from torchloom.model.effects import Effect, InjectFault, PostMail, StartWorkers, StopWorkers
from torchloom.model.events import Decided, Envelope
from torchloom.model.fleet import Fleet, Job, WorkerState
from torchloom.model.incidents import Incident
from torchloom.model.replayed import Replay, ReplayedDecision, ReplayedStep, StateChange

BEFORE, AFTER = 5, 3
"""Steps of the job that are shown before the incident opens and after it is over."""
MOST_STEPS = 400
LEAD_NS = 30_000_000_000
"""Events this long before the first sign are only applied, not explained."""


class Replaying:
    """One replay of an incident, as it proceeds. Give it every event from the snapshot on, in order."""

    def __init__(self, fleet: Fleet, incident: Incident) -> None:
        self._fleet, self._wanted = fleet, incident
        self._explain_from_ns = began_ns(incident) - LEAD_NS
        self._near: deque[ReplayedStep] = deque(maxlen=BEFORE)
        self._first: list[ReplayedStep] = []
        self._rest: deque[ReplayedStep] = deque(maxlen=MOST_STEPS // 2)
        self._left_out = 0
        self._after = 0
        self._made: dict[str, Effect] = {}
        self._recorded: dict[str, Effect] = {}
        self.begins_inside = incident.id in fleet.incidents
        """The incident was open before the first event that is still kept."""

    @property
    def over(self) -> bool:
        """Whether later events add nothing."""
        known = self._fleet.incidents.get(self._wanted.id)
        ended = known is not None and not known.open and not self._wanted.open
        return ended and known is not None and known.ended_ns == self._wanted.ended_ns and not self._after

    def apply(self, envelope: Envelope, seq: int, at_ns: int) -> None:
        job = self._wanted.job
        was_open, before = self._open, facets(self._fleet, job) if at_ns >= self._explain_from_ns else None
        change = apply_and_compare(self._fleet, envelope, seq, at_ns)
        if change is None or before is None:
            return
        if isinstance(envelope.body, Decided):
            self._recorded.update((e.id, e) for e in envelope.body.effects if job in jobs_of(e))
            return
        effects = tuple(effect for effect in change.effects if job in jobs_of(effect))
        changes = difference(before, facets(self._fleet, job))
        if not effects and not changes and change.job != job:
            return
        self._made.update((effect.id, effect) for effect in effects)
        notice = notice_of(change)
        step = ReplayedStep(
            seq=seq,
            at_ns=at_ns,
            kind=notice.kind,
            text=notice.text,
            changes=changes,
            decisions=tuple(ReplayedDecision(effect, ranks_of(effect, job)) for effect in effects),
        )
        self._keep(step, was_open or self._open)

    def result(self, dropped_before: int = 0) -> Replay:
        of_steps = {d.effect.id for step in (*self._first, *self._rest) for d in step.decisions}
        checked = [id for id in self._recorded if id in self._made and id in of_steps]
        return Replay(
            incident=self._wanted.id,
            job=self._wanted.job,
            steps=tuple(self._judged(step) for step in (*self._first, *self._rest)),
            left_out=self._left_out,
            dropped_before=dropped_before if self.begins_inside else 0,
            checked=len(checked),
            differing=sum(not _same(self._made[id], self._recorded[id]) for id in checked),
        )

    @property
    def _open(self) -> bool:
        known = self._fleet.incidents.get(self._wanted.id)
        return known is not None and known.open

    def _keep(self, step: ReplayedStep, concerned: bool) -> None:
        if not concerned and not self._after:
            self._near.append(step)
            return
        self._after = AFTER if concerned else self._after - 1
        for one in (*self._near, step):
            if len(self._first) < MOST_STEPS // 2:
                self._first.append(one)
            else:
                self._left_out += len(self._rest) == self._rest.maxlen
                self._rest.append(one)
        self._near.clear()

    def _judged(self, step: ReplayedStep) -> ReplayedStep:
        judged = []
        for one in step.decisions:
            known = self._recorded.get(one.effect.id)
            if known is not None:
                said = "same" if _same(one.effect, known) else "differs"
                one = msgspec.structs.replace(one, recorded=said)
            judged.append(one)
        return msgspec.structs.replace(step, decisions=tuple(judged))


def began_ns(incident: Incident) -> int:
    """The earliest time that the incident knows of."""
    line = incident.timeline
    return min((ns for ns in (line.fault_ns, line.first_sign_ns, line.detected_ns) if ns), default=0)


def _same(made: Effect, recorded: Effect) -> bool:
    """Reasons are words, which a newer version may choose differently."""
    return msgspec.structs.replace(made, reason="") == msgspec.structs.replace(recorded, reason="")


def ranks_of(effect: Effect, job: str) -> tuple[int, ...]:
    match effect:
        case StartWorkers():
            return tuple(sorted(launch.ref.rank for launch in effect.launches))
        case StopWorkers() | PostMail() | InjectFault():
            return tuple(sorted(ref.rank for ref in effect.workers if ref.job == job))
        case _:
            return ()


Facets = dict[str | int, str]
"""What the core holds about a job, in words, by name; a number is a rank."""


def facets(fleet: Fleet, name: str) -> Facets:
    job = fleet.jobs.get(name)
    if job is None:
        return {}
    found: Facets = {
        "job": str(job.state),
        "why": job.reason,
        "generation": str(job.generation),
        "restarts": str(job.restarts),
        "paused": "yes" if job.paused else "no",
    }
    if job.plan is not None:
        when = f" after {job.plan.delay_s:.2f} s" if job.plan.delay_s else ""
        found["plan"] = f"{'restart' if job.plan.restart else 'no restart'}{when}: {job.plan.reason}"
    if job.checkpoints is not None and job.checkpoints.saved is not None:
        found["checkpoint"] = f"step {job.checkpoints.saved.step}"
    if job.rendezvous_generation:
        found["rendezvous"] = f"for generation {job.rendezvous_generation}"
        found["rendezvous"] += "" if job.rendezvous is not None else " (asked for)"
    found.update(_of_workers(job))
    for id in job.incidents[-4:]:
        if (incident := fleet.incidents.get(id)) is not None:
            found.update(_of_incident(incident))
    for timer in fleet.timers.values():
        if timer.job == name:
            found[f"timer {timer.kind}"] = "set"
    for operation in list(job.operations.values())[-4:]:
        found[f"operation {operation.id}"] = f"{operation.kind}: {operation.state}"
    for node in dict.fromkeys(worker.node for worker in job.workers):
        if (known := fleet.nodes.get(node)) is not None:
            found[f"node {node}"] = f"{known.state}, drained" if known.closed else str(known.state)
    return found


def _of_workers(job: Job) -> Facets:
    made: Facets = {}
    for worker in job.workers:
        how = f": {worker.exit.describe()}" if worker.exit is not None else ""
        stepping = ", stepping" if worker.first_step_at_ns and worker.state is WorkerState.RUNNING else ""
        made[worker.ref.rank] = f"{worker.state}{how}{stepping} (generation {worker.ref.generation})"
    return made


def _of_incident(incident: Incident) -> Facets:
    name = f"incident {incident.id}"
    made: Facets = {name: "open" if incident.open else "over", f"{name}, verdict": incident.verdict}
    if incident.culprit is not None:
        made[f"{name}, culprit"] = f"rank {incident.culprit}"
    if incident.decision:
        made[f"{name}, decision"] = incident.decision
    if incident.resolution:
        made[f"{name}, end"] = incident.resolution
    return made


def difference(before: Facets, after: Facets) -> tuple[StateChange, ...]:
    """What changed; ranks that changed alike are one entry."""
    found, ranks = [], dict[tuple[str, str], list[int]]()
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name, ""), after.get(name, "")
        if old == new:
            continue
        if isinstance(name, int):
            ranks.setdefault((old, new), []).append(name)
        else:
            found.append(StateChange(name, old, new))
    found += [StateChange(ranks_text(who), old, new) for (old, new), who in ranks.items()]
    return tuple(found)
