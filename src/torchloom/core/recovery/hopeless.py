"""Failures that another try cannot mend, before the job has made its first step.

Only a job that has never stepped is given up here: one that has trained before proves that its script can
run, so whatever stops it now may pass, and its restart budget applies. The same holds for errors that tell of
the world outside the script (connections, devices, memory).
"""

from __future__ import annotations

import re

from torchloom.core.recovery.budget import plan_restart
from torchloom.model.fleet import Fleet, Job, RestartPlan
from torchloom.model.incidents import ExitReport, Incident
from torchloom.model.worker import EndRecord

_SCRIPT = {
    "SyntaxError": "the script cannot be compiled",
    "IndentationError": "the script cannot be compiled",
    "TabError": "the script cannot be compiled",
    "ModuleNotFoundError": "a module is missing",
    "ImportError": "an import failed",
}
_NO_CUDA = re.compile(
    r"not compiled with CUDA enabled|Found no NVIDIA driver|No CUDA GPUs are available|no GPUs found"
)
_MAY_PASS = re.compile(
    r"OSError|IOError|Connection|Timeout|HTTP|URL|Socket|SSL|OutOfMemory|MemoryError"
    r"|DistNetworkError|DistStoreError|DistBackendError|KeyboardInterrupt|BlockingIOError|Interrupted"
    r"|BrokenPipe|StoreUnreachable|CheckpointError"
)
_PASSING_WORDS = re.compile(
    r"out of memory|timed? ?out|address already in use|temporar|try again|unavailable|refused|reset by peer",
    re.IGNORECASE,
)
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")
_PLACE = re.compile(r'File "([^"]+)", line (\d+)')
_USAGE_CODE = 2
"""With it argparse refuses arguments, and Python a script that is not there."""


def plan_if_it_can_succeed(
    fleet: Fleet, job: Job, incident: Incident, progress: bool, chance: float
) -> RestartPlan:
    """As the budget says, unless no restart can mend the cause."""
    plan = plan_restart(job, incident.culprit, progress, chance)
    hopeless = why_hopeless(fleet, job, incident) if plan.restart else ""
    return RestartPlan(False, 0.0, hopeless, progress) if hopeless else plan


def why_hopeless(fleet: Fleet, job: Job, incident: Incident) -> str:
    """Why no restart can mend the cause of this incident; empty when one may."""
    if incident.culprit is None or not incident.exits or not _never_stepped(fleet, job):
        return ""
    report = incident.exits[0]
    end = report.end
    if end is None or report.exit.signal is not None or end.connection_lost or end.store_away:
        return ""
    if end.exception in _SCRIPT:
        return f"{_SCRIPT[end.exception]}, and another try would end the same way"
    if end.exception and _NO_CUDA.search(end.message):
        return "this host has no CUDA device that torch can use, and another try would not find one"
    before = _end_before(fleet, job, incident)
    if before is None or _mark(before) != _mark(end) or not _is_of_the_script(end):
        return ""
    if end.how == "start-failed":
        return "it could not be started twice in a row, for the same reason"
    what = end.exception.rpartition(".")[2] if end.exception else f"exit code {end.code}"
    at = _place(end)
    where = f" at {at[0]}, line {at[1]}" if at else ""
    return f"the same {what}{where}, twice before the first step"


def _never_stepped(fleet: Fleet, job: Job) -> bool:
    saved = job.checkpoints is not None and (job.checkpoints.restored or job.checkpoints.saved)
    known = [fleet.incidents[id] for id in job.incidents if id in fleet.incidents]
    return not saved and not any(_stepped(incident) for incident in known)


def _stepped(incident: Incident) -> bool:
    return bool(incident.timeline.first_step_ns) or any(report.steps for report in incident.exits)


def _end_before(fleet: Fleet, job: Job, incident: Incident) -> EndRecord | None:
    """How the cause of the last generation ended, if that generation failed, too."""
    earlier = [fleet.incidents[id] for id in job.incidents if id != incident.id and id in fleet.incidents]
    last = next((i for i in reversed(earlier) if i.generation == job.generation - 1), None)
    if last is None or last.culprit is None or not last.exits:
        return None
    chief: ExitReport = last.exits[0]
    return chief.end if chief.exit.signal is None else None


def _is_of_the_script(end: EndRecord) -> bool:
    """Whether it can only come from the script or its arguments, as far as one can see."""
    if end.how == "start-failed":
        return True
    if end.exception:
        return not _MAY_PASS.search(end.exception) and not _PASSING_WORDS.search(end.message)
    if end.how != "exit":
        return False
    return end.code == _USAGE_CODE or bool(end.message and not _PASSING_WORDS.search(end.message))


def _mark(end: EndRecord) -> tuple[object, ...]:
    return (end.how, end.code, end.exception, _NUMBERS.sub("#", end.message), _place(end))


def _place(end: EndRecord) -> tuple[str, str] | None:
    found = _PLACE.findall(end.traceback)
    return found[-1] if found else None
