"""Runs the detectors: keeps the newest windows of every job, judges twice a second, publishes the findings.

A shell around `judge` and `choose`, which choose; this module only receives, asks and appends. It judges a
job only when it has a fresh window of every rank, so that a lost message or a busy agent is never taken for a
missing rank. Only the leading weaver judges; a weaver that takes over continues with what its predecessor had
learned of the jobs (baselines.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from array import array
from collections.abc import Awaitable, Callable, Sequence
from math import inf

from msgspec.structs import replace

from torchloom import boottime
from torchloom.bus.protocol import Bus, Message
from torchloom.core.detect.judge import Memory, judge
from torchloom.core.detect.robust import median
from torchloom.core.detect.slow_replicas import slow_replica
from torchloom.core.detect.thresholds import Pace
from torchloom.core.detect.wide_board import board_for
from torchloom.core.policy.leave_out import is_held, paces_of
from torchloom.core.policy.leave_out import measure as measure_replicas
from torchloom.core.policy.pace import is_news, measure
from torchloom.core.policy.rebalance import helps, open_keys
from torchloom.core.policy.reporting import choose
from torchloom.core.policy.rollback import blamed_steps
from torchloom.core.policy.rules import wanted
from torchloom.errors import LoomError
from torchloom.model.checkpoints import CheckpointEntry
from torchloom.model.events import FindingEnded, FindingMade, PaceMeasured, ReplicasMeasured, WitnessAnswered
from torchloom.model.findings import Finding
from torchloom.model.fleet import Fleet, Job, JobState, WorkerState
from torchloom.model.windows import RankWindow, RefWindow, WindowBlock
from torchloom.weaver.detection.baselines import Baseline, Baselines
from torchloom.weaver.detection.evidence import gather, named
from torchloom.weaver.detection.kept import left_behind
from torchloom.weaver.detection.lateness import Lateness
from torchloom.weaver.detection.limits import limits_of, settings_in_force
from torchloom.weaver.detection.second_witness import question
from torchloom.weaver.detection.watched_job import WatchedJob, rows_from
from torchloom.wire import codec, subjects

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5
REST_AFTER_LOOK = 4.0
"""No new look at a job for so many times as long as the last one took: one fifth of the loop's time at
most."""
FRESH_S = 2.0
"""An older window says nothing about now."""
EVIDENCE_WITHIN_S = 1.5
"""A stuck job is reported at the latest this long after detection, with or without evidence."""
ASK_AGAIN_S = 5.0
SAVE_EVERY_S = 15.0
"""How much of what was learned a failover may cost."""

MEASURE_EVERY_S = 5.0
"""How often the pace of a job with uneven shares is worth a word."""

Say = Callable[
    [FindingMade | FindingEnded | PaceMeasured | ReplicasMeasured | WitnessAnswered], Awaitable[None]
]
Shares = Callable[[Job], str | None]
"""The shares of a job's ranks as they are now; None if its script has none that could be changed."""
Before = Callable[[Job, int], Awaitable[tuple[CheckpointEntry | None, str]]]
"""The newest checkpoint of a job from before a training step, or why there is none."""


async def _no_checkpoints(job: Job, step: int) -> tuple[CheckpointEntry | None, str]:
    return None, ""


