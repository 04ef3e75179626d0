"""Who waits for whom: the wait-for graph over ranks and the collectives they are in. Judges nobody.

Ranks that wait at the same number of the same group share one node (a `Key`), so a job of thousands of ranks
in one collective makes a graph of thousands of edges, not of millions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from torchloom.core.detect.board import DEAD, WindowBoard
from torchloom.core.detect.members import Members
from torchloom.core.detect.window import ANY_SOURCE, PAIRWISE, Collective, RankWindow
from torchloom.model.windows import age_ns

Key = tuple[str, int, int, int]
"""Group, number, and for a send or recv the two ranks within the group (else -1, -1). A receive from anybody
has the number 0, -2 and the rank."""
Standing = tuple[int, Collective]
"""The row of a rank, and what it is in."""


class CollectiveWait(Struct, frozen=True):
    """The ranks that wait at one place, and those that have not arrived there."""

    collective: Collective
    ranks: tuple[int, ...]
    absent: tuple[int, ...]
    """Members that have not entered, as far as their windows show."""
    unknown: int
    """Members of which no window is there, or which never used the group."""
    proven: bool
    """The absent were seen not to have entered; without a partner's collectives that is only likely."""
    longest_s: float
    shortest_s: float
    timeout_s: float = 0.0
    """Of the group; 0: not known."""
    maybe: tuple[int, ...] = ()
    """Ranks of the job that have never used the group: the unknown members are among them. Empty if not all
    ranks of the job were seen."""
    beside: tuple[int, ...] = ()
    """Members that have this operation in progress as well, but stand at an earlier one, of a batch, another
    peer or another group."""
    held: tuple[int, ...] = ()
    """Those of `beside` whose device is known not to have come here, because it stands at that other one."""
    behind: tuple[int, ...] = ()
    """Of `ranks` and `beside`: the device has not come here and stands in no other operation either."""


class Graph(Struct, frozen=True):
    waits: dict[Key, CollectiveWait]
    at: dict[int, Key]
    """Where each waiting rank waits."""
    weak: frozenset[int]
    """Waiting ranks that entered without waiting: they may be busy with something else."""
    awaited: dict[int, tuple[Key, ...]]
    """At which places each rank is absent."""
    members: dict[str, Members] = {}
    """By group that somebody waits in, and rank within it."""
    in_group: dict[str, list[int]] = {}
    """By group, the ranks that wait in a collective of all its members."""


def build(windows: Sequence[RankWindow], whole: bool = True) -> Graph:
    """The graph of all living ranks that are in a collective. `whole`: there is a window of every rank of the
    job, with all groups that it has used."""
    board = WindowBoard.of(windows)
    at: dict[int, Key] = {}
    in_group: dict[str, list[int]] = {}
    weak: set[int] = set()
    met: dict[Key, list[Standing]] = {}
    from_anybody: list[Standing] = []
    several: list[tuple[int, Sequence[Collective]]] = []
    dead, ranks = board.marked(DEAD), board.ranks
    for row, inside in board.busy():
        if row in dead:
            continue
        rank = ranks[row]
        collective = blocking(inside)
        if collective is None:
            continue
        if collective.op == ANY_SOURCE:
            at[rank] = collective.group, 0, -2, rank
            from_anybody.append((row, collective))
            several.append((row, inside))
            continue
        if collective.group_seq == 0 or not collective.exact:
            continue
        key = at[rank] = _key(board, row, collective)
        if key[2] == -1:
            in_group.setdefault(key[0], []).append(rank)
        met.setdefault(key, []).append((row, collective))
        if not collective.waited and not collective.on_device:
            weak.add(rank)
        if len(inside) > 1 or collective.approaching:
            several.append((row, inside))
    members = {name: Members(board, name) for name in dict.fromkeys(key[0] for key in at.values())}
    taken_ns = board.taken_at_ns() if met or from_anybody else ()
    waits = {key: _wait(key, here, members[key[0]], board, taken_ns, whole) for key, here in met.items()}
    for row, collective in from_anybody:
        rank = ranks[row]
        waits[at[rank]] = _anybody(rank, age_ns(taken_ns[row], collective), collective, members, at)
    _add_others(waits, at, board, several)
    awaited: dict[int, list[Key]] = {}
    for key, wait in waits.items():
        for rank in (*wait.absent, *wait.held):
            awaited.setdefault(rank, []).append(key)
    absent = {rank: tuple(keys) for rank, keys in awaited.items()}
    return Graph(waits, at, frozenset(weak), absent, members, in_group)


