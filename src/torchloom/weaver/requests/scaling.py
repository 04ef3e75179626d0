"""Another number of workers, or the job once more: refused before anything is touched, or an event."""

from __future__ import annotations

from torchloom.core.placement.resize import refusal
from torchloom.errors import Conflict
from torchloom.model.events import RestartRequested, ScaleRequested
from torchloom.weaver.knowledge import hears
from torchloom.weaver.live_view import LiveView
from torchloom.weaver.publisher import Publisher


class Scaling:
    def __init__(self, stream: Publisher, live: LiveView) -> None:
        self._stream = stream
        self._live = live

    async def scale(self, job: str, workers: int, by: str, *, dry_run: bool = False) -> None:
        """End the generation at a step boundary and continue with this many workers."""
        self._stream.check_ready()
        found = self._stream.job(job)
        if found.ended:
            raise Conflict(f"Job {job} has ended.")
        why_not = refusal(self._stream.fleet, found, workers)
        if why_not:
            raise Conflict(why_not)
        if dry_run:
            return
        event = ScaleRequested(
            job=job,
            workers=workers,
            by=by,
            progress=self._live.progress(self._stream.fleet, job),
            hears=hears(self._live.pulses(self._stream.fleet, job)),
        )
        await self._stream.say("scale", event)
        if job in self._stream.fleet.jobs and self._stream.fleet.jobs[job].target != workers:
            raise Conflict(f"Job {job} ended or its room was taken in this very moment; look again.")

    async def restart(self, job: str, by: str, max_steps: int | None = None) -> None:
        """Begin again from the newest checkpoint, also if the job has ended."""
        self._stream.check_ready()
        found = self._stream.job(job)
        # A script that reports no training step and resumed nothing makes the steps that are counted.
        made = max(
            (w.steps if w.training_step is None else w.training_step for w in found.workers), default=0
        )
        if max_steps is not None and max_steps <= made:
            raise Conflict(f"Step {max_steps} is past: {job} has made step {made}.", hint="name a later one")
        event = RestartRequested(
            job=job,
            by=by,
            max_steps=max_steps,
            progress=self._live.progress(self._stream.fleet, job),
            hears=hears(self._live.pulses(self._stream.fleet, job)),
        )
        await self._stream.say("restart", event)
