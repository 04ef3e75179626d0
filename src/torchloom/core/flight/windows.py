"""Dumps as windows, so that the detectors' graph of waiting and their comparison of operations apply."""

from __future__ import annotations

from collections.abc import Sequence

from torchloom.core.detect.window import PAIRWISE, Collective, GroupPosition, ProcessFacts, RankWindow
from torchloom.model.flight import Dump, DumpEntry
from torchloom.model.windows import PairCount

_UNNAMED = ("", "undefined")


class Groups:
    """The groups of all dumps. Two groups that share a name but not their members are kept apart."""

    def __init__(self, dumps: Sequence[Dump]) -> None:
        self._members: dict[tuple[int, str], tuple[int, ...]] = {}
        self._label: dict[tuple[int, str], str] = {}
        self._listed: dict[str, tuple[int, ...]] = {}
        """By label, the members of groups whose members a dump lists."""
        ranks = tuple(sorted(d.rank for d in dumps))
        versions: dict[str, set[tuple[int, ...]]] = {}
        for dump in dumps:
            for entry in _one_per_group(dump):
                members = _members(dump, entry, ranks)
                self._members[dump.rank, entry.group] = members
                versions.setdefault(entry.group, set()).add(members)
        for dump in dumps:
            for entry in _one_per_group(dump):
                key = (dump.rank, entry.group)
                name = entry.group or "default"
                if entry.description not in _UNNAMED:
                    name += f" ({entry.description})"
                if len(versions[entry.group]) > 1:
                    name += f" of ranks {', '.join(map(str, self._members[key][:8]))}"
                self._label[key] = name
                if _listed(dump, entry) is not None:
                    self._listed[name] = self._members[key]

    def label(self, rank: int, group: str) -> str:
        return self._label.get((rank, group), group)

    def members(self, rank: int, group: str) -> tuple[int, ...]:
        return self._members.get((rank, group), ())

    def unused(self, rank: int) -> list[GroupPosition]:
        """Groups that others use and that this rank is a member of, too, but has not used."""
        used = {label for (whose, _), label in self._label.items() if whose == rank}
        return [
            GroupPosition(name=label, size=len(members), rank=members.index(rank), entered=0, finished=0)
            for label, members in self._listed.items()
            if label not in used and rank in members
        ]

    @property
    def ranks(self) -> set[int]:
        """Everybody who is a member of something."""
        return {rank for members in self._members.values() for rank in members}


def window_of(dump: Dump, groups: Groups, seen_ns: int = 0) -> RankWindow:
    """`seen_ns` is when the dump was written, by the clock of its host."""
    newest_ns = max((max(e.created_ns, e.started_ns, e.completed_ns) for e in dump.entries), default=0)
    last = dump.entries[-1] if dump.entries else None
    return RankWindow(
        rank=dump.rank,
        node="",
        taken_ns=max(seen_ns, newest_ns),
        groups=(
            *(_position(dump, groups, e.group) for e in _one_per_group(dump)),
            *groups.unused(dump.rank),
        ),
        counts=() if dump.wrapped else tuple(_count(dump, groups, p.group, p.peer) for p in dump.pairs),
        counts_whole=not dump.wrapped and any(e.pairwise for e in dump.entries),
        collectives=tuple(_collective(dump, groups, entry) for entry in dump.entries),
        process=ProcessFacts(location=last.place if last is not None else ""),
    )


def _one_per_group(dump: Dump) -> list[DumpEntry]:
    return list({entry.group: entry for entry in dump.entries}.values())


def _listed(dump: Dump, entry: DumpEntry) -> tuple[int, ...] | None:
    """Global ranks of the entry's group. gloo's default group is listed without its name."""
    listed = dump.groups.get(entry.group) or dump.groups.get(entry.description)
    if listed is None and entry.group in ("", "0"):
        listed = dump.groups.get("")
    return tuple(sorted(listed)) if listed is not None and dump.rank in listed else None


def _members(dump: Dump, entry: DumpEntry, all_ranks: tuple[int, ...]) -> tuple[int, ...]:
    """A group that is not listed may be any, and is taken for one of all ranks."""
    listed = _listed(dump, entry)
    return all_ranks if listed is None else listed


def _position(dump: Dump, groups: Groups, name: str) -> GroupPosition:
    members = groups.members(dump.rank, name)
    mine = [e for e in dump.entries if e.group == name and not e.pairwise]
    return GroupPosition(
        name=groups.label(dump.rank, name),
        size=len(members),
        rank=members.index(dump.rank) if dump.rank in members else -1,
        entered=max((e.seq for e in mine), default=0),
        finished=max((e.seq for e in mine if e.over), default=0),
        timeout_s=max((e.timeout_s for e in mine), default=0.0),
    )


def _count(dump: Dump, groups: Groups, group: str, peer: int) -> PairCount:
    total = next(p for p in dump.pairs if (p.group, p.peer) == (group, peer))
    return PairCount(groups.label(dump.rank, group), peer, total.sent, total.received)


def _collective(dump: Dump, groups: Groups, entry: DumpEntry) -> Collective:
    pair = entry.op in PAIRWISE
    return Collective(
        op=entry.op,
        group=groups.label(dump.rank, entry.group),
        group_seq=entry.seq,
        bytes=entry.bytes,
        dtype=entry.dtype,
        entered_ns=entry.created_ns,
        # An end that nobody timed is some time after it was enqueued.
        finished_ns=(entry.completed_ns or entry.created_ns or 1) if entry.over else 0,
        completion="callback" if entry.backend == "gloo" else "device-event",
        peer=entry.peer,
        exact=pair or not entry.pairwise,
        arrived_ns=entry.started_ns,
        approaching=entry.backend != "gloo" and entry.state == "scheduled",
    )
