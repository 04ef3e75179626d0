"""The limits of the detectors for one job: the defaults, what its owner set over them, what is in force."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from torchloom.core.config.schedule import superseded
from torchloom.core.detect.judge import AllLimits
from torchloom.core.detect.thresholds import StuckLimits
from torchloom.model.fleet import Job
from torchloom.model.job import HangLimits
from torchloom.model.windows import RankWindow


def limits_of(told: HangLimits) -> AllLimits:
    """The limits of the detectors, with what the job's owner set."""
    hang = StuckLimits()
    # HEARTBEAT_TIMEOUT means silence: after this long it is reported. Acting on it needs more than a number
    # that may have come with the shell: certain evidence, or hang_act_s.
    said = told.heartbeat_timeout_s if told.hang_report_s is None else told.hang_report_s
    if said is not None:
        hang = replace(
            hang,
            hang_floor_s=said,
            hang_cap_s=said,
            start_report_s=said,
            announced_report_s=said,
            joining_report_s=said,
        )
    if told.hang_act_s is not None:
        hang = replace(hang, hang_act_s=told.hang_act_s, start_act_s=told.hang_act_s, act_told=True)
    return AllLimits(hang=hang)


def settings_in_force(job: Job, windows: Sequence[RankWindow]) -> int:
    """How many changes of its config are in force."""
    if not job.schedule:
        return 0
    done = [w.steps_done + w.offset for w in windows if w.offset is not None]
    void = superseded(job.schedule)
    return sum(not done or entry.step <= max(done) for entry in job.schedule if entry.version not in void)
