"""The script of a worker has failed and its process is still ending, which may take seconds: torch is taken
down, reports are sent. What must follow is begun now; nothing is started before the process is gone.
"""

from __future__ import annotations

from torchloom.core.recovery.generation_end import add_exit, begin_recovery
from torchloom.core.recovery.generation_start import find_worker
from torchloom.core.turn import Turn
from torchloom.model.events import ScriptFailed
from torchloom.model.fleet import JobState
from torchloom.model.incidents import ExitReport
from torchloom.model.worker import Exit


def script_failed(turn: Turn, event: ScriptFailed) -> None:
    """In a generation that is being ended already it counts if it came before that was decided."""
    worker = find_worker(turn.fleet, event.ref, event.node)
    if worker is None or not worker.alive or worker.script_failed:
        return
    job = turn.fleet.jobs[event.ref.job]
    incident = turn.fleet.incidents.get(job.incident) if job.state is JobState.RECOVERING else None
    too_late = incident is None or not 0 < event.end.at_ns < incident.timeline.decided_ns
    running = job.state in (JobState.STARTING, JobState.RUNNING)
    if event.end.code in (0, None) or (too_late and not running):
        return
    worker.script_failed = True
    report = ExitReport(
        rank=worker.ref.rank,
        node=worker.node,
        exit=Exit(event.end.code, None, "end-record"),
        at_ns=event.at_ns,
        steps=event.steps,
        training_step=event.training_step,
        ran_s=event.ran_s,
        first_step_at_ns=worker.first_step_at_ns,
        end=event.end,
        devices=worker.devices,
        collectives=event.collectives,
    )
    if incident is None:
        begin_recovery(turn, job, report)
    else:
        add_exit(turn, job, incident, report)
