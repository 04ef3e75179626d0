"""Takes a window of every worker twice a second and sends it to the detectors. Makes no judgement.

Everything comes from the black box and from /proc, so nothing is asked of the worker. What is read in one
look is bounded: of a job with very many collectives the newest steps are read and the others passed over.
Windows are lossy, so each carries the newest steps again now and then. All windows of a host are one message,
with only what has changed (core/detect/window_blocks.py).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import nan
from statistics import median

from torchloom import boottime
from torchloom.agent.host import Host, LocalWorker
from torchloom.agent.observe import (
    accelerator,
    another_program,
    cgroups,
    kernel,
    kernel_waits,
    logged,
    words,
)
from torchloom.agent.observe.boxes import ReadableBox, is_under_way
from torchloom.agent.observe.collectives import counted, left, newest_failed, record
from torchloom.agent.observe.evidence import Samples
from torchloom.agent.observe.guarded import guarded
from torchloom.agent.observe.pulse import numbers
from torchloom.agent.observe.quiet_tree import QuietTree
from torchloom.bus.protocol import Bus
from torchloom.core.detect.encoding import PEERS_AFTER_S, STEPS_KEPT, UNDER_WAY_AMONG, Recorded, pair_counts
from torchloom.core.detect.watched_metrics import PARAMETERS, is_watched
from torchloom.core.detect.window import PAIRWISE
from torchloom.core.detect.window_blocks import Packing
from torchloom.core.nodes.report_pace import window_every_s
from torchloom.model.windows import (
    LOOKS_FOR_STOPS,
    Broken,
    FailedCollective,
    GroupPosition,
    PairCount,
    PartHash,
    ProcessFacts,
    QuorumFacts,
    RankWindow,
    RefWindow,
    StepTimes,
    WindowBatch,
)
from torchloom.model.worker import WorkerRef
from torchloom.wire import blackbox, codec, subjects
from torchloom.wire.blackbox import Progress, RecorderKind, Source

Clock = Callable[[], int]
_GOLDEN = 0.618
"""Its multiples, without their whole parts, are spread evenly."""
_STEPS_A_LOOK = 16
_RECORDS_A_LOOK = 256
_WORKERS_A_MESSAGE = 64
_ALL_STEPS_EVERY = 8
"""Looks after which all steps kept are sent again: a message may have been lost, or the weaver be new."""
_OOM_EVERY = 4
_COUNTED_LOOKS = 8
"""How far back counters are compared, in looks at the counters (every other look)."""


@dataclass
class _Past:
    """What was read of one worker before."""

    recorded: Recorded[int] = field(default_factory=Recorded)
    counts: tuple[tuple[PairCount, ...], bool] = ((), False)
    counted_at: int = 0
    """How far the rank was with each peer when so many collectives had been entered."""
    leads: deque[int] = field(default_factory=lambda: deque(maxlen=STEPS_KEPT))
    """Of the newest steps, how far the host was ahead of its device."""
    device_looks: accelerator.Looks = field(default_factory=lambda: deque(maxlen=2 * _COUNTED_LOOKS))
    looks: int = 0
    next_record: int = 1
    counted: deque[tuple[int, kernel.Counts]] = field(default_factory=lambda: deque(maxlen=_COUNTED_LOOKS))
    """Completed steps, and the kernel's counts at that time."""
    throttled: deque[tuple[int, str, int]] = field(default_factory=lambda: deque(maxlen=_COUNTED_LOOKS))
    """Completed steps, the cgroup, and what its quota has cost it until then."""
    stopped: kernel.Counts | None = None
    """What it had used when it was seen to be stopped in the last look."""
    stops: deque[bool] = field(default_factory=lambda: deque(maxlen=LOOKS_FOR_STOPS))
    """Whether it was stopped in each of the last glances."""
    tracer: str = ""
    values_version: int = -1
    values: dict[str, float] = field(default_factory=dict)
    values_step: int = 0
    peaks: dict[str, tuple[int, float]] = field(default_factory=dict)
    quorum: QuorumFacts | None = None
    broken: Broken | None = None
    failed: FailedCollective | None = None
    hashed_step: int = 0
    """The newest step whose hashes were sent."""
    tree: QuietTree = field(default_factory=QuietTree)


