"""A discrete-event simulator of a job: 8 to 4,096 ranks that give the windows real agents would give.

Ranks run rank_program.py; a collective ends when its last member has entered, plus the transfer.
Every rank's clock has an offset of its host's, so a detector that compared clocks would fail here. What a
window says of records is made by the same code as an agent's (core/detect/encoding.py); as from real agents,
stacks and process samples are there only for ranks that were asked about.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Sequence
from itertools import islice, permutations
from math import inf

from torchloom.chaos.job_state import RING, Meeting, SimulatedCollective, SimulatedRank
from torchloom.chaos.rank_program import (
    TRANSFER_S,
    Die,
    EndStep,
    Enter,
    Join,
    Receive,
    SendTo,
    Stop,
    Struck,
    Work,
    changing,
    rank_program,
)
from torchloom.chaos.scenario import Benign, Parallelism, ScenarioFault
from torchloom.core.detect.encoding import PEERS_AFTER_S, UNDER_WAY_AMONG, pair_counts
from torchloom.core.detect.robust import median
from torchloom.core.detect.window import (
    Collective,
    GroupPosition,
    ProcessFacts,
    RankWindow,
)
from torchloom.model.windows import PairCount, PartHash


class Simulation:
    """One job. `run_until` moves it on, `windows` is what agents would report at that moment."""

    def __init__(
        self,
        shape: Parallelism,
        seed: int,
        fault: ScenarioFault | None = None,
        benign: Benign | None = None,
        *,
        roles: bool = True,
        stale: float = 0.0,
    ) -> None:
        """Without `roles` the script declares none; `stale` is the share of windows that are one look old."""
        self.shape, self.seed, self.fault, self.roles = shape, seed, fault, roles
        self._stale, self._before = stale, tuple[RankWindow, ...]()
        self.benign = benign or Benign()
        self.now = 0.0
        self._chance = random.Random(seed)
        self._meetings: dict[tuple[str, int], Meeting] = {}
        self._sent: dict[tuple[int, int, int], SimulatedCollective] = {}
        self._wanted: dict[tuple[int, int, int], SimulatedCollective] = {}
        self._events: list[tuple[float, int]] = []
        self.struck: set[int] = set()
        """Ranks that have had their fault by now."""
        self._sizes: dict[str, int] = {}
        offsets = [self._chance.uniform(1e3, 1e6) for _ in range(-(-shape.world // shape.a_node))]
        self.ranks = [self._new_rank(r, offsets) for r in range(shape.world)]
        for rank in self.ranks:
            for group in rank.groups:
                self._sizes[group] = self._sizes.get(group, 0) + 1
            heapq.heappush(self._events, (self._chance.uniform(0, 0.01), rank.rank))

    def _new_rank(self, rank: int, offsets: Sequence[float]) -> SimulatedRank:
        shape = self.shape
        d, p, t = shape.place(rank)
        groups = {"world": rank}
        if shape.dp > 1:
            groups[f"dp.{p}.{t}"] = d
        if shape.tp > 1:
            groups[f"tp.{d}.{p}"] = t
        if shape.pp > 1:
            groups[f"pp.{d}.{t}"] = p
        node = rank // shape.a_node
        program = rank_program(rank, shape, self.fault, self.benign, self.seed)
        return SimulatedRank(rank, program, offsets[node], f"n{node}", groups)

    # -- moving on ------------------------------------------------------------------------------
    def run_until(self, now: float) -> None:
        while self._events and self._events[0][0] <= now:
            at, rank = heapq.heappop(self._events)
            self._resume(self.ranks[rank], at)
        self.now = now

    def _resume(self, me: SimulatedRank, at: float) -> None:
        if me.died <= at or me.wake > at:
            return
        if me.blocked is not None and me.blocked.end > at:
            return
        me.blocked = None
        if me.joining and not self._joined(me, at):
            return
        for action in me.program:
            match action:
                case Work(seconds=seconds):
                    me.busy, me.busy_since, me.wake = action, at, at + seconds
                    heapq.heappush(self._events, (at + seconds, me.rank))
                    return
                case Enter():
                    record = self._enter(me, action, at)
                    if not action.waited:
                        me.pending.append(record)
                    elif not self._passed(me, record, at):
                        return
                case SendTo(peer=peer):
                    self._send(me, peer, at)
                case Receive(peer=peer):
                    if not self._passed(me, self._receive(me, peer, at), at):
                        return
                case Join():
                    me.joining = True
                    if not self._joined(me, at):
                        return
                case EndStep():
                    self._end_step(me, action, at)
                case Struck():
                    self.struck.add(me.rank)
                case Stop():
                    self._stop(me, action, at)
                    return
                case Die():
                    self._die(me, at)
                    return

    def _stop(self, me: SimulatedRank, how: Stop, at: float) -> None:
        """For good. A signal stops a second rank at the same moment, wherever that one is."""
        fault = self.fault
        both = fault is not None and fault.stuck == "stopped"
        for rank in (self.ranks[r] for r in fault.ranks) if fault is not None and both else (me,):
            if rank is me or rank.done:
                rank.busy, rank.busy_since, rank.wake = how, at, inf
                self.struck.add(rank.rank)

    def _passed(self, me: SimulatedRank, record: SimulatedCollective, at: float) -> bool:
        if record.end <= at:
            return True
        me.blocked = record
        if record.end < inf:
            heapq.heappush(self._events, (record.end, me.rank))
        return False

    def _joined(self, me: SimulatedRank, at: float) -> bool:
        me.pending = [r for r in me.pending if r.end > at]
        if not me.pending:
            me.joining = False
            return True
        return self._passed(me, max(me.pending, key=lambda r: r.end), at)

    def _record(self, me: SimulatedRank, record: SimulatedCollective, at: float) -> None:
        me.ring.append(record)
        me.records += 1
        me.used[record.group] = None
        me.this_step.append(record)
        me.active = at

    def _enter(self, me: SimulatedRank, action: Enter, at: float) -> SimulatedCollective:
        seq = me.entered[action.group] = me.entered.get(action.group, 0) + 1
        record = SimulatedCollective(action.op, action.group, seq, action.bytes, at, action.waited)
        self._record(me, record, at)
        size = self._sizes.get(action.group, 1)
        meeting = self._meetings.setdefault((action.group, seq), Meeting())
        meeting.records.append(record)
        meeting.ranks.append(me.rank)
        if len(meeting.records) == size:
            alike = len({(r.op, r.bytes) for r in meeting.records}) == 1
            del self._meetings[action.group, seq]
            if alike and not action.stalls:
                end = at + self._transfer(meeting.ranks, action.bytes)
                for r, rank in zip(meeting.records, meeting.ranks, strict=True):
                    r.end = end
                    if self.ranks[rank].blocked is r or self.ranks[rank].joining:
                        heapq.heappush(self._events, (end, rank))
        return record

    def _transfer(self, ranks: Iterable[int], size: int) -> float:
        usual = TRANSFER_S * max(0.02, size / 25e6) * self._chance.uniform(0.9, 1.1)
        fault = self.fault
        if (
            fault is None
            or not fault.kind.startswith("slow-")
            or self.ranks[fault.rank].done + 1 < fault.step
        ):
            return usual
        members = set(ranks)
        hit = fault.rank in members and (
            fault.kind in ("slow-sender", "slow-receiver")
            or (fault.kind == "slow-link" and fault.peer in members)
        )
        return usual * fault.factor if hit else usual

    def _send(self, me: SimulatedRank, peer: int, at: float) -> None:
        record = self._pairwise(me, peer, "send", at)
        key = (me.rank, peer, record.seq)
        waiting = self._wanted.pop(key, None)
        if waiting is None:
            self._sent[key] = record
            return
        record.end = waiting.end = at + self._transfer((me.rank, peer), 1_000_000)
        heapq.heappush(self._events, (waiting.end, peer))

    def _receive(self, me: SimulatedRank, peer: int, at: float) -> SimulatedCollective:
        record = self._pairwise(me, peer, "recv", at)
        key = (peer, me.rank, record.seq)
        sent = self._sent.pop(key, None)
        if sent is None:
            self._wanted[key] = record
        else:
            record.end = sent.end = at + self._transfer((me.rank, peer), 1_000_000)
        return record

    def _pairwise(self, me: SimulatedRank, peer: int, op: str, at: float) -> SimulatedCollective:
        seq = me.pairs[peer, op] = me.pairs.get((peer, op), 0) + 1
        group = next(g for g in me.groups if g.startswith("pp."))
        record = SimulatedCollective(
            op, group, seq, 1_000_000, at, op == "recv", self.ranks[peer].groups[group]
        )
        self._record(me, record, at)
        return record

    def _end_step(self, me: SimulatedRank, action: EndStep, at: float) -> None:
        me.done += 1
        me.active = at
        records = [(r.group, self._shown(me, r)) for r in me.this_step]
        took = round((at - me.step_began) * 1e9)
        places = {name: place for place, name in enumerate(n for n in me.used if n in me.groups)}
        me.recorded.step(me.done, took, round(action.data_wait_s * 1e9), records, places)
        me.use.append((action.cpu_s, action.delay_s))
        me.step_began = me.active = at
        me.this_step.clear()
        me.values = self._values(me)

    def _values(self, me: SimulatedRank) -> dict[str, float]:
        chance = random.Random(self.seed * 31 + me.done)
        loss = 2 + 8 / (1 + me.done / 20) + chance.gauss(0, 0.05)
        norm = 1.0 * chance.lognormvariate(0, 0.1)
        fault = self.fault
        if fault is not None and me.done >= fault.step:
            if fault.kind == "nan" and me.rank in fault.ranks:
                loss = float("nan")
            if fault.kind == "spike":
                norm *= 4 * fault.factor
        return {"loss": loss, "grad_norm": norm}

    def _die(self, me: SimulatedRank, at: float) -> None:
        me.died = at
        self.struck.add(me.rank)
        for other in self.ranks:
            if other.died > at and other.groups.keys() & me.groups.keys() - {"world"}:
                other.died = at + self._chance.uniform(0.05, 0.5)

    # -- looking --------------------------------------------------------------------------------
    def ask(self, ranks: Iterable[int]) -> None:
        """Sample these ranks from now on."""
        for rank in ranks:
            self.ranks[rank].asked_since = min(self.ranks[rank].asked_since, self.now)

    def windows(self) -> tuple[RankWindow, ...]:
        now = tuple(self._window(r) for r in self.ranks)
        before, self._before = self._before, now
        if not self._stale or not before:
            return now
        return tuple(
            old if self._chance.random() < self._stale else new for old, new in zip(before, now, strict=True)
        )

    def _shown(self, me: SimulatedRank, r: SimulatedCollective) -> Collective:
        # What ends later is decided already and not visible yet.
        over = r.end <= max(self.now, me.active)
        return Collective(
            r.op,
            r.group,
            r.seq,
            r.bytes,
            "float32" if r.bytes else "none",
            round((r.start + me.offset_s) * 1e9),
            round((r.end + me.offset_s) * 1e9) if over else 0,
            waited=r.waited,
            peer=r.peer,
        )

    def _window(self, me: SimulatedRank) -> RankWindow:
        def clock(at: float) -> int:
            return round((at + me.offset_s) * 1e9)

        asked = me.asked_since <= self.now
        under_way = [r for r in islice(reversed(me.ring), UNDER_WAY_AMONG) if r.end > self.now][::-1]
        idle = self.now - me.active >= PEERS_AFTER_S
        whole = me.records <= RING
        _, p, t = self.shape.place(me.rank)
        device = f"GPU-{me.rank:08x}" if self.shape.gpus else f"cpu-{me.node}-{me.rank % self.shape.a_node}"
        fault = self.fault
        heavy = (
            fault is not None
            and fault.kind == "heavy-rank"
            and me.rank in fault.ranks
            and me.done >= fault.step
        )
        checked = me.done // 10 * 10
        bad = fault is not None and fault.kind == "diverge" and me.rank in fault.ranks
        fault_step = fault.step if fault is not None else 0
        working = me.blocked is None and isinstance(me.busy, Work)
        phase = me.busy.phase if working and isinstance(me.busy, Work) else "training"
        return RankWindow(
            rank=me.rank,
            node=me.node,
            device=device,
            role=f"stage {p}" if self.roles else "",
            taken_ns=clock(self.now),
            started_ns=clock(0.0),
            last_activity_ns=clock(max(me.active, 0.0)),
            steps_done=me.done,
            phase=phase,
            phase_since_ns=clock(me.busy_since if phase != "training" else 0.0),
            steps=tuple(me.recorded.steps),
            groups=tuple(
                GroupPosition(
                    name, self._sizes[name], me.groups[name], me.entered.get(name, 0),
                    me.entered.get(name, 0) - sum(r.group == name for r in under_way),
                    me.recorded.wait_ns(name),
                )
                for name in me.used
                if name in me.groups
            ),
            pairs=me.recorded.pairs({name: name for name in me.groups}),
            counts=self._counts(me) if idle else (),
            counts_whole=idle and whole,
            collectives=tuple(self._shown(me, r) for r in under_way),
            process=self._process(me, asked),
            work_per_step=1000.0 * (fault.factor if heavy and fault is not None else 1.0),
            values=me.values,
            hashes=tuple(
                PartHash(step, 1000 * p + t, part, 2, step + (part and bad and step >= fault_step))
                for step in range(max(10, checked - 40), checked + 1, 10)
                for part in (0, 1)
            ),
        )  # fmt: skip

    def _counts(self, me: SimulatedRank) -> tuple[PairCount, ...]:
        if me.counts[0] != me.records:
            shown = (self._shown(me, r) for r in me.ring)
            me.counts = me.records, pair_counts(shown, me.records <= RING)
        return me.counts[1]

    def _process(self, me: SimulatedRank, asked: bool) -> ProcessFacts:
        use = list(me.use)[-8:]
        cpu = median([u[0] for u in use]) if use and not self.shape.gpus else 0.0
        delay = median([u[1] for u in use]) if use else 0.0
        dead = me.died <= self.now
        crashed = self.fault is not None and self.fault.kind == "crash" and me.rank in self.struck
        state, waits_on, where = me.busy.state, me.busy.waits_on, me.busy.location
        since = me.busy_since
        if isinstance(me.busy, Stop) and me.blocked is not None:
            where = "all_reduce() at train.py:52"
        elif me.blocked is not None:
            state, waits_on, where, since = "S", "outside", "all_reduce() at train.py:52", me.blocked.start
        still = asked and state != "R" and not changing(where)
        unchanged = max(0.0, self.now - max(since, me.asked_since)) if still else 0.0
        busy = asked and not still
        return ProcessFacts(
            state="X" if dead else state,
            cpu_ns_per_step=round(cpu * 1e9),
            run_delay_ns_per_step=round(delay * 1e9),
            unchanged_ns=round(unchanged * 1e9),
            unchanged_samples=1 + int(unchanged) if asked else 0,
            waits_on=waits_on if asked else "unknown",  # type: ignore[arg-type]
            life="it uses 99 % of a core" if busy else "",
            quiet_ns=round(unchanged * 1e9),
            location=where if asked else "",
            connection_lost=dead and not crashed,
            died_ns=round((me.died + me.offset_s) * 1e9) if dead else 0,
        )

    def probe(self, ranks: Sequence[int]) -> dict[tuple[int, int], float]:
        """Pairwise delays in seconds, as probes at a step boundary would measure them."""
        found = {}
        fault = self.fault
        for a, b in permutations(ranks, 2):
            slow = fault is not None and (
                (fault.kind == "slow-link" and (a, b) == (fault.rank, fault.peer))
                or (fault.kind == "slow-sender" and a == fault.rank)
                or (fault.kind == "slow-receiver" and b == fault.rank)
            )
            found[a, b] = 1e-3 * self._chance.lognormvariate(0, 0.1) * (fault.factor if slow and fault else 1)
        return found