def blocking(inside: Sequence[Collective]) -> Collective | None:
    """What holds a rank with these collectives up: what it waits in, else its oldest asynchronous operation.
    On a device that is the oldest one that is not done, however far ahead the host is."""
    oldest = None
    for collective in inside:
        if collective.under_way:
            if collective.waited or collective.on_device:
                return collective
            oldest = oldest or collective
    return oldest


def past(wait: CollectiveWait, graph: Graph, by_rank: Mapping[int, RankWindow]) -> list[RankWindow]:
    """Members that have left the operation others are still in: a rank may be done with its part of it before
    the last of what it sends has gone out."""
    at = wait.collective
    elsewhere = {w.rank for w in before(wait, graph, by_rank)}.union(wait.ranks, wait.absent, wait.beside)
    members = graph.members.get(at.group)
    if members is None:
        return []
    others = [place for place, rank in zip(members, members.ranks, strict=True) if rank not in elsewhere]
    if at.op in PAIRWISE:
        others = [place for place in others if place == at.peer]
    found = (members[place][0] for place in others)
    return sorted((w for w in found if not w.dead), key=lambda w: w.rank)


def before(wait: CollectiveWait, graph: Graph, by_rank: Mapping[int, RankWindow]) -> list[RankWindow]:
    """Members that have enqueued the operation but stand at an earlier one of the same group."""
    at = wait.collective
    if at.op in PAIRWISE:
        return []
    return [by_rank[r] for r in graph.in_group.get(at.group, ()) if graph.at[r][1] < at.group_seq]


def behind_it(wait: CollectiveWait, graph: Graph) -> set[int]:
    """Ranks that stand at a later operation of the same group: this one holds them up as well."""
    at = wait.collective
    if at.op in PAIRWISE:
        return set()
    return {r for r in graph.in_group.get(at.group, ()) if graph.at[r][1] > at.group_seq}


def held_up_by(graph: Graph, ranks: Iterable[int]) -> tuple[int, ...]:
    """Every rank that waits for one of these, directly or through others."""
    found: set[int] = set()
    seen: set[Key] = set()
    todo = list(ranks)
    while todo:
        for key in graph.awaited.get(todo.pop(), ()):
            if key not in seen:
                seen.add(key)
                fresh = set(graph.waits[key].ranks) - found
                found |= fresh
                todo += fresh
    return tuple(sorted(found))


def cycles(graph: Graph) -> list[frozenset[int]]:
    """Sets of ranks that wait for each other in a circle and for nobody else: nothing inside can end it.

    Where it is not known which ranks are missing, a circle must hold for all that may be.
    """
    missed = {key: (*wait.absent, *wait.held, *wait.maybe) for key, wait in graph.waits.items()}
    reach: dict[Key, frozenset[Key]] = {
        key: frozenset(graph.at[r] for r in ranks if r in graph.at) for key, ranks in missed.items()
    }
    found = []
    for component in _components(reach):
        leaves = any(reach[key] - component for key in component)
        ends = any(r not in graph.at for key in component for r in missed[key])
        ends = ends or any(graph.waits[key].unknown and not graph.waits[key].maybe for key in component)
        circular = len(component) > 1 or any(key in reach[key] for key in component)
        if circular and not leaves and not ends:
            found.append(frozenset(r for key in component for r in graph.waits[key].ranks))
    return found


def _key(board: WindowBoard, row: int, collective: Collective) -> Key:
    if collective.op not in PAIRWISE:
        return collective.group, collective.group_seq, -1, -1
    me = next((g.rank for g in board.outlines()[row].groups if g.name == collective.group), -1)
    peer = -1 if collective.peer is None else collective.peer
    first, second = (me, peer) if collective.op == "send" else (peer, me)
    return collective.group, collective.group_seq, first, second