class Windows:
    """Takes the windows of one host's workers."""

    def __init__(self, host: Host, samples: Samples) -> None:
        self._host = host
        self._samples = samples
        self._past: dict[WorkerRef, _Past] = {}
        self._packing = Packing()
        self._sent = 0

    async def send(self, bus: Bus) -> None:
        """Take and send windows, until cancelled."""
        while True:
            found = self.take(time.monotonic_ns)
            for first in range(0, len(found), _WORKERS_A_MESSAGE):
                batch = self.batch(found[first : first + _WORKERS_A_MESSAGE])
                await bus.publish(subjects.windows(self._host.node), codec.encode(batch))
            # At another moment between two looks each time: what stops a worker may have a period of its own.
            self._sent += 1
            every_s = window_every_s(self._host.fleet_nodes)
            before_s = every_s * (self._sent * _GOLDEN % 1)
            await asyncio.sleep(before_s)
            self.glance()
            await asyncio.sleep(every_s - before_s)

    def glance(self) -> None:
        """Note which workers are stopped just now: one that is stopped and continued all the time is hardly
        ever stopped in two looks."""
        for worker in self._host.running():
            if (past := self._past.get(worker.ref)) is not None:
                past.stops.append(kernel.state_of(worker.pid) == "T")

    def batch(self, found: Sequence[RefWindow]) -> WindowBatch:
        """A message with these windows: of what was sent before only what has changed."""
        windows, blocks = self._packing.pack(found)
        return WindowBatch(
            node=self._host.node,
            session=self._host.session,
            sent_ns=boottime.now_ns(),
            windows=windows,
            blocks=blocks,
        )

    def take(self, now_ns: Clock) -> list[RefWindow]:
        """One window of every running worker that has a black box."""
        running = {w.ref: w for w in self._host.running() if w.box is not None and not w.box.closed}
        for ref in [ref for ref in self._past if ref not in running]:
            del self._past[ref]
            self._packing.forget(ref)
        looks = (guarded(w, partial(self._look, w, now_ns), None) for w in running.values())
        return [found for found in looks if found is not None]

    def _look(self, worker: LocalWorker, now_ns: Clock) -> RefWindow | None:
        if worker.box is None:
            return None
        found = RefWindow(worker.ref, self._window(worker, worker.box, now_ns))
        codec.encode(found)  # what cannot be sent must not keep the others' from being sent
        return found

    def _window(self, worker: LocalWorker, box: ReadableBox, now_ns: Clock) -> RankWindow:
        past = self._past.setdefault(worker.ref, _Past())
        past.looks += 1
        steps = box.progress(Progress.STEPS)
        groups = box.view.groups()
        # Steps after groups: every group of a step is in the table then.
        read = _read_device_steps if accelerator.is_used(box) else _read_steps
        fresh = read(box, past, steps, counted(groups))
        names = {key: words.group_name(group.name) for key, group in groups.items()}
        under_way = _under_way(box)
        name = box.view.read_blob(blackbox.PHASE_NAME) or b""
        whole = past.looks % _ALL_STEPS_EVERY == 1
        counts, counts_whole = _counts(box, past, names, now_ns())
        past.failed = newest_failed(box, names, past.failed, steps)
        return RankWindow(
            rank=worker.ref.rank,
            node=self._host.node,
            device=", ".join(d.device for d in worker.devices if d.kind == "gpu"),
            started_ns=worker.began_ns,
            last_activity_ns=box.progress(Progress.LAST_ACTIVITY_NS),
            steps_done=steps,
            phase=words.phase_name(box.progress(Progress.PHASE), name.decode("utf-8", "replace")),
            phase_since_ns=box.progress(Progress.PHASE_SINCE_NS),
            role=(box.view.read_blob(blackbox.ROLE) or b"").decode("utf-8", "replace"),
            steps=tuple(past.recorded.steps) if whole else fresh,
            groups=tuple(
                GroupPosition(
                    name=names[key],
                    size=g.size,
                    rank=g.rank,
                    entered=g.entered,
                    finished=g.finished,
                    wait_ns=past.recorded.wait_ns(key),
                    timeout_s=g.timeout_ms / 1000,
                )
                for key, g in groups.items()
            ),
            pairs=past.recorded.pairs(names),
            counts=counts,
            counts_whole=counts_whole,
            collectives=tuple(
                record(c, names.get(c.group, "")) for c in (*under_way, *left(box, under_way, now_ns()))
            ),
            process=self._facts(worker, box, past, steps, not steps and not groups, now_ns()),
            accelerator=accelerator.facts(box, round(median(past.leads or [0])), past.device_looks, now_ns()),
            values=_values(box, past),
            values_step=past.values_step,
            peaks=past.peaks,
            broken=past.broken,
            quorum=past.quorum,
            failed=past.failed,
            hashes=_hashes(box, past, whole),
            offset=box.offset,
            records=box.progress(Progress.RECORDER) != RecorderKind.NONE,
            # Last, so that nothing above can be newer than it.
            taken_ns=now_ns(),
        )

    def _facts(
        self, worker: LocalWorker, box: ReadableBox, past: _Past, steps: int, blank: bool, now_ns: int
    ) -> ProcessFacts:
        if past.looks % 2:
            counted = kernel.counts(worker.pid)
            if counted is not None:
                past.counted.append((steps, counted))
            state = counted.state if counted is not None else "X"
            if (held_back := cgroups.throttled(worker.pid)) is not None:
                past.throttled.append((steps, *held_back))
        else:
            state = kernel.state_of(worker.pid) or "X"
        if past.looks % _OOM_EVERY == 1 and state not in ("X", "Z"):
            counted_kills = cgroups.oom_kills(worker.pid)
            if counted_kills is not None:
                worker.oom_kills.append(counted_kills)
        if past.looks % 2 or state in ("t", "T"):
            past.tracer = kernel_waits.tracer(worker.pid)
        if state == "T" and not self._stopped(worker, past):
            state = "S"
        elif state != "T":
            past.stopped = None
        cpu, delay = kernel.per_step(past.counted)
        children, quiet_ns = past.tree.look(worker, now_ns) if blank else (0, 0)
        sample = self._samples.of(worker.ref)
        return ProcessFacts(
            state="S" if state in "XZ" else state,  # the exit itself is reported as an event
            cpu_ns_per_step=cpu,
            run_delay_ns_per_step=delay,
            throttled_ns_per_step=cgroups.throttled_per_step(past.throttled),
            unchanged_ns=sample.unchanged_ns,
            unchanged_samples=sample.samples,
            waits_on=sample.waits_on,
            waits_for=sample.waits_for,
            life=sample.life,
            quiet_ns=sample.quiet_ns,
            tracer=past.tracer or sample.debugger,
            location=sample.location,
            children=children,
            tree_quiet_ns=quiet_ns,
            stops=sum(past.stops) if state != "T" else 0,
            script_failed=box.failed_script(),
            became="" if blank else another_program.became(worker.pid, box, now_ns),
        )

    def _stopped(self, worker: LocalWorker, past: _Past) -> bool:
        """Stopped in two looks one after the other, and it did not run in between: a snapshot may stop it for
        a moment, and what limits CPU use (cpulimit) stops and continues it all the time."""
        now = kernel.counts(worker.pid)
        before, past.stopped = past.stopped, now
        return before is not None and now is not None and now.cpu_ns == before.cpu_ns


