"""The weaver: one loop that reads the stream, applies the core, and performs what is open while it leads.

Kill it at any time: nothing but the stream is needed to carry on. What it adds to the core is only
mechanics: the lease, timers that fire, resends, snapshots, and answers to the API.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from weakref import WeakValueDictionary

from torchloom import boottime
from torchloom.bus.protocol import LEADER, Bus, Message, Record
from torchloom.core.history.job_history import History
from torchloom.core.history.trimming import KEEP_HISTORY
from torchloom.core.stream_time import stream_time
from torchloom.errors import (
    BusUnavailable,
    Conflict,
    LoomError,
    StreamRewound,
    TimedOut,
    UsageError,
)
from torchloom.model.events import JobDeleted, JobSubmitted, StopRequested, TimerFired
from torchloom.model.fleet import Fleet, Submission
from torchloom.model.ids import check_token, token_from
from torchloom.model.job import Accepted, JobSpec
from torchloom.model.messages import (
    CheckpointAnswer,
    CheckpointVerb,
    WorkerPulse,
)
from torchloom.model.notice import Notice
from torchloom.model.windows import RankWindow
from torchloom.weaver.alarms import Alarms
from torchloom.weaver.clock import StreamClock
from torchloom.weaver.detection.loop import Detection
from torchloom.weaver.dispatch import Deposed, Dispatcher
from torchloom.weaver.doors import Doors
from torchloom.weaver.dropping import Trimming
from torchloom.weaver.environments import Environments, replica_beside, submitted_with
from torchloom.weaver.feed import Feed, apply_record
from torchloom.weaver.history import Histories
from torchloom.weaver.job_keys import JobKeys
from torchloom.weaver.knowledge import hears, shares_now, steps_near
from torchloom.weaver.leading import LEASE_TTL_S, Leading, provision
from torchloom.weaver.live_view import LiveView
from torchloom.weaver.monitors import Monitors
from torchloom.weaver.presence import Presences
from torchloom.weaver.publisher import Publisher
from torchloom.weaver.quotas import Quotas
from torchloom.weaver.replays import Replays
from torchloom.weaver.requests.admission import Admission, Issuer, PodReviewer
from torchloom.weaver.requests.checkpoints import Catalogues
from torchloom.weaver.requests.devices import DeviceRequests
from torchloom.weaver.requests.fitting import check_fits
from torchloom.weaver.requests.injection import Injecting
from torchloom.weaver.requests.nodes import Nodes
from torchloom.weaver.requests.scaling import Scaling
from torchloom.weaver.requests.steering import Steering
from torchloom.weaver.requests.worker_reads import WorkerReads
from torchloom.weaver.snapshot import Snapshots
from torchloom.weaver.trouble import Troubles
from torchloom.wire import codec, subjects

log = logging.getLogger(__name__)

TICK_S = 0.05
BREATHE_EVERY = 50


class Weaver:
    """Fulfils api.ports.Control. `run` does everything until `stop` is set."""

    def __init__(
        self,
        bus: Bus,
        name: str = "",
        keys: JobKeys | None = None,
        *,
        keep_history: int = KEEP_HISTORY,
        issuer: Issuer | None = None,
        reviewer: PodReviewer | None = None,
        server: str = "",
        patient: bool = False,
    ) -> None:
        self._patient = patient or issuer is not None  # with a bus that is a cluster, see leading.provision
        self._bus, self.name = bus, name or f"weaver-{uuid.uuid4().hex[:8]}"
        self._stream = Publisher(bus, self.name)
        self._live = LiveView()
        self._clock = StreamClock()
        self._alarms = Alarms()
        self._environments = Environments(bus, keys)
        self._catalogues = Catalogues(bus, self._environments)
        self._watch = Detection(
            bus,
            fleet=lambda: self.fleet,
            leads=lambda: self._stream.leads,
            say=lambda found: self._stream.say("finding", found),
            before=lambda job, step: self._catalogues.before(self.fleet, job, step),
            shares=lambda job: shares_now(self._live.pulses(self.fleet, job.id)),
        )
        self._histories = Histories(
            bus, lambda: self.fleet, lambda: self._stream.leads, self.pulse, self.windows
        )
        self._wake = asyncio.Event()
        self._dispatcher = Dispatcher(bus, self.name, self._environments, self._wake)
        self._lease = bus.lease(LEADER, self.name, LEASE_TTL_S)
        self._snapshots = Snapshots(bus)
        self._snapshot_seq = 0
        self._trimming = Trimming(bus, self._stream, self._snapshots, keep_history)
        self.replay = Replays(bus, self._stream, self._snapshots).replay
        self._joined: set[str] = set()
        troubles = Troubles()
        self._leading = Leading(bus, self._stream, self._live, self._lease, self._wake, troubles, server)
        self.troubles, self.stuck_s = self._leading.troubles, self._leading.stuck_s
        self.disturbances = self._leading.disturbances
        self._feed = Feed()
        self._presences = Presences(bus, self._stream)
        self.weavers = self._presences.weavers
        self.refusals = self._dispatcher.refusals
        self._quotas = Quotas(self._slots)
        self.dropped = self._quotas.dropped
        self._doors = Doors(bus, self._stream, troubles, self._slots, self._quotas.nodes)
        self._nodes = Nodes(bus, self._stream, self._live, self._lease)
        steering = Steering(bus, self._stream, self._live, self._catalogues)
        # Each part answers the API for its own subject.
        self.changed = self._stream.changed
        self.config, self.change, self.revert = steering.config, steering.change, steering.revert
        self.pause, self.resume, self.restore = steering.pause, steering.resume, steering.restore
        self.checkpoint_now, self.probe = steering.checkpoint_now, steering.probe
        self.cancel_change = steering.cancel_change
        scaling = Scaling(self._stream, self._live)
        self.scale, self.restart = scaling.scale, scaling.restart
        self.inject = Injecting(self._stream, self._live, self._catalogues).inject
        self.node_seen, self.node_gone = self._nodes.seen, self._nodes.gone
        self.node_drained, self.node_opened = self._nodes.drain, self._nodes.open
        self.devices = DeviceRequests(self._stream, self._live)
        self.monitors = Monitors(bus, self.devices.hear)
        self.devices.count_also(lambda: self.monitors.dropped)
        self.admission = Admission(self._stream, issuer, reviewer)
        reads = WorkerReads(bus, self._stream)
        self.read_log, self.read_box = reads.log, reads.box
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    # -- what the API sees ------------------------------------------------------------------------
    @property
    def fleet(self) -> Fleet:
        return self._stream.fleet

    @property
    def active(self) -> bool:
        return self._stream.active

    @property
    def blocked(self) -> str:
        return self._stream.blocked

    @property
    def ready(self) -> bool:
        return self._stream.ready

    def pulse(self, job: str) -> dict[int, WorkerPulse]:
        return self._live.pulses(self.fleet, job)

    def windows(self, job: str) -> list[RankWindow]:
        return self._watch.windows(job)

    async def history(self, job: str) -> History:
        return await self._histories.of(job)

    async def submit(
        self,
        job: str | None,
        spec: JobSpec,
        env: dict[str, str],
        by: str,
        *,
        key: str = "",
        digest: str = "",
        queue: bool | None = None,
    ) -> Accepted:
        """Accept a job, or return the one that the same key made before."""
        self._stream.check_ready()
        if job is None:
            stem = token_from(spec.program.target.rsplit("/", 1)[-1].removesuffix(".py"), "job")
            job = f"{stem}-{uuid.uuid4().hex[:6]}"
        check_token(job, "job id")
        taken = Conflict(f"There is a job {job} already; choose another --name or delete it first.")
        async with self._one_by_one(submitted_with(spec, key, job)):
            if key in self.fleet.keys:
                return await self._same(self.fleet.keys[key], digest, env)
            check_fits(self.fleet, spec, queue)
            if job in self.fleet.jobs:
                raise taken
            env_id = await self._environments.add(env, replica_beside(self.fleet, spec))
            body = JobSubmitted(job=job, spec=spec, by=by, key=key, digest=digest, env_id=env_id)
            await self._stream.say("submit", body)
            if job in self.fleet.jobs and self.fleet.jobs[job].env_id == env_id:
                return Accepted(job, True)
            # Another request, of the same key or the same name, was taken at the same time and came first.
            await self._environments.forget(env_id)
            if key in self.fleet.keys:
                return await self._same(self.fleet.keys[key], digest, env)
            raise taken

    async def _same(self, known: Submission, digest: str, env: dict[str, str]) -> Accepted:
        made = self.fleet.jobs.get(known.job)
        if made is None:
            raise Conflict(f"Job {known.job}, which this Idempotency-Key made, has been deleted.")
        if known.digest != digest or await self._environments.get(made) != env:
            raise UsageError(f"This Idempotency-Key was used for another request, which made {known.job}.")
        return Accepted(known.job, False)

    def _one_by_one(self, name: str) -> asyncio.Lock:
        """A lock that lasts as long as somebody holds or awaits it."""
        return self._locks.setdefault(name, asyncio.Lock())

    async def stop(
        self, job: str, by: str, kill: bool = False, grace_s: float | None = None, signal: str = ""
    ) -> None:
        self._stream.job(job)
        progress = self._live.progress(self.fleet, job)
        listens = hears(self._live.pulses(self.fleet, job))
        stop = StopRequested(
            job=job, by=by, kill=kill, grace_s=grace_s, signal=signal, progress=progress, hears=listens
        )
        await self._stream.say("stop", stop)

    async def delete(self, job: str, by: str, keep_logs: bool = False, keep_checkpoints: bool = True) -> None:
        if not self._stream.job(job).ended:
            raise Conflict(f"Job {job} is {self.fleet.jobs[job].state}; stop it first (`loom stop {job}`).")
        if not keep_checkpoints:
            # First: a job whose checkpoints could not be removed stays, so that it can be tried again.
            await self._catalogues.purge(self.fleet, self._stream.job(job))
        ended = self._stream.job(job)
        await self._stream.say("delete", JobDeleted(job=job, by=by, keep_logs=keep_logs, env_id=ended.env_id))
        await self._environments.forget(ended.env_id or job)
        if job not in self.fleet.jobs:
            self._live.forget(job)
            await self._histories.forget(job)

    async def checkpoints(self, job: str, verb: CheckpointVerb, which: str = "") -> CheckpointAnswer:
        return await self._catalogues.ask(self.fleet, self._stream.job(job), verb, which)

    def notices(self, after_seq: int, most: int) -> list[Notice] | None:
        return self._feed.after(after_seq, most)

    def notices_from(self) -> int:
        return self._feed.complete_after

    async def reach_back(self, after_seq: int) -> bool:
        if after_seq > self.fleet.seq:  # a service that was just asked may be a little ahead of this one
            await self.changed(after_seq - 1, timeout_s=2.0)
        return after_seq <= self.fleet.seq and await self._feed.reach_back(
            after_seq, self._bus, self._snapshots.oldest
        )

    # -- the service --------------------------------------------------------------------------------
    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set. Returns after giving up the lease."""
        await provision(self._bus, self._patient)
        self._stream.fleet = await self._snapshots.load()
        self._snapshot_seq = self.fleet.seq
        self._feed.begin(self.fleet.seq)
        self._stream.caught_up_to = await self._bus.last_seq()
        self._dispatcher.last_decision = await self._bus.last_seq(subjects.DECISIONS)
        flow = await self._bus.subscribe(subjects.TELEMETRY, self._hear, self._quotas.admits, apart=True)
        self._nodes.hearing.follow(flow)
        await self._bus.subscribe(subjects.WINDOWS, self._watch.hear, self._quotas.admits, apart=True)
        await self._bus.subscribe(subjects.LEASES, self._nodes.lease_asked, admit=self._quotas.admits)
        self._stream.started = True
        tasks = [
            asyncio.create_task(self._read(), name="read"),
            asyncio.create_task(self._leading.run(), name="lead"),
            asyncio.create_task(self._perform(), name="perform"),
            asyncio.create_task(self._tick(), name="tick"),
            asyncio.create_task(self._watch.run(), name="watch"),
            asyncio.create_task(self._histories.run(), name="history"),
            asyncio.create_task(self._trimming.run(), name="trimming"),
            asyncio.create_task(self._doors.run(), name="doors"),
            asyncio.create_task(self.monitors.run(), name="monitors"),
            asyncio.create_task(self.admission.run(), name="admission"),
            asyncio.create_task(self._presences.run(), name="presence"),
            asyncio.create_task(self._nodes.hearing.run(), name="hearing"),
        ]
        sweep = asyncio.create_task(self._environments.sweep(lambda: self.fleet, lambda: self.active))
        stopping = asyncio.create_task(stop.wait(), name="stop")
        done, _ = await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
        living = {stopping, sweep, *tasks}
        while living:  # more than once, because nats-py's wait_for may lose a cancellation in Python 3.11
            for task in living:
                task.cancel()
            _, living = await asyncio.wait(living, timeout=0.5)
        with contextlib.suppress(LoomError):
            if self.active:
                await self._snapshots.save(self.fleet)
                await self._histories.save_all()
            await self._lease.release()
        for task in done - {stopping}:
            task.result()

    async def _read(self) -> None:
        async with contextlib.aclosing(self._bus.read(self.fleet.seq)) as records:
            async for record in records:
                if record.seq > self.fleet.seq + 1 and await self._bus.first_seq() > self.fleet.seq + 1:
                    raise StreamRewound(
                        f"events after {self.fleet.seq} were dropped before this weaver read them",
                        hint="it starts again, from a snapshot",
                    )
                try:
                    self._apply(record)
                except (codec.NewerSchema, codec.UnknownContent) as error:
                    await self._leading.stop_for_good(record.seq, error)
                    await asyncio.Event().wait()
                await self._stream.moved()
                if record.seq % BREATHE_EVERY == 0:
                    await asyncio.sleep(0)  # while it catches up it leads, answers and renews as well

    def _apply(self, record: Record) -> None:
        self._clock.heard(record.at_ns, boottime.now_ns())
        self._live.listen(asyncio.get_running_loop().time())
        self._doors.read(record.subject, len(record.data))
        self._trimming.read(len(record.data))
        if record.subject == subjects.DECISIONS:
            self._dispatcher.last_decision = max(self._dispatcher.last_decision, record.seq)
        notice = apply_record(self.fleet, record)
        if record.seq > self._stream.caught_up_to:  # what is older was set a while ago
            self._alarms.note(self.fleet, self.fleet.now_ns, boottime.now_ns())
        if notice is None:
            return
        self._feed.add(notice)
        if notice.kind == "node-joined":
            self._joined.add(notice.node)
            self._live.last_heard_s[notice.node] = asyncio.get_running_loop().time()
        if notice.kind != "decided":
            self._wake.set()

    async def _perform(self) -> None:
        """Send what is open, at once after every change and again after a while."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await self._wake.wait()
            self._wake.clear()
            if not self.active:
                continue
            joined, self._joined = frozenset(self._joined), set()
            try:
                await self._dispatcher.perform(self.fleet, self._stream.epoch, now=joined)
            except Deposed as error:
                # Only the lease says who leads, and `leading` renews it several times a second. Until it has,
                # no agent obeys a weaver that was deposed.
                log.warning("%s; the lease will show whether %s still leads", error, self.name)
            except (BusUnavailable, TimedOut) as error:
                log.info("effects wait for the bus: %s", error)

    async def _tick(self) -> None:
        """Timers, silent nodes, snapshots."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(TICK_S)
            self._live.listen(loop.time())
            if not self.active or not self.ready:
                continue
            try:
                await self._fire_timers()
                for near in steps_near(self.fleet, self._live):
                    await self._stream.say("progress", near)
                self._live.listen(loop.time())
                await self._nodes.say_silence(loop.time())
                if self._snapshots.due(self.fleet.seq - self._snapshot_seq):
                    self._snapshot_seq = self.fleet.seq
                    await self._snapshots.save(self.fleet)
            except (BusUnavailable, TimedOut) as error:
                log.info("the bus is unreachable: %s", error)

    async def _fire_timers(self) -> None:
        now_ns = stream_time(self.fleet, self._clock.now_ns(boottime.now_ns()))
        for timer in self._alarms.due(self.fleet, now_ns, boottime.now_ns()):
            # Under a new id each time: one that came too early stays set and fires again.
            await self._stream.say("timer", TimerFired(timer=timer.id))

    async def _hear(self, message: Message) -> None:
        try:
            telemetry = codec.decode_telemetry(message.data)
        except codec.DecodeError as error:
            log.warning("telemetry on %s cannot be read: %s", message.subject, error)
            return
        node = telemetry.node
        if subjects.node_of(message.subject) == node and self._nodes.is_its_agent(node, telemetry.session):
            self._live.hear(self.fleet, telemetry, asyncio.get_running_loop().time())

    def _slots(self, node: str) -> int:
        known = self.fleet.nodes.get(node)
        return known.inventory.max_workers if known is not None else 0