def _wait(
    key: Key,
    here: Sequence[Standing],
    members: Members,
    board: WindowBoard,
    taken_ns: Sequence[int],
    whole: bool,
) -> CollectiveWait:
    ranks = tuple(sorted([board.ranks[row] for row, _ in here]))
    ages_ns = [age_ns(taken_ns[row], c) for row, c in here]
    collective = here[0][1]
    absent: list[int] = []
    unknown, proven = 0, True
    if collective.op in PAIRWISE:
        absent, unknown, proven = _absent_partner(key, here, members)
    else:
        absent = members.not_entered(collective.group_seq)
        if members.size == len(board) > len(members):
            # A group of all ranks: a rank that never used it is a member too.
            used = set(members.ranks)
            absent += [rank for rank in board.ranks if rank not in used]
        else:
            unknown = members.size - len(members)
    maybe: tuple[int, ...] = ()
    if whole and unknown and collective.op not in PAIRWISE:
        used = set(members.ranks)
        maybe = tuple(rank for rank in board.ranks if rank not in used)
        if len(maybe) == unknown:
            # All others are members, and none has come.
            absent, unknown, maybe = [*absent, *maybe], 0, ()
    longest_s, shortest_s = max(ages_ns) / 1e9, min(ages_ns) / 1e9
    missed = tuple(sorted(absent))
    return CollectiveWait(
        collective, ranks, missed, unknown, proven, longest_s, shortest_s, members.timeout_s, maybe
    )


def _anybody(
    rank: int, ns: int, collective: Collective, members: Mapping[str, Members], at: Mapping[int, Key]
) -> CollectiveWait:
    """Who receives from anybody waits for those that wait for nobody: it is likely, and never proven."""
    others = members[collective.group]
    absent = tuple(sorted(one for one in others.ranks if one not in at))
    return CollectiveWait(collective, (rank,), absent, 0, False, ns / 1e9, ns / 1e9, others.timeout_s)


def _add_others(
    waits: dict[Key, CollectiveWait],
    at: Mapping[int, Key],
    board: WindowBoard,
    several: Sequence[tuple[int, Sequence[Collective]]],
) -> None:
    """Who else is in each operation: a host that runs ahead, or a batch, has several in progress. `several`
    are the rows that may."""
    beside: dict[Key, list[int]] = {}
    held: dict[Key, list[int]] = {}
    behind: dict[Key, list[int]] = {}
    for row, inside in several:
        rank = board.ranks[row]
        first = blocking(inside)
        for collective in inside:
            if not collective.under_way or not collective.group_seq or not collective.exact:
                continue
            key = _key(board, row, collective)
            if key not in waits:
                continue
            if key != at[rank]:
                beside.setdefault(key, []).append(rank)
            if collective.approaching:
                stuck = first is not None and first.approaching
                (behind if stuck else held).setdefault(key, []).append(rank)
    for key in {*beside, *held, *behind}:
        waits[key] = replace(
            waits[key],
            beside=tuple(sorted(set(beside.get(key, ())))),
            held=tuple(sorted(set(held.get(key, ())))),
            behind=tuple(sorted(set(behind.get(key, ())))),
        )


def _absent_partner(
    key: Key,
    here: Sequence[Standing],
    members: Members,
) -> tuple[list[int], int, bool]:
    if len(here) > 1:
        return [], 0, True
    collective = here[0][1]
    partner = members.get(-1 if collective.peer is None else collective.peer)
    if partner is None:
        return [], 1, False
    me = key[3] if collective.op == "recv" else key[2]
    counts = next((c for c in partner[0].counts if (c.group, c.peer) == (collective.group, me)), None)
    if counts is None:
        done = 0 if partner[0].counts_whole else None
    else:
        done = counts.sent if collective.op == "recv" else counts.received
    if done is None:  # unknown: only its operations in progress are known
        wanted = "send" if collective.op == "recv" else "recv"
        came = any(
            (r.op, r.group, r.peer) == (wanted, collective.group, me) and r.group_seq >= collective.group_seq
            for r in partner[0].collectives
        )
        return ([] if came else [partner[0].rank]), 0, partner[0].dead
    return ([] if done >= collective.group_seq else [partner[0].rank]), 0, True


def _components(reach: Mapping[Key, frozenset[Key]]) -> list[frozenset[Key]]:
    """Strongly connected components (Tarjan's, without recursion)."""
    index: dict[Key, int] = {}
    low: dict[Key, int] = {}
    stack: list[Key] = []
    on_stack: set[Key] = set()
    found: list[frozenset[Key]] = []
    for root in reach:
        if root in index:
            continue
        work = [(root, iter(reach[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, following = work[-1]
            for target in following:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(reach[target])))
                    break
                if target in on_stack:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    cut = stack.index(node)
                    found.append(frozenset(stack[cut:]))
                    on_stack.difference_update(stack[cut:])
                    del stack[cut:]
    return found
