"""Another number of workers, as the API asks for it: refused before anything is touched, or an event."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torchloom.core.placement.resize import refusal
from torchloom.errors import Conflict
from torchloom.model.events import Event, ScaleRequested
from torchloom.model.fleet import Fleet, Job
from torchloom.weaver.knowledge import hears
from torchloom.weaver.live_view import LiveView


class Scaling(ABC):
    fleet: Fleet
    _live: LiveView

    @abstractmethod
    async def _say(self, kind: str, body: Event, event_id: str = "") -> None: ...

    @abstractmethod
    def _check_ready(self) -> None: ...

    @abstractmethod
    def _job(self, job: str) -> Job: ...

    async def scale(self, job: str, workers: int, by: str, *, dry_run: bool = False) -> None:
        """End the generation at a step boundary and go on with so many workers."""
        self._check_ready()
        found = self._job(job)
        if found.ended:
            raise Conflict(f"Job {job} has ended.")
        why_not = refusal(self.fleet, found, workers)
        if why_not:
            raise Conflict(why_not)
        if dry_run:
            return
        event = ScaleRequested(
            job=job,
            workers=workers,
            by=by,
            progress=self._live.progress(self.fleet, job),
            hears=hears(self._live.pulses(self.fleet, job)),
        )
        await self._say("scale", event)
        if job in self.fleet.jobs and self.fleet.jobs[job].target != workers:
            raise Conflict(f"Job {job} ended or its room was taken in this very moment; look again.")
