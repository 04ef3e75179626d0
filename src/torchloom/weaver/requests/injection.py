"""Fault injection for the API: refused if it could have no effect, else published as an event and then done.

The core sends what agents and workers do. A checkpoint is damaged where the catalogue reads it, so that the
caller learns at once whether there was one.
"""

from __future__ import annotations

import uuid

from msgspec.structs import replace

from torchloom.core.injection import KINDS, check
from torchloom.core.steering.stop import boundary
from torchloom.errors import Conflict
from torchloom.model.events import FaultInjected
from torchloom.model.faults import Fault
from torchloom.model.fleet import JobState
from torchloom.weaver.live_view import LiveView
from torchloom.weaver.publisher import Publisher
from torchloom.weaver.requests.checkpoints import Catalogues


class Injecting:
    def __init__(self, stream: Publisher, live: LiveView, catalogues: Catalogues) -> None:
        self._stream = stream
        self._live = live
        self._catalogues = catalogues

    async def inject(
        self, job: str, ranks: tuple[int, ...], fault: Fault, by: str
    ) -> tuple[str, tuple[int, ...]]:
        known = self._stream.job(job)
        if known.state is not JobState.RUNNING:
            raise Conflict(f"Job {job} is {known.state}; faults can be injected into a job that runs.")
        ranks = tuple(sorted(set(ranks))) or tuple(range(len(known.workers)))
        fault = check(fault, ranks, len(known.workers))
        if KINDS[fault.kind].of_checkpoints and known.checkpoints is None:
            raise Conflict(f"Job {job} saves no checkpoints, so {fault.kind} would change nothing.")
        if fault.at_step is None and KINDS[fault.kind].everybody:
            at_step, _ = boundary(self._live.progress(self._stream.fleet, job), len(known.workers))
            if at_step is None:
                raise Conflict(
                    f"Not every rank of {job} is known to make steps; {fault.kind} needs one step."
                )
            fault = replace(fault, at_step=at_step)
        in_store = KINDS[fault.kind].in_store
        if in_store:
            entries = (await self._catalogues.ask(self._stream.fleet, known, "list")).entries
            if not any(entry.whole for entry in entries):
                raise Conflict(f"Job {job} has no whole checkpoint in its store yet, so none can be damaged.")
        name = f"fault-{uuid.uuid4().hex[:8]}"
        event = FaultInjected(
            job=job, generation=known.generation, ranks=ranks, fault=fault, by=by, name=name
        )
        await self._stream.say("fault", event)
        if in_store:
            await self._catalogues.ask(self._stream.fleet, known, "damage", str(fault.seed))
        return name, ranks
