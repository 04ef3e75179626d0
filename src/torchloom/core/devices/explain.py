"""Whether the health of its device explains why a rank is slow or stuck. In words, for the verdict."""

from __future__ import annotations

from collections.abc import Iterable

from torchloom.core.devices.reported_health import worst
from torchloom.model.fleet import Fleet, Job

_MOST = 4


def explanation(fleet: Fleet, job: Job, ranks: Iterable[int]) -> str:
    """`GPU-5c1a… throttles, thermal, 87 °C`, of each device of these ranks that is not ok; empty: all are."""
    found: list[str] = []
    for rank in ranks:
        for use in job.workers[rank].devices if 0 <= rank < len(job.workers) else ():
            device = fleet.devices.get(use.device)
            report = worst(device) if device is not None else None
            if report is not None:
                found.append(f"{use.device} {report.why or f'is {report.level}'}")
    return ", and ".join(list(dict.fromkeys(found))[:_MOST])
