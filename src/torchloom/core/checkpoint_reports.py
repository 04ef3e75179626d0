"""What workers report about their checkpoints: kept with the job, and an incident when they fail.

Nothing here stops or starts a worker: a save that fails costs at most the steps since the one before.
"""

from __future__ import annotations

from msgspec.structs import replace

from torchloom.core.recovery.generation_start import find_worker
from torchloom.core.recovery.incidents import open_incident
from torchloom.core.steering.after_rollback import gone_back
from torchloom.core.turn import Turn
from torchloom.model.checkpoints import SavedCheckpoint
from torchloom.model.events import (
    CheckpointFailed,
    CheckpointRejected,
    CheckpointSaved,
    CheckpointStoreOpened,
    RestoreDiffered,
)
from torchloom.model.fleet import Differing, Job, JobCheckpoints
from torchloom.model.incidents import Decision, DecisionOutcome, Incident, Verdict

SAME_TROUBLE_NS = 300 * 10**9
"""A store that fails again this soon after it recovered is the same incident, opened again."""
REMEMBERED_REJECTIONS = 256


def checkpoint_store_opened(turn: Turn, event: CheckpointStoreOpened) -> None:
    """The newest generation has found its state; a restore that was asked for is carried out by that."""
    if find_worker(turn.fleet, event.ref, event.node) is None:
        return
    job = turn.fleet.jobs[event.ref.job]
    known = job.checkpoints
    if known is None or known.place != event.place:
        job.checkpoints = known = JobCheckpoints(place=event.place, node=event.node)
    known.node = event.node
    known.restored, known.restored_from = event.restored, event.restored_from
    known.restored_generation = event.ref.generation
    if event.restored and event.saved_step is not None:
        _found_in_store(turn, known, event.restored, event.saved_step, event.ref.generation)
    if event.restored_from and not event.restored and known.saved is not None:  # it looked and found nothing
        _deleted(turn, job, known.saved.name, f"generation {event.ref.generation} began from nothing")
        known.saved = None
    job.store_waits = 0
    incident = turn.fleet.incidents.get(job.incident)
    if incident is not None and event.restored and incident.generation < event.ref.generation:
        incident.timeline.restored_ns = incident.timeline.restored_ns or turn.now_ns
    if job.restore is not None and event.restored and event.ref.generation > job.restore.after:
        gone_back(turn, job, job.restore.step, event.restored)
        job.restore = None


def _found_in_store(turn: Turn, known: JobCheckpoints, name: str, step: int, generation: int) -> None:
    """This generation resumed from it, so it is saved, even if the one that saved it could not report it."""
    if known.saved is None:
        known.saved = SavedCheckpoint(name=name, step=step, at_ns=turn.now_ns)
    elif known.saved.name != name:
        known.saved = replace(known.saved, name=name, step=step, at_ns=turn.now_ns)
    known.saved_generation = generation


def checkpoint_saved(turn: Turn, event: CheckpointSaved) -> None:
    found = _about(turn, event)
    if found is None:
        return
    job, known = found
    generation, saved = event.ref.generation, event.saved
    if known.saved is not None and (known.saved_generation, known.saved.step) > (generation, saved.step):
        return
    known.saved, known.saved_generation = saved, generation
    if saved.lost:
        _deleted(turn, job, saved.lost, f"saving continues: {saved.name} is the first checkpoint since then")
    if known.failing and (generation, saved.step) > known.failed_at:
        incident = turn.fleet.incidents[known.failing]
        stop_failing(turn, job)
        bad_s = (turn.now_ns - incident.timeline.fault_ns) / 1e9
        _train_on(incident, f"training continued; step {saved.step} was saved {bad_s:.0f} s later")
    elif known.failing:  # begun before the save that failed, and whole only now
        _train_on(turn.fleet.incidents[known.failing], _meanwhile(known))


def checkpoint_failed(turn: Turn, event: CheckpointFailed) -> None:
    """One incident for all failures in a row, whichever ranks report them."""
    found = _about(turn, event)
    if found is None:
        return
    job, known = found
    verdict = f"rank {event.ref.rank} could not save step {event.step}: {event.why}"
    known.failed_ns, known.failed_why = turn.now_ns, verdict
    if known.failing:
        known.failed_at = max(known.failed_at, (event.ref.generation, event.step))
        return
    incident = _same_trouble(turn, known)
    if incident is None:
        incident = open_incident(turn, job, "checkpoint-failed", verdict, turn.now_ns)
        incident.culprit = event.ref.rank
    incident.judged, incident.open = Verdict(cause=verdict), True
    _train_on(incident, _meanwhile(known))
    known.failing = incident.id
    known.failed_at = (event.ref.generation, event.step)


