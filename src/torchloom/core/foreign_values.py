"""Foreign values in a job's c10d store: an incident, one for each generation. Ends and restarts nothing.

Ranks ignore what no rank of theirs wrote (wire/store_values.py), so the job is not harmed. But somebody who
can write there can also disturb torch itself, and an engineer should know.
"""

from __future__ import annotations

from torchloom.core.recovery.generation_start import find_worker
from torchloom.core.recovery.incidents import open_incident
from torchloom.core.turn import Turn
from torchloom.model.events import StoreValuesIgnored
from torchloom.model.incidents import Decision, DecisionOutcome

KIND = "store-foreign"
ADVICE = (
    "training continues, because ranks ignore such values; whoever can write there can disturb torch itself: "
    "find out who connects to the job's MASTER_PORT (docs/security.md)"
)


def store_values_ignored(turn: Turn, event: StoreValuesIgnored) -> None:
    job = turn.fleet.jobs.get(event.ref.job)
    if job is None or find_worker(turn.fleet, event.ref, event.node) is None:
        return
    if job.foreign_values >= event.ref.generation:
        return
    job.foreign_values = event.ref.generation
    cause = (
        f"rank {event.ref.rank} found a value in the job's c10d store that no rank of this job wrote, and "
        "ignored it"
    )
    incident = open_incident(turn, job, KIND, cause, turn.now_ns)
    incident.decided = Decision(action="continue", outcome=DecisionOutcome.DONE, reason=ADVICE)
    incident.open = False
