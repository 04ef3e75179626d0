"""Steering for the API: checks a request against live knowledge, then publishes it as an event.

An impossible request is refused here with what is possible; the core and the ranks carry out the others.
Nothing here sends to a worker or awaits an answer: the fleet shows the progress of the operation.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Mapping

from torchloom.bus.protocol import Bus
from torchloom.core.config.schedule import of_then, reverting, superseded
from torchloom.core.config.settings import HYPERPARAMETERS, MAX_STEPS, KnownSettings, parse_address, resolve
from torchloom.core.steering.versions import versions_of
from torchloom.errors import Conflict, NotFound, UsageError
from torchloom.model.checkpoints import CheckpointEntry
from torchloom.model.events import ChangeCancelled, ChangeRequested, RestoreRequested
from torchloom.model.fleet import Job, JobState
from torchloom.model.messages import WorkerPulse
from torchloom.model.steering import ChangePlan, ConfigChoice, KnownConfig, Mode, PlannedDifference
from torchloom.model.transaction.messages import Kind
from torchloom.weaver.knowledge import (
    before_the_start,
    config_view,
    hears,
    known_of,
    last_step,
    offset_of,
    step_s_of,
    steps_of,
    told_all,
)
from torchloom.weaver.live_view import LiveView
from torchloom.weaver.publisher import Publisher
from torchloom.weaver.requests.checkpoints import Catalogues
from torchloom.weaver.requests.notes import superseding, what_to_expect
from torchloom.weaver.requests.position import position_of

MOST_BYTES = 3000
"""Of the values of one change: a mailbox holds four of them."""
HEARD_WITHIN_S = 6.0
"""Agents repeat what does not change every 5 s."""


class Steering:
    """Takes requests about running jobs."""

    def __init__(self, bus: Bus, stream: Publisher, live: LiveView, catalogues: Catalogues) -> None:
        self._bus = bus
        self._stream = stream
        self._live = live
        self._catalogues = catalogues

    # -- config ---------------------------------------------------------------------------------
    def config(self, job: str) -> KnownConfig:
        return config_view(self._stream.job(job), self._live.pulses(self._stream.fleet, job))

    async def change(
        self,
        job: str,
        values: Mapping[str, object],
        by: str,
        *,
        why: str = "",
        at_step: int | None = None,
        mode: Mode = "hold",
        dry_run: bool = False,
        operation: str = "",
    ) -> ChangePlan:
        self._stream.check_ready()
        found = self._stream.job(job)
        wanted = dict(values)
        if mode == "scale":
            wanted = {name: _scaled(value) for name, value in values.items()}
        return await self._change(found, wanted, by, why, at_step, dry_run, operation, None)

    async def revert(
        self,
        job: str,
        version: int | None,
        by: str,
        *,
        why: str = "",
        dry_run: bool = False,
        operation: str = "",
    ) -> ChangePlan:
        self._stream.check_ready()
        found = self._stream.job(job)
        if operation in found.operations:
            return ChangePlan(operation)
        versions = versions_of(found)
        there = {versions[entry.version]: entry.version for entry in found.schedule}
        numbers = sorted(there)
        if not numbers:
            raise Conflict(f"Nothing of {job} was ever changed, so there is nothing to take back.")
        if version is None:
            version = numbers[-2] if len(numbers) > 1 else 0
        if version and version not in there:
            listed = ", ".join(map(str, numbers))
            raise UsageError(f"{job} has no version {version} of its config", hint=f"choose 0, {listed}")
        back = reverting(found.schedule, [there[number] for number in numbers if number <= version])
        if not back:
            raise Conflict(f"{job} has version {version} of its config: there is nothing to take back.")
        reverts = there.get(version, 0)
        return await self._change(found, back, by, why, None, dry_run, operation, reverts)

    async def _change(
        self,
        job: Job,
        wanted: Mapping[str, object],
        by: str,
        why: str,
        at_step: int | None,
        dry_run: bool,
        operation: str,
        reverts: int | None,
    ) -> ChangePlan:
        if operation and operation in job.operations:
            return ChangePlan(operation, at_step=at_step)
        _check_living(job)
        await self._let_them_be_heard(job)
        pulses = self._live.pulses(self._stream.fleet, job.id)
        waiting = _not_started(job)
        known = before_the_start(wanted) if waiting else _known(job, pulses, wanted)
        values, differences = resolve(wanted, known)
        if len(json.dumps(values)) > MOST_BYTES:
            raise UsageError("The change is too large", hint=f"its values may have {MOST_BYTES} bytes")
        count, named, notes = None, at_step, list(what_to_expect(job, waiting, at_step))
        if not waiting and at_step is not None:
            count, note = _count(job, at_step, pulses)
            if note:
                named, notes = None, [*notes, note]
        _check_end(job, values.get(MAX_STEPS.name), pulses)
        if not any(difference.is_one for difference in differences):
            notes.append("every place has that value already")
        notes += superseding(job, values, at_step, last_step(pulses))
        plan = tuple(PlannedDifference(d.address, d.before, d.after) for d in differences)
        if dry_run:
            return ChangePlan("", plan, at_step, tuple(notes))
        event = ChangeRequested(
            job=job.id,
            operation=operation or _new_id(),
            kind=Kind.SET,
            values=values,
            two_phase=any(_by_handler(name) for name in values),
            at_step=count,
            training_step=named,
            generation=job.generation,
            step_s=step_s_of(pulses),
            position=await position_of(self._bus, job) if count is None else 0.0,
            by=by,
            why=why,
            reverts=reverts,
        )
        await self._stream.say("change", event)
        return ChangePlan(event.operation, plan, at_step, tuple(notes))

    # -- the rest -------------------------------------------------------------------------------
    async def pause(self, job: str, by: str, why: str = "", operation: str = "") -> str:
        found = await self._stepping(job, operation, "paused")
        if operation not in found.operations and found.paused and not _under_way(found, Kind.RESUME):
            raise Conflict(f"Job {job} is paused already", hint=f"`loom resume {job}` lets it continue")
        return await self._ask(found, Kind.PAUSE, by, why, operation)

    async def resume(self, job: str, by: str, why: str = "", operation: str = "") -> str:
        self._stream.check_ready()
        found = self._stream.job(job)
        if operation not in found.operations:
            _check_living(found)
            if not found.paused and not _under_way(found, Kind.PAUSE):
                raise Conflict(f"Job {job} is not paused.")
        return await self._ask(found, Kind.RESUME, by, why, operation)

    async def checkpoint_now(self, job: str, by: str, why: str = "", operation: str = "") -> str:
        found = await self._stepping(job, operation, "asked for a checkpoint")
        if found.checkpoints is None:
            raise Conflict(
                f"Job {job} has reported no checkpoints",
                hint="they come from loom.Checkpoint in its script",
            )
        return await self._ask(found, Kind.CHECKPOINT, by, why, operation)

    async def probe(self, job: str, by: str, *, within_s: float, why: str = "", operation: str = "") -> str:
        found = await self._stepping(job, operation, "probed")
        if len(found.workers) < 2:
            raise Conflict(f"Job {job} has one worker, so there are no links to measure.")
        return await self._ask(found, Kind.PROBE, by, why, operation, {"within_s": within_s})

    async def cancel_change(self, job: str, operation: str, by: str) -> None:
        self._stream.check_ready()
        record = self._stream.job(job).operations.get(operation)
        if record is None:
            raise NotFound(f"Job {job} has no operation {operation!r}.")
        if record.ended:
            raise Conflict(f"Operation {operation} has ended: {record.reason}.")
        await self._stream.say("cancel", ChangeCancelled(job=job, operation=operation, by=by))

    async def restore(
        self, job: str, step: int, by: str, *, config: ConfigChoice | None = None, operation: str = ""
    ) -> CheckpointEntry:
        """Go back to the state of a step; on a running job without a restart where its script can."""
        self._stream.check_ready()
        found = self._stream.job(job)
        # First: without that checkpoint there is no choice to make.
        state, _ = await self._catalogues.find(self._stream.fleet, found, step)
        used = state.config_version if state.world else None  # a state that cannot be read says nothing
        then = of_then(found.schedule, step + 1, used)
        void = superseded(found.schedule)
        later = [e for e in found.schedule if e not in then and e.version not in void]
        if later and config is None:
            count = f"{len(later)} change{'s' if len(later) != 1 else ''}"
            raise UsageError(
                f"{count} of {job}'s config came after step {step}",
                hint="choose `--config keep` (the values of today hold from there on) or `--config revert` "
                "(those of then)",
            )
        chosen = await self._catalogues.prepare_restore(self._stream.fleet, found, step)
        await self._let_them_be_heard(found)
        pulses = self._live.pulses(self._stream.fleet, job)
        live = found.state is JobState.RUNNING and steps_of(found, pulses) is not None and hears(pulses)
        event = RestoreRequested(
            job=job,
            step=step,
            by=by,
            progress=self._live.progress(self._stream.fleet, job),
            operation=(operation or _new_id()) if live else "",
            config=config or "",
            config_version=used,
            made=last_step(pulses),
            checkpoint=chosen.name,
            step_s=step_s_of(pulses),
        )
        await self._stream.say("restore", event)
        return chosen

    async def _let_them_be_heard(self, job: Job) -> None:
        """A control service that has just started knows no settings yet: agents report them every 5 s."""
        clock = asyncio.get_running_loop().time
        until = clock() + HEARD_WITHIN_S
        while (
            job.state is JobState.RUNNING
            and all(worker.first_step_at_ns for worker in job.workers)
            and not told_all(self._live.pulses(self._stream.fleet, job.id))
            and clock() < until
        ):
            await asyncio.sleep(0.05)

    async def _stepping(self, job: str, operation: str, verb: str) -> Job:
        self._stream.check_ready()
        found = self._stream.job(job)
        if operation and operation in found.operations:
            return found
        if found.state is not JobState.RUNNING:
            raise Conflict(f"Job {job} is {found.state}; only a running job can be {verb}.")
        _check_boxes(found)
        await self._let_them_be_heard(found)
        if not hears(self._live.pulses(self._stream.fleet, job)):
            raise Conflict(
                f"The workers of {job} do not listen yet", hint="try again when every rank has made a step"
            )
        return found

    async def _ask(
        self,
        job: Job,
        kind: Kind,
        by: str,
        why: str,
        operation: str,
        values: Mapping[str, object] | None = None,
    ) -> str:
        if operation and operation in job.operations:
            return operation
        pulses = self._live.pulses(self._stream.fleet, job.id)
        event = ChangeRequested(
            job=job.id,
            operation=operation or _new_id(),
            kind=kind,
            values=dict(values or {}),
            two_phase=kind is Kind.CHECKPOINT,
            generation=job.generation,
            step_s=step_s_of(pulses),
            position=await position_of(self._bus, job) if kind is Kind.PAUSE else 0.0,
            by=by,
            why=why,
        )
        await self._stream.say("change", event)
        return event.operation


def _new_id() -> str:
    return uuid.uuid4().hex[:12]


def _scaled(value: object) -> object:
    own = value == {"own": True} or (isinstance(value, str) and value.strip().lower() == "own")
    return value if own or isinstance(value, Mapping) else {"scale": value}


def _by_handler(address: str) -> bool:
    """Carried out by code that may fail, so it must be possible to undo it."""
    name = parse_address(address).name
    return name not in HYPERPARAMETERS and name != MAX_STEPS.name


def _under_way(job: Job, kind: Kind) -> bool:
    return any(r.kind is kind and not r.ended for r in job.operations.values())


def _not_started(job: Job) -> bool:
    return job.state is JobState.WAITING and not job.started_at_ns


def _check_living(job: Job) -> None:
    if job.ended:
        raise Conflict(f"Job {job.id} is {job.state}: nothing of it can be changed any more.")
    if job.state is JobState.STOPPING:
        raise Conflict(f"Job {job.id} is stopping.")
    _check_boxes(job)


def _check_boxes(job: Job) -> None:
    blind = [worker.ref.rank for worker in job.workers if worker.alive and worker.blind]
    if blind:
        ranks = ", ".join(map(str, blind))
        raise Conflict(f"Rank {ranks} of {job.id} has no black box, so it cannot be reached.")


def _known(job: Job, pulses: Mapping[int, WorkerPulse], wanted: Mapping[str, object]) -> KnownSettings:
    """What can be set. Of workers that are still starting only what is common to all scripts; the ranks
    check again."""
    known = known_of(pulses)
    if known is None and not any(_by_handler(name) for name in wanted):
        return before_the_start(wanted)
    if known is None:
        raise Conflict(
            f"The workers of {job.id} have not reported what can be set yet",
            hint="before its first step only max_steps and those of optimizers are known",
        )
    return known


def _check_end(job: Job, end: object, pulses: Mapping[int, WorkerPulse]) -> None:
    """An end that is past would end the job at once, which `loom stop` is for."""
    # A script that reports no training step is ended by the count of this generation.
    made = max((p.steps if p.training_step is None else p.training_step for p in pulses.values()), default=0)
    if isinstance(end, int) and end < made:
        raise UsageError(
            f"Step {end} is past: {job.id} has made step {made}",
            hint=f"name a later one; `loom stop {job.id}` ends it now",
        )


def _count(job: Job, at_step: int, pulses: Mapping[int, WorkerPulse]) -> tuple[int, str]:
    """A step that the user named, counted in the present generation."""
    steps = steps_of(job, pulses)
    if steps is None:
        raise Conflict(
            f"Not every rank of {job.id} is known to step, so no step can be named",
            hint="leave --at-step out, or try again when all have stepped",
        )
    offset = offset_of(pulses)
    count = at_step - (offset or 0)
    if count <= steps:
        raise UsageError(
            f"Step {at_step} is past: {job.id} has made step {steps + (offset or 0)}",
            hint="name a later one, or none for as soon as possible",
        )
    if offset is None:
        return count, "the script reports no training step, so steps are counted in this generation"
    return count, ""
