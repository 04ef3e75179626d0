"""A simulated world around the core: an ordered stream, hosts, messages that come late, twice or never.

`World.act` does one of ACTIONS, chosen and steered by a number, so that a list of pairs is a whole history
and hypothesis can shrink it. `World.calm` lets the world behave from then on. Safety is checked all the time.
"""

from __future__ import annotations

from collections.abc import Callable

from hosts import FINISHED, KILLED, TERMINATED, Host

from torchloom.core.invariants import broken
from torchloom.core.reducer import apply
from torchloom.model.effects import Effect
from torchloom.model.events import (
    Envelope,
    Event,
    JobDeleted,
    JobSubmitted,
    LeaseTaken,
    NodeGone,
    NodeReachable,
    NodeUnreachable,
    RestoreRequested,
    ScaleRequested,
    ScriptFailed,
    StopRequested,
    TimerFired,
    WorkerProgress,
)
from torchloom.model.fleet import Fleet, JobState, NodeState
from torchloom.model.job import JobSpec, Program, RestartLimits
from torchloom.model.worker import EndRecord, Exit, WorkerRef
from torchloom.wire import codec

LIMITS = RestartLimits(max_restarts=6, max_restarts_per_worker=4, max_fruitless=4)
SECOND_NS = 1_000_000_000


