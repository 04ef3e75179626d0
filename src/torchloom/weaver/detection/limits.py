"""The limits of the detectors for one job: the defaults, and what its owner set over them."""

from __future__ import annotations

from msgspec.structs import replace

from torchloom.core.detect.judge import AllLimits
from torchloom.core.detect.thresholds import StuckLimits
from torchloom.model.job import HangLimits


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