class Detection:
    def __init__(
        self,
        bus: Bus,
        fleet: Callable[[], Fleet],
        leads: Callable[[], bool],
        say: Say,
        before: Before = _no_checkpoints,
        shares: Shares = lambda job: None,
    ) -> None:
        self._bus = bus
        self._shares = shares
        self._before = before
        self._fleet = fleet
        self._leads = leads
        self._say = say
        self._jobs: dict[str, WatchedJob] = {}
        self._baselines = Baselines(bus)
        self._lateness = Lateness()
        self._led = False
        self._saved_s = 0.0
        self._wake = asyncio.Event()

    # -- receiving ----------------------------------------------------------------------------------
    async def hear(self, message: Message) -> None:
        """Handler of the subject of windows."""
        try:
            batch = codec.decode_window_batch(message.data)
        except codec.DecodeError as error:
            log.warning("windows on %s cannot be read: %s", message.subject, error)
            return
        known = self._fleet().nodes.get(batch.node)
        if subjects.node_of(message.subject) != batch.node or (known and known.session != batch.session):
            return
        late_s = self._lateness.of(batch.node, batch.session, batch.sent_ns, boottime.now_ns())
        sent_s = asyncio.get_running_loop().time() - late_s
        try:
            for one in batch.windows:
                self._keep(one, batch.node, sent_s, fresh=late_s <= FRESH_S)
            for block in batch.blocks:
                self._keep_block(block, batch.node, sent_s, fresh=late_s <= FRESH_S)
        except (OverflowError, ValueError) as error:
            log.warning("windows on %s have impossible numbers: %s", message.subject, error)

    def _keep(self, one: RefWindow, node: str, sent_s: float, fresh: bool) -> None:
        ref, window = one.ref, one.window
        job = self._fleet().jobs.get(ref.job)
        if job is None or job.generation != ref.generation or not 0 <= ref.rank < len(job.workers):
            return
        worker = job.workers[ref.rank]
        if worker.ref != ref or worker.node != node:
            return
        watched = self._watched(job)
        if window.rank != ref.rank:
            return
        watched.sent_s[ref.rank] = -inf
        watched.board.put(window, anew=watched.incarnations.get(ref.rank) != ref.incarnation)
        watched.incarnations[ref.rank], watched.sent_s[ref.rank] = ref.incarnation, sent_s
        if not fresh:
            return  # its steps are worth keeping, but it says nothing about now
        watched.fresh.add(ref.rank)
        if len(watched.fresh) >= len(job.workers):
            self._wake.set()  # no need to wait: now there is a new window of every rank

    def _keep_block(self, block: WindowBlock, node: str, sent_s: float, fresh: bool) -> None:
        job = self._fleet().jobs.get(block.job)
        if job is None or job.generation != block.generation:
            return
        rows = rows_from(node, block, job)
        if not rows:
            return
        watched = self._watched(job)
        ranks = watched.take(block, rows, sent_s)
        if fresh:
            watched.fresh.update(ranks)
            if len(watched.fresh) >= len(job.workers):
                self._wake.set()

    def windows(self, id: str) -> list[RankWindow]:
        """The fresh windows of a job as they are now, whether or not every rank has one."""
        watched, now_s = self._jobs.get(id), asyncio.get_running_loop().time()
        job = self._fleet().jobs.get(id)
        if watched is None or job is None or job.generation != watched.generation:
            return []
        sent = zip(watched.board, watched.sent_s, strict=True)
        return [replace(one, steps=tuple(one.steps)) for one, at_s in sent if now_s - at_s <= FRESH_S]

    def _watched(self, job: Job) -> WatchedJob:
        known = self._jobs.get(job.id)
        size = len(job.workers)
        if known is None or known.generation != job.generation or len(known.board) != size:
            pace = Pace() if known is None else replace(known.memory.pace, steps=0)
            if known is not None and known.asking is not None:
                known.asking.cancel()
            second = known.second if known is not None else None
            known = self._jobs[job.id] = WatchedJob(
                job.generation, Memory(pace=pace), board_for(size), array("d", [-inf]) * size, second=second
            )
        return known

    # -- looking --------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Judge all jobs in a loop, until cancelled."""
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_EVERY_S):
                        await self._wake.wait()
                self._wake.clear()
                fleet = self._fleet()
                for id in [id for id in self._jobs if id not in fleet.jobs or fleet.jobs[id].ended]:
                    self._forget(id)
                if self._leads():
                    await self._remember()
                    await self._look_at_all()
                else:
                    self._led = False
        finally:
            for id in list(self._jobs):
                self._forget(id)

    async def _remember(self) -> None:
        """Start with what another weaver had learned; store it periodically for the next one."""
        now_s = asyncio.get_running_loop().time()
        if not self._led:
            self._led, self._saved_s = True, now_s
            for id, known in (await self._baselines.load()).items():
                job = self._fleet().jobs.get(id)
                if job is None or job.ended:
                    continue
                watched = self._watched(job)
                if known.generation != job.generation:
                    pace = replace(known.memory.pace, steps=0)
                    known = Baseline(job.generation, Memory(pace=pace))
                if len(known.memory.pace.recent_s) > len(watched.memory.pace.recent_s):
                    watched.memory = known.memory
        elif now_s - self._saved_s >= SAVE_EVERY_S:
            self._saved_s = now_s
            known_now = {id: Baseline(w.generation, w.memory) for id, w in self._jobs.items()}
            await self._baselines.save(known_now)

    async def _look_at_all(self) -> None:
        for id, watched in list(self._jobs.items()):
            await asyncio.sleep(0)  # a look at a large job takes a while: others come in between
            job = self._fleet().jobs.get(id)
            if job is None:
                continue
            try:
                await self._look(job, watched)
            except LoomError as error:
                log.info("what was found in %s waits: %s", id, error)
            except Exception:  # a mistake in a detector may cost a verdict, not the control of jobs
                log.exception("looking at %s failed", id)

    def _forget(self, id: str) -> None:
        watched = self._jobs.pop(id)
        for task in (watched.asking, watched.second):
            if task is not None:
                task.cancel()

    async def _look(self, job: Job, watched: WatchedJob) -> None:
        now_s = asyncio.get_running_loop().time()
        due = watched.is_due(len(job.workers), now_s, LOOK_EVERY_S, REST_AFTER_LOOK)
        if watched.generation != job.generation or not due:
            return
        windows = self._windows(job, watched, now_s)
        if not windows:
            return
        watched.fresh, watched.urgent, watched.looked_s = set(), False, now_s
        paces = paces_of(self._fleet(), job, self.windows)
        measured = measure_replicas(job, paces)
        if measured is not None:
            await self._say(measured)
        if is_held(job):
            return  # it makes no step, because it is left out
        limits, settings = limits_of(job.spec.limits), settings_in_force(job, windows)
        watched.memory, found = judge(windows, watched.memory, limits, settings=settings)
        watched.took_s = asyncio.get_running_loop().time() - now_s
        found = [f for f in found if not f.traits.from_events]
        found += slow_replica(paces, job.id, windows)
        ready = self._ask_if_stuck(job, watched, found, now_s)
        faults, say, ended = choose(
            watched.faults,
            found,
            now_s=now_s,
            look=watched.memory.localised_step,
            open_keys=open_keys(job),
            ready=ready,
        )
        for finding in say:
            await self._tell(job, watched, finding, windows)
        for one in ended:
            event = FindingEnded(
                job=job.id, generation=watched.generation, key=one.key, lasted_s=one.lasted_s
            )
            await self._say(event)
        watched.faults = faults  # only now: what could not be appended is tried again
        await self._measure(job, watched, windows, now_s)

    async def _measure(
        self, job: Job, watched: WatchedJob, windows: Sequence[RankWindow], now_s: float
    ) -> None:
        """How a job with uneven shares does, if that is news."""
        if job.balance is None or now_s - watched.measured_s < MEASURE_EVERY_S:
            return
        found = measure(job, windows)
        if found is not None and is_news(job.balance, found):
            watched.measured_s = now_s
            await self._say(found)

    def _windows(self, job: Job, watched: WatchedJob, now_s: float) -> Sequence[RankWindow]:
        """A window of every rank that runs, or none at all."""
        if job.state not in (JobState.RUNNING, JobState.STARTING):
            return []
        board, since_s = watched.board, now_s - FRESH_S
        if len(board) != len(job.workers):
            return []
        for rank, known in watched.evidence.items():
            window = board[rank]
            if known.location and board.has(rank) and not window.process.location:
                board.put(replace(window, process=replace(window.process, location=known.location)))
        exited = [worker for worker in job.workers if worker.state is WorkerState.EXITED]
        if not exited:
            seen = min(watched.sent_s) >= since_s and not any(worker.blind for worker in job.workers)
            return board if seen else []
        found = dict(enumerate(board))
        for worker in exited:
            window = found.pop(worker.ref.rank)
            if board.has(worker.ref.rank) and worker.exit is not None and worker.exit.ok:
                found[worker.ref.rank] = left_behind(window, worker)
        running = [rank for rank, one in found.items() if not one.left]
        if any(watched.sent_s[rank] < since_s or job.workers[rank].blind for rank in running):
            return []
        return [found[rank] for rank in sorted(found)]

    # -- evidence -------------------------------------------------------------------------------------
    def _ask_if_stuck(self, job: Job, watched: WatchedJob, found: list[Finding], now_s: float) -> bool:
        """Ask for evidence about what holds the job up; whether it may be said now."""
        stuck = next((f for f in found if f.traits.stuck), None)
        if stuck is None:
            watched.stuck_s, watched.evidence, watched.fresh_evidence = None, {}, {}
            return True
        first = watched.stuck_s is None
        if watched.stuck_s is None:
            watched.stuck_s = now_s
            self._ask_second(job, watched, stuck)
        # A new verdict, or a new action on it, is reported with what the waiting ranks do now.
        case = (stuck.kind, stuck.ranks, stuck.certain, stuck.may_act)
        all_again = case != watched.asked_about and now_s - watched.all_asked_s >= ASK_AGAIN_S
        if watched.asking is None and (first or all_again or now_s - watched.asked_s >= ASK_AGAIN_S):
            watched.asked_s = now_s
            if first or all_again:
                watched.all_asked_s, watched.asked_about, watched.all_answered = now_s, case, False
            asking = self._ask(job, watched, stuck, everybody=first or all_again)
            watched.asking = asyncio.create_task(asking)
        elif all_again:
            return False  # as soon as the question is answered that is out
        answered = watched.all_answered and bool(watched.evidence)
        return answered or now_s - watched.all_asked_s >= EVIDENCE_WITHIN_S

    def _ask_second(self, job: Job, watched: WatchedJob, finding: Finding) -> None:
        if watched.second is not None:
            watched.second.cancel()
        watched.second = asyncio.create_task(question(self._bus, self._fleet, self._say, job, finding))

    async def _ask(self, job: Job, watched: WatchedJob, finding: Finding, everybody: bool) -> None:
        try:
            workers = [w for w in job.workers if w.state is not WorkerState.EXITED]
            found = await gather(self._bus, workers, finding, EVIDENCE_WITHIN_S, everybody)
            if watched.stuck_s is not None:
                watched.evidence |= found
                watched.fresh_evidence |= found
                watched.all_answered |= everybody
                watched.urgent = True
                self._wake.set()
        finally:
            watched.asking = None

    async def _tell(
        self, job: Job, watched: WatchedJob, finding: Finding, windows: Sequence[RankWindow]
    ) -> None:
        if finding.traits.stuck:
            evidence, watched.fresh_evidence = watched.fresh_evidence, {}
        else:
            evidence = await gather(self._bus, named(job, finding), finding, EVIDENCE_WITHIN_S, True)
        offset = max((w.offset for w in windows if w.offset is not None), default=None)
        state, why = await self._state_before(job, finding, offset)
        recent = watched.memory.pace.recent_s[-16:]
        await self._say(
            FindingMade(
                job=job.id,
                generation=watched.generation,
                finding=finding,
                evidence=tuple(evidence[rank] for rank in sorted(evidence)),
                steps=max(w.steps_done for w in windows),
                step_s=median(recent) if recent else 0.0,
                offset=offset,
                restore_step=state.step if state is not None else None,
                restore_name=state.name if state is not None else "",
                restore_why=why,
                shares=self._shares(job) if helps(finding) else None,
            )
        )

    async def _state_before(
        self, job: Job, finding: Finding, offset: int | None
    ) -> tuple[CheckpointEntry | None, str]:
        """Looked up only if the policy would go back to it."""
        if wanted(job.spec.policy, finding) != "rollback":
            return None, ""
        span = blamed_steps(job.spec.policy, finding, offset)
        if span is None:
            return None, "the script does not report its training step"
        return await self._before(job, span[0])