def _under_way(box: ReadableBox) -> list[blackbox.CollectiveRecord]:
    entered, finished = (
        box.progress(Progress.COLLECTIVES_ENTERED),
        box.progress(Progress.COLLECTIVES_FINISHED),
    )
    if entered == finished:
        return []
    on_device = accelerator.under_way(box)
    newest = box.view.collectives(UNDER_WAY_AMONG)
    return on_device + [c for c in newest if is_under_way(c) and c.source != Source.DEVICE_EVENT]


def _read_steps(
    box: ReadableBox, past: _Past, newest: int, places: Mapping[int, int]
) -> tuple[StepTimes, ...]:
    """Steps completed since the last look, with what they waited; those not fully readable are left out."""
    kept = past.recorded.steps
    seen = kept[-1].step if kept else 0
    if newest <= seen:
        return ()
    entered = box.progress(Progress.COLLECTIVES_ENTERED)
    first = max(past.next_record, entered - _RECORDS_A_LOOK + 1, 1)
    skipped = first > past.next_record
    records = [c for seq in range(first, entered + 1) if (c := box.view.read_collective(seq)) is not None]
    found = []
    for step in box.view.steps(min(newest - seen, _STEPS_A_LOOK)):
        begin_ns = step.ended_ns - step.step_ns
        if skipped and (not records or records[0].entered_ns > begin_ns):
            continue
        mine = [c for c in records if begin_ns < c.entered_ns <= step.ended_ns]
        # A recorder that samples records some steps whole and others not at all.
        if len(mine) < step.collectives or (not mine and box.progress(Progress.COLLECTIVES_SKIPPED)):
            continue
        made = [(c.group, record(c, "")) for c in mine]
        found.append(past.recorded.step(step.seq, step.step_ns, step.data_wait_ns, made, places))
        past.next_record = max(past.next_record, mine[-1].seq + 1) if mine else past.next_record
    past.next_record = max(past.next_record, first)
    return tuple(found)


