"""Made by scripts/make_client.py from the OpenAPI description.

Every operation as a method; may have over 400 lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import quote

from torchloom.client.transport import Event, Transport

if TYPE_CHECKING:
    from torchloom.client.schema import (
        DeviceMap,
        Health,
        IncidentDetail,
        IncidentView,
        JobCreated,
        JobDetail,
        JobLogs,
        JobRequest,
        JobSummary,
        JobTelemetry,
        NodeView,
        StopRequest,
    )


class Operations(Transport):
    def health(self) -> Health:
        """Health"""
        found: Health = self.request("GET", "/health")
        return found

    def submit(self, body: JobRequest) -> JobCreated:
        """Submit"""
        found: JobCreated = self.request("POST", "/jobs", body=body)
        return found

    def jobs(self, *, active: bool | None = None) -> list[JobSummary]:
        """Jobs"""
        found: list[JobSummary] = self.request("GET", "/jobs", {"active": active})
        return found

    def job(self, job: str, *, after: int | None = None, wait_s: float | None = None) -> JobDetail:
        """With `after`, wait up to `wait_s` for a state of the fleet newer than that."""
        found: JobDetail = self.request(
            "GET", f"/jobs/{quote(job, safe='')}", {"after": after, "wait_s": wait_s}
        )
        return found

    def delete(self, job: str) -> None:
        """Delete"""
        self.request("DELETE", f"/jobs/{quote(job, safe='')}")

    def stop(self, job: str, body: StopRequest | None = None) -> JobCreated:
        """Stop"""
        found: JobCreated = self.request("POST", f"/jobs/{quote(job, safe='')}/stop", body=body)
        return found

    def telemetry(self, job: str, *, rank: int | None = None) -> JobTelemetry:
        """Telemetry"""
        found: JobTelemetry = self.request("GET", f"/jobs/{quote(job, safe='')}/telemetry", {"rank": rank})
        return found

    def logs(self, job: str, *, rank: int | None = None, tail: int | None = None) -> JobLogs:
        """Logs"""
        found: JobLogs = self.request(
            "GET", f"/jobs/{quote(job, safe='')}/logs", {"rank": rank, "tail": tail}
        )
        return found

    def log_stream(
        self, job: str, *, rank: int | None = None, tail: int | None = None, last_event_id: str | None = None
    ) -> Iterator[Event]:
        """Server-sent events `log` and finally `end`; `tail` limits how far back a new stream begins."""
        return self.stream(f"/jobs/{quote(job, safe='')}/logs/stream", last_event_id, rank=rank, tail=tail)

    def devices(self) -> DeviceMap:
        """Devices"""
        found: DeviceMap = self.request("GET", "/devices")
        return found

    def nodes(self) -> list[NodeView]:
        """Nodes"""
        found: list[NodeView] = self.request("GET", "/nodes")
        return found

    def incidents(self, *, job: str | None = None) -> list[IncidentView]:
        """Incidents"""
        found: list[IncidentView] = self.request("GET", "/incidents", {"job": job})
        return found

    def incident(self, incident: str) -> IncidentDetail:
        """Incident"""
        found: IncidentDetail = self.request("GET", f"/incidents/{quote(incident, safe='')}")
        return found