class World:
    """Two hosts, up to three jobs, one weaver that may be replaced at any time."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.stream: list[tuple[Envelope, int, int]] = []
        self.wanted: list[Effect] = []
        self.snapshot = codec.encode(self.fleet)
        self.now_ns = 1_700_000_000 * SECOND_NS
        self.hosts = [Host("node-1", 3, self._may_start), Host("node-2", 4, self._may_start)]
        self.in_flight: list[Effect] = []
        self._events = 0
        self._first: dict[tuple[str, int], int] = {}
        """The generation each job began with; that of a name used again is not 1."""
        self._restores: dict[tuple[str, int], int] = {}
        """How often people asked for an earlier state: a generation each, beyond the restart budget."""
        self._written_off: set[WorkerRef] = set()
        """Living processes of which a person said that their host is gone, and was wrong."""
        for host in self.hosts:
            host.start_agent()
            self._flush(host)

    # -- the stream and the weaver --------------------------------------------------------------
    def append(self, envelope: Envelope) -> None:
        self.now_ns += SECOND_NS // 50
        seq = len(self.stream) + 1
        self.stream.append((envelope, seq, self.now_ns))
        effects = apply(self.fleet, envelope, seq, self.now_ns)
        found = broken(self.fleet)
        assert not found, f"after event {seq} ({type(envelope.body).__name__}): {found}"
        for effect in effects:
            assert effect.reason and effect.cause == seq, f"{effect.id} came without reason or cause"
        self.wanted += effects
        for job in self.fleet.jobs.values():
            assert job.restarts <= LIMITS.max_restarts, f"{job.id}: {job.restarts} restarts"
            coming = job.generation + (job.state is JobState.WAITING)
            first = self._first.setdefault((job.id, job.submitted_at_ns), coming)
            begun = job.generation - first + 1
            allowed = 1 + LIMITS.max_restarts + self._restores.get((job.id, job.submitted_at_ns), 0)
            assert begun <= allowed, f"{job.id}: {begun} generations"
            worst = max(job.restarts_by_rank.values(), default=0)
            assert worst <= LIMITS.max_restarts_per_worker, f"{job.id}: one rank caused {worst} restarts"

    def say(self, event: Event) -> None:
        self._events += 1
        self.append(Envelope(f"w-{self._events}", self.fleet.leader or "weaver", event))

    def _may_start(self, ref: WorkerRef) -> None:
        for host in self.hosts:
            for other in host.processes.keys() - self._written_off:
                alike = (other.job, other.rank) == (ref.job, ref.rank)
                assert not alike, f"{ref} would start while {other} lives on {host.node}"

    def _flush(self, host: Host, at_most: int = 1_000_000) -> None:
        session = host.session
        while session is not None and session.queue and at_most > 0:
            envelope = session.queue.pop(0)
            self.append(envelope)
            host.stored(envelope)
            at_most -= 1

    # -- what may happen ------------------------------------------------------------------------
    def act(self, action: str, number: int) -> None:
        ACTIONS[action](self, number)

    def host(self, number: int) -> Host:
        return self.hosts[number % len(self.hosts)]

    def a_process(self, number: int) -> tuple[Host, WorkerRef] | None:
        found = [(host, ref) for host in self.hosts for ref in host.processes]
        return found[number % len(found)] if found else None

    def submit(self, number: int) -> None:
        """A new job; a name whose job has ended is used again, so that a long history never runs dry."""
        job = f"job-{number % 3}"
        if job in self.fleet.jobs and self.fleet.jobs[job].ended:
            self.say(JobDeleted(job=job, by="ann", keep_logs=bool(number % 2)))
        shape = [(1, 1), (2, 1), (3, 1), (2, 2), (1, 2)][number // 3 % 5]
        spec = JobSpec(
            program=Program("script", "train.py"),
            cwd="/",
            workers_per_node=shape[0],
            nodes=shape[1],
            restarts=LIMITS,
            min_workers=1 if number % 4 == 0 else None,
            max_workers=6 if number % 3 == 0 else None,
            standby=number // 5 % 3 if number % 7 == 0 else 0,
        )
        self.say(JobSubmitted(job=job, spec=spec, by="ann"))

    def stop(self, number: int) -> None:
        job = self.fleet.jobs.get(f"job-{number % 3}")
        if job is not None:
            progress = tuple(WorkerProgress(w.ref.rank, 7, 0.1) for w in job.workers)
            self.say(StopRequested(job=job.id, by="bob", kill=number // 3 % 3 == 0, progress=progress))

    def restore(self, number: int) -> None:
        job = self.fleet.jobs.get(f"job-{number % 3}")
        if job is not None:
            key = (job.id, job.submitted_at_ns)
            self._restores[key] = self._restores.get(key, 0) + 1
            progress = tuple(WorkerProgress(w.ref.rank, 7, 0.1) for w in job.workers)
            self.say(RestoreRequested(job=job.id, step=number % 5, by="eve", progress=progress))

    def scale(self, number: int) -> None:
        job = self.fleet.jobs.get(f"job-{number % 3}")
        if job is not None:
            key = (job.id, job.submitted_at_ns)
            self._restores[key] = self._restores.get(key, 0) + 1
            self.say(ScaleRequested(job=job.id, workers=1 + number // 3 % 5, by="eve"))

    def send(self, number: int) -> None:
        """The weaver sends all that is open (again), some of it twice."""
        open_now = list(self.fleet.outbox.values())
        self.in_flight += open_now + open_now[: number % 3]

    def deliver(self, number: int) -> None:
        """Some command arrives, not the first one sent; its agent may die while it obeys."""
        if not self.in_flight:
            return self.send(number)
        effect = self.in_flight.pop(number % len(self.in_flight))
        host = next(h for h in self.hosts if h.node == effect.node)
        host.obey(effect, die_after=number % 7 if number % 11 == 0 else None)
        if number % 5 == 0:
            self.in_flight.append(effect)

    def lose(self, number: int) -> None:
        if self.in_flight:
            del self.in_flight[number % len(self.in_flight)]

    def report(self, number: int) -> None:
        self._flush(self.host(number), 1 + number // 2 % 3)

    def report_twice(self, number: int) -> None:
        """An event is stored, and stored again because the acknowledgement was lost; sometimes renamed."""
        session = self.host(number).session
        if session is not None and session.queue:
            envelope = session.queue[0]
            self.append(Envelope(f"{envelope.id}-again", "x", envelope.body) if number % 3 else envelope)

    def crash(self, number: int) -> None:
        chosen = self.a_process(number)
        if chosen is not None:
            host, ref = chosen
            exits: list[tuple[Exit, EndRecord | None]] = [
                (KILLED, None),
                (Exit(1, None, "spawner"), EndRecord("exception", 1, "ValueError", "no", at_ns=self.now_ns)),
                (Exit(1, None, "pidfd"), EndRecord("exception", 1, "RuntimeError", connection_lost=True)),
            ]
            exit, end = exits[number // 7 % 3]
            host.end(ref, exit, self.now_ns, end)

    def fail_script(self, number: int) -> None:
        """A script fails; its process takes its time to end, and may be ended meanwhile."""
        chosen = self.a_process(number)
        if chosen is not None:
            host, ref = chosen
            end = EndRecord("exception", 1, "KeyError", "no", at_ns=self.now_ns, certain=True)
            host.say(ScriptFailed(node=host.node, ref=ref, end=end, at_ns=self.now_ns, steps=number % 40))

    def finish(self, number: int) -> None:
        chosen = self.a_process(number)
        if chosen is not None:
            chosen[0].end(chosen[1], FINISHED, self.now_ns)

    def step(self, number: int) -> None:
        chosen = self.a_process(number)
        if chosen is not None:
            chosen[0].step(chosen[1], 1 + number % 40, self.now_ns)

    def obey_stop(self, number: int) -> None:
        """A worker that was told to stop does so at last."""
        for host in self.hosts:
            for ref in [r for r, p in host.processes.items() if p.stopping]:
                host.end(ref, TERMINATED if number % 2 else FINISHED, self.now_ns)
                return

    def lose_store(self, number: int) -> None:
        host = self.host(number)
        if host.stores:
            host.lose_store(list(host.stores)[number // 2 % len(host.stores)])

    def fail_next(self, number: int) -> None:
        self.host(number).fail_next = True

    def agent(self, number: int) -> None:
        """An agent dies, or comes back; commands on their way to it are lost with its connection."""
        host = self.host(number)
        self.in_flight = [e for e in self.in_flight if e.node != host.node]
        if host.session is None:
            host.start_agent()
        else:
            host.kill_agent()

    def reboot(self, number: int) -> None:
        host = self.host(number)
        self.in_flight = [e for e in self.in_flight if e.node != host.node]
        host.reboot()

    def rejoin(self, number: int) -> None:
        self.host(number).join()

    def silence(self, number: int) -> None:
        self.say(NodeUnreachable(node=self.host(number).node, silent_s=3.5))

    def heard(self, number: int) -> None:
        self.say(NodeReachable(node=self.host(number).node))

    def gone(self, number: int) -> None:
        """A person says that a host is gone: it is, or only its agent is, or only the way to it was cut."""
        host = self.host(number)
        self.say(NodeUnreachable(node=host.node, silent_s=3.5))
        self.in_flight = [e for e in self.in_flight if e.node != host.node]
        if number % 3 == 0:
            host.reboot()
        elif number % 3 == 1:
            host.kill_agent()
        self._written_off |= host.processes.keys()
        self.say(NodeGone(node=host.node, by="ann", steps={"job-0": number % 40}))
        assert not [e for e in self.fleet.outbox.values() if e.node == host.node], "nobody would answer"

    def timer(self, number: int) -> None:
        """Time passes until a timer is due, and it fires; sometimes twice."""
        timers = list(self.fleet.timers.values())
        if timers:
            timer = timers[number % len(timers)]
            self.now_ns = max(self.now_ns, timer.at_ns)
            for _ in range(1 + number % 2):
                self.say(TimerFired(timer=timer.id))

    def keep_snapshot(self, number: int) -> None:
        self.snapshot = codec.encode(self.fleet)

    def new_weaver(self, number: int) -> None:
        """The weaver is replaced: the next one starts from the snapshot and replays the rest."""
        fleet = codec.decode_fleet(self.snapshot)
        for envelope, seq, now_ns in self.stream[fleet.seq :]:
            apply(fleet, envelope, seq, now_ns)
        assert codec.encode(fleet) == codec.encode(self.fleet), "the replayed fleet is another one"
        self.fleet = fleet
        self.say(LeaseTaken(weaver=f"weaver-{number}", epoch=self.fleet.epoch + 1))

    def delete(self, number: int) -> None:
        self.say(JobDeleted(job=f"job-{number % 3}", by="ann", keep_logs=bool(number % 2)))

    def good_moment(self, number: int) -> None:
        """Everything open reaches its agent and every answer is stored; agents that are down stay down."""
        for _ in range(1 + number % 2):
            for effect in list(self.fleet.outbox.values()):
                next(h for h in self.hosts if h.node == effect.node).obey(effect)
            for host in self.hosts:
                self._flush(host)

    def good_start(self, number: int) -> None:
        """Agents are up and heard, so that a history does not spend itself on closed doors."""
        for host in self.hosts:
            if host.session is None:
                host.start_agent()
            self._flush(host)
            if self.fleet.nodes[host.node].state is not NodeState.READY:
                host.join()
        self.good_moment(number)

    # -- when all is well again -----------------------------------------------------------------
    def calm(self, rounds: int = 80) -> None:
        """From now on everybody does what he should, and nobody fails; ends when nothing moves any more."""
        for host in self.hosts:
            host.fail_next = False
            if host.session is None:
                host.start_agent()
        for _ in range(rounds):
            before = len(self.stream)
            for host in self.hosts:
                if self.fleet.nodes[host.node].state is not NodeState.READY:
                    host.join()
                self._flush(host)
            commands, self.in_flight = self.in_flight + list(self.fleet.outbox.values()), []
            for effect in commands:
                next(h for h in self.hosts if h.node == effect.node).obey(effect)
            for host in self.hosts:
                for ref in [r for r, p in host.processes.items() if p.stopping]:
                    host.end(ref, TERMINATED, self.now_ns)
                self._flush(host)
            self.timer(0)
            if len(self.stream) == before:
                return
        raise AssertionError(f"no rest after {rounds} rounds; open: {list(self.fleet.outbox.values())}")

    def check_alive(self) -> None:
        """Nothing is stuck: every job runs, has ended, or waits for room that is not there."""
        for job in self.fleet.jobs.values():
            if job.state is JobState.WAITING:
                nodes = self.fleet.nodes.values()
                kept = {n.id: sum(s for j, s in n.spare.items() if j != job.id) for n in nodes}
                left = (h.slots - len(h.processes) - kept[h.node] for h in self.hosts)
                room = sorted(left, reverse=True)
                assert job.spec.min_workers is None or not room[0], f"{job.id} waits: {job.reason}"
                assert room[job.spec.nodes - 1] < job.spec.workers_per_node, f"{job.id} waits: {job.reason}"
            else:
                assert job.state is JobState.RUNNING or job.ended, f"{job.id} is {job.state}: {job.reason}"
            if job.state is JobState.RUNNING:
                living = {ref for host in self.hosts for ref in host.processes if ref.job == job.id}
                assert living == {w.ref for w in job.workers if w.alive}, f"{job.id}: {living}"

    def finish_all(self) -> None:
        """Every worker ends well, again and again until no job is left that runs."""
        for _ in range(12):
            for host in self.hosts:
                for ref in list(host.processes):
                    host.end(ref, FINISHED, self.now_ns)
            self.calm()
        for job in self.fleet.jobs.values():
            assert job.ended, f"{job.id} is still {job.state}: {job.reason}"

    def check_nothing_left(self) -> None:
        for host in self.hosts:
            assert not host.processes, f"left on {host.node}: {list(host.processes)}"
            assert not host.stores, f"stores left on {host.node}: {list(host.stores)}"
        assert not self.fleet.outbox, f"still open: {list(self.fleet.outbox.values())}"
        assert not self.fleet.timers


ACTIONS: dict[str, Callable[[World, int], None]] = {
    "submit": World.submit,
    "send": World.send,
    "deliver": World.deliver,
    "report": World.report,
    "report twice": World.report_twice,
    "lose": World.lose,
    "crash": World.crash,
    "fail script": World.fail_script,
    "finish": World.finish,
    "step": World.step,
    "obey stop": World.obey_stop,
    "stop": World.stop,
    "restore": World.restore,
    "scale": World.scale,
    "lose store": World.lose_store,
    "fail next": World.fail_next,
    "agent": World.agent,
    "reboot": World.reboot,
    "rejoin": World.rejoin,
    "silence": World.silence,
    "heard": World.heard,
    "gone": World.gone,
    "timer": World.timer,
    "keep snapshot": World.keep_snapshot,
    "new weaver": World.new_weaver,
    "delete": World.delete,
    "good moment": World.good_moment,
    "good start": World.good_start,
}
"""Everything that may happen, by name. The names are drawn with WEIGHTS, so that histories get somewhere."""

WEIGHTS = {
    "deliver": 12,
    "report": 8,
    "good moment": 2,
    "good start": 3,
    "submit": 6,
    "stop": 3,
    "send": 4,
    "crash": 4,
    "fail script": 3,
    "timer": 4,
    "step": 4,
    "obey stop": 3,
    "agent": 2,
    "delete": 2,
}