def _read_device_steps(
    box: ReadableBox, past: _Past, newest: int, places: Mapping[int, int]
) -> tuple[StepTimes, ...]:
    """The same for steps that a device makes: read when the device has made them, whenever the host did."""
    kept = past.recorded.steps
    found = []
    at = past.next_record
    for timed, step in accelerator.steps(box, kept[-1].step if kept else 0):
        mine: list[blackbox.CollectiveRecord] = []
        if step is not None:
            mine, at = accelerator.records(box, at, step.ended_ns - step.step_ns, step.ended_ns)
        if step is not None and len(mine) >= step.collectives:
            made = [(c.group, record(c, "")) for c in mine]
            found.append(past.recorded.step(step.seq, timed.step_ns, step.data_wait_ns, made, places))
            past.leads.extend(accelerator.leads(mine))
        elif (waited := box.view.read_device_wait(timed.seq)) is not None:
            # The host is so far ahead that the ring has none of its collectives any more.
            data_wait_ns = step.data_wait_ns if step is not None else 0
            found.append(past.recorded.bare_step(timed.seq, timed.step_ns, data_wait_ns, waited.wait_ns))
            past.leads.append(waited.lead_ns)
    past.next_record = at
    return tuple(found)


def _counts(
    box: ReadableBox, past: _Past, names: Mapping[int, str], now_ns: int
) -> tuple[tuple[PairCount, ...], bool]:
    """Counts per peer of a stalled rank, taken once; if it has sends or recvs this reads the whole ring.
    Also whether the counts cover all collectives the rank ever made."""
    entered = box.progress(Progress.COLLECTIVES_ENTERED)
    if now_ns - box.progress(Progress.LAST_ACTIVITY_NS) < PEERS_AFTER_S * 1e9:
        return (), False
    if entered != past.counted_at or not entered:
        ring = [record(c, names.get(c.group, "")) for c in box.view.collectives(UNDER_WAY_AMONG)]
        whole = len(ring) == entered
        if past.recorded.pairwise or any(c.op in PAIRWISE for c in ring):
            most = blackbox.COLLECTIVE_SLOTS
            ring = [record(c, names.get(c.group, "")) for c in box.view.collectives(most)]
            whole = len(ring) == entered
        past.counted_at, past.counts = entered, (pair_counts(ring, whole), whole)
    return past.counts


def _values(box: ReadableBox, past: _Past) -> dict[str, float]:
    """The watched metrics that the script logged, and parameters that are not finite."""
    version = box.view.blob_version(blackbox.METRICS)
    if version != past.values_version:
        found = box.json(blackbox.METRICS)
        told = numbers(found)
        past.values = {k: v for k, v in told.items() if is_watched(k)}
        if isinstance(found, dict) and found.get(PARAMETERS) is False:
            past.values[PARAMETERS] = nan
        past.broken = logged.broken(found)
        past.peaks = logged.peaks(found)
        past.quorum = logged.quorum(told)
        step = found.get("step") if isinstance(found, dict) else 0
        past.values_step = step if isinstance(step, int) else 0
        past.values_version = version
    return past.values


def _hashes(box: ReadableBox, past: _Past, whole: bool) -> tuple[PartHash, ...]:
    """Those of steps that were not sent before; now and then all, because a message may have been lost."""
    kept = box.view.hashes()
    if not kept or (kept[-1].step == past.hashed_step and not whole):
        return ()
    # The newest step may not be whole yet: its parts are written one after the other.
    found = tuple(
        PartHash(h.step, h.part >> 32, h.part >> 16 & 0xFFFF, h.part & 0xFFFF, h.hash)
        for h in kept
        if whole or h.step >= past.hashed_step
    )
    past.hashed_step = kept[-1].step
    return found