def _meanwhile(known: JobCheckpoints) -> str:
    """What a restart would cost while saves fail, as far as it is known without looking into the store."""
    if known.saved is None:
        newest = "no state is known to be saved"
    else:
        newest = f"step {known.saved.step} is the newest state known to be saved"
    in_memory = known.saved is not None and known.saved.memory_interval
    tail = (
        "; a restart resumes from a newer state in memory where the hosts still have one" if in_memory else ""
    )
    return f"training continues; until a save succeeds, {newest}{tail}"


def checkpoint_rejected(turn: Turn, event: CheckpointRejected) -> None:
    """A damaged state is reported once, though every restart skips it again."""
    found = _about(turn, event)
    if found is None:
        return
    job, known = found
    new = [one for one in event.rejected if one.name not in known.rejected]
    known.rejected.update((one.name, None) for one in new)
    while len(known.rejected) > REMEMBERED_REJECTIONS:
        del known.rejected[next(iter(known.rejected))]
    if not new:
        return
    verdict = "; ".join(f"{_what(one.name)} {one.name} cannot be used: {one.why}" for one in new)
    incident = open_incident(turn, job, "checkpoint-damaged", verdict, turn.now_ns)
    _train_on(incident, f"{event.used} was used instead" if event.used else "no other one was there")
    incident.open = False


DIFFERS_ADVICE = (
    "training continues, because an object may keep something else than its load_state_dict was given; "
    "if this one should not, stop the job and correct it (LOOM_RESTORE_CHECK=all makes it an error)"
)


def restore_differed(turn: Turn, event: RestoreDiffered) -> None:
    """One incident for the same places, though every rank and every restart may report them again. It never
    ends anything: only the script knows whether its object is right."""
    if find_worker(turn.fleet, event.ref, event.node) is None:
        return
    job = turn.fleet.jobs[event.ref.job]
    known = job.differing
    incident = turn.fleet.incidents.get(known.incident) if known is not None else None
    if known is None or incident is None or known.places != event.places:
        more = f" and {event.more} more places" if event.more else ""
        cause = (
            f"rank {event.ref.rank} restored {event.restored} and holds something else than was saved in "
            f"{', '.join(event.places)}{more}"
        )
        incident = open_incident(turn, job, "restore-differs", cause, turn.now_ns)
        incident.culprit = event.ref.rank
        job.differing = Differing(incident=incident.id, places=event.places)
    else:
        known.reports += 1
        again = f"{known.reports} reports, the last by rank {event.ref.rank} after {event.restored}"
        incident.judged = replace(incident.judged, repeats=again)
    _train_on(incident, DIFFERS_ADVICE)
    incident.open = False


def _train_on(incident: Incident, reason: str) -> None:
    incident.decided = Decision(action="continue", outcome=DecisionOutcome.DONE, reason=reason)


def _what(name: str) -> str:
    return "the record" if "/" in name else "checkpoint"


def _deleted(turn: Turn, job: Job, newest: str, decision: str) -> None:
    """What was in the store is gone, and no keep rule removes the newest."""
    verdict = f"the checkpoints of {job.id} were deleted while it ran: {newest} is no longer in the store"
    incident = open_incident(turn, job, "checkpoint-deleted", verdict, turn.now_ns)
    _train_on(incident, decision)
    incident.open = False


def stop_failing(turn: Turn, job: Job) -> None:
    """Saves succeed again, or the job is over: close the incident about them."""
    known = job.checkpoints
    if known is None or not known.failing:
        return
    turn.fleet.incidents[known.failing].open = False
    known.last_failing, known.healed_ns, known.failing = known.failing, turn.now_ns, ""


def _same_trouble(turn: Turn, known: JobCheckpoints) -> Incident | None:
    if not known.last_failing or turn.now_ns - known.healed_ns > SAME_TROUBLE_NS:
        return None
    return turn.fleet.incidents.get(known.last_failing)


def _about(
    turn: Turn, event: CheckpointSaved | CheckpointFailed | CheckpointRejected
) -> tuple[Job, JobCheckpoints] | None:
    """The job and what is known of its checkpoints; None for an older generation."""
    if find_worker(turn.fleet, event.ref, event.node) is None:
        return None
    job = turn.fleet.jobs[event.ref.job]
    return None if job.checkpoints is None else (job, job.checkpoints)
