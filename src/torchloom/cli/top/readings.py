"""One reading of the API: all jobs, open incidents, and the ranks of the chosen job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchloom.client import Client
from torchloom.errors import LoomError, NotFound

if TYPE_CHECKING:
    from torchloom.client.schema import IncidentView, JobSummary, RanksNow


@dataclass(frozen=True)
class FleetReading:
    jobs: list[JobSummary] = field(default_factory=list)
    incidents: list[IncidentView] = field(default_factory=list)
    ranks: RanksNow | None = None
    failed: str = ""
    """Why there is no reading; what was read before stays on the screen, marked as old."""


def read(client: Client, job: str, every: bool) -> FleetReading:
    """Never raises: a service that does not answer is a state to show."""
    try:
        jobs = client.all_jobs(active=None if every else True, sort="-submitted")
        incidents = client.incidents()
        ranks = None
        if job:
            try:
                ranks = client.ranks(job)
            except NotFound:
                ranks = None
        return FleetReading(jobs, incidents, ranks)
    except LoomError as error:
        client.close()
        return FleetReading(failed=error.message)
