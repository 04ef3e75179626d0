"""Has the links between the nodes of a quorum checked when its steps fail or stall, and leaves replicas out.

A shell around core/broken_links.py, which chooses. After a failed step the next quorum waits for the check, a
few seconds at most. A collective that stalls is ended only if a link was found broken twice in a row. While a
replica is cut off its links are tried again and again; it is taken back when they work.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable

from torchloom.agent.lighthouse import records
from torchloom.agent.lighthouse.link_checks import Try, check, unanswered
from torchloom.agent.lighthouse.records import BeaconRecord
from torchloom.core.broken_links import (
    MENDED,
    MOST_NODES,
    SOON_S,
    FailedMember,
    apart,
    link,
    links_of,
    stalled_after_s,
    steady_s,
)
from torchloom.core.quorum import QuorumState, failed_together, is_held
from torchloom.model.quorum import CutOff, Link, QuorumMember
from torchloom.wire import torchft_messages

log = logging.getLogger(__name__)

_TRY_EVERY_S = 1.0
_KEPT = 8


class LinkWatch:
    def __init__(
        self,
        record: BeaconRecord,
        state: QuorumState,
        relays: Try,
        seated: Callable[[str], None],
        go_on: Callable[[], None],
        abandon: Callable[[tuple[str, ...]], None],
    ) -> None:
        self._record, self._state, self._relays = record, state, relays
        self._seated = seated
        """What is known of the replica behind this door has changed: record it, and tell it."""
        self._go_on = go_on
        """A quorum may be formed now."""
        self._abandon = abandon
        """The others leave collectives that wait for these."""
        self._usual_s: deque[float] = deque(maxlen=_KEPT)
        """Between the last quorums."""
        self._settled_s = self._due_s = time.monotonic()
        self._addresses: dict[str, str] = {}
        """Of the managers, by door."""
        self._checked = False
        """Whether the links of the last quorum were checked after it failed."""
        self._task: asyncio.Task[None] | None = None
        self._tried_s = 0.0
        self._works_s: dict[str, float] = {}
        """Since when all links of a replica that is cut off have worked, by door."""
        self._before: dict[str, tuple[int, float]] = {}
        """How often a replica was cut off, and when it was last taken back, by door."""

    # -- the lighthouse's side --------------------------------------------------------------------
    def asked(self, door: str, member: QuorumMember) -> None:
        self._addresses[door] = torchft_messages.manager_address(member.raw)

    def settled(self) -> None:
        """A new quorum is formed; if that fails, its links are checked too."""
        self._checked, now_s = False, time.monotonic()
        self._usual_s.append(now_s - self._settled_s)
        self._settled_s, self._due_s = now_s, now_s + stalled_after_s(self._usual_s)

    def forget(self, door: str) -> None:
        for known in (self._addresses, self._works_s, self._before, self._state.cut_off):
            known.pop(door, None)
        self._record.notices = [one for one in self._record.notices if one.door != door]

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def must_wait(self, members: tuple[QuorumMember, ...]) -> bool:
        """Whether the next quorum waits because the links between these are being checked."""
        if self._checked or not failed_together(self._state, members):
            return False
        failed = self._failed_members()
        if failed:
            self._start(self._check(failed))
        return bool(failed)

    def look(self, now_s: float) -> None:
        """Try the links of those that are cut off again, if it is time."""
        if self._task is not None:
            return
        if now_s > self._due_s:
            self._due_s = now_s + (now_s - self._settled_s)
            if failed := self._failed_members():
                self._start(self._check_stalled(failed, self._settled_s))
        elif self._state.cut_off and now_s - self._tried_s > _TRY_EVERY_S:
            self._start(self._try_again())

    def release(self, why: str) -> None:
        """All that are cut off take part again."""
        for door in list(self._state.cut_off):
            if is_held(self._state, door):
                self._end(door, why)

    # -- checks -----------------------------------------------------------------------------------
    def _start(self, work: Coroutine[None, None, None]) -> None:
        if self._task is None:
            self._task = asyncio.create_task(work)
            self._task.add_done_callback(self._ended)
        else:
            work.close()  # it is tried again when that one has ended

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            log.warning("the links of %s could not be checked: %s", self._record.set, error)
            self._checked = True
        self._go_on()

    def _failed_members(self) -> list[FailedMember]:
        """The last quorum, if all its members are alive and on several nodes."""
        state = self._state
        if not state.answered.keys() <= state.candidates.keys():
            return []
        doors = {state.candidates[id].door: member.step for id, member in state.answered.items()}
        found = [FailedMember(door, self._node(door), step) for door, step in doors.items()]
        return found if 1 < len({one.node for one in found}) <= MOST_NODES else []

    async def _check(self, failed: list[FailedMember]) -> None:
        log.info("a step of %s failed: checking the links between its nodes", self._record.set)
        broken = await self._broken(failed)
        self._checked = True
        self._part(failed, broken)

    async def _check_stalled(self, failed: list[FailedMember], settled_s: float) -> None:
        broken = await self._broken(failed)
        if broken:
            broken &= await self._broken(failed)
        if settled_s != self._settled_s or not self._failed_members():
            return  # it went on, or somebody has ended
        doors = {self._state.candidates[id].door: id for id in self._state.answered}
        if out := self._part(failed, broken):
            self._abandon(tuple(doors[door] for door in out))

    async def _broken(self, failed: list[FailedMember]) -> set[Link]:
        nodes = sorted({one.node for one in failed})
        links = {link(one, other) for one in nodes for other in nodes if one < other}
        return (await self._try(links, [one.door for one in failed]))[0]

    def _part(self, failed: list[FailedMember], broken: set[Link]) -> list[str]:
        """Returns the doors that are left out."""
        out = apart(failed, broken, self._record.node)
        stay = len(failed) - len(out)
        enough = stay >= self._record.min_replicas
        for door, lost in out.items():
            self._works_s.pop(door, None)
            if door in self._record.doors:
                self._cut(door, CutOff(lost, enough), stay)
        return [door for door in out if enough and door in self._record.doors]

    async def _try_again(self) -> None:
        self._tried_s, members = time.monotonic(), self._members()
        cut = {door: links_of(self._node(door), map(self._node, members)) for door in self._state.cut_off}
        links = frozenset[Link]().union(*cut.values())
        _, works = await self._try(links, [*members, *cut])
        now_s = time.monotonic()
        for door, needed in cut.items():
            if door not in self._state.cut_off:
                continue
            if not needed <= works:
                self._works_s.pop(door, None)
                continue
            times, _ = self._before.get(door, (0, 0.0))
            if now_s - self._works_s.setdefault(door, now_s) >= steady_s(times):
                self._end(door, MENDED)

    async def _try(self, links: Iterable[Link], doors: Iterable[str]) -> tuple[set[Link], set[Link]]:
        known = {self._node(door): self._addresses[door] for door in doors if door in self._addresses}
        return await check(frozenset(links), known, self._attempt)

    async def _attempt(self, node: str, addresses: tuple[str, ...]) -> frozenset[str] | None:
        if node == self._record.node:
            return await unanswered(addresses)
        return await self._relays(node, addresses)

    # -- what follows -----------------------------------------------------------------------------
    def _node(self, door: str) -> str:
        return self._record.owners.get(door, self._record.node)

    def _members(self) -> list[str]:
        known = self._state.candidates
        doors = [known[id].door for id in self._state.previous if id in known]
        return [door for door in doors if not is_held(self._state, door)]

    def _cut(self, door: str, cut: CutOff, others: int) -> None:
        before = self._state.cut_off.get(door)
        if before == cut:
            return
        times, ended_s = self._before.get(door, (0, 0.0))
        if before is None:
            soon = ended_s and time.monotonic() - ended_s < SOON_S
            self._before[door] = (times + 1 if soon else 0, ended_s)
        self._state.cut_off[door] = cut
        named = ", ".join(f"{one} and {other}" for one, other in cut.links)
        what = "is left out" if cut.out else "stays, because the others would be too few"
        log.info("%s %s: no connection between %s", door, what, named)
        records.notice(self._record, door, others)
        self._seated(door)

    def _end(self, door: str, why: str) -> None:
        del self._state.cut_off[door]
        self._works_s.pop(door, None)
        self._before[door] = (self._before.get(door, (0, 0.0))[0], time.monotonic())
        log.info("%s takes part again: %s", door, why)
        records.notice(self._record, door, len(self._members()), why)
        self._seated(door)
