"""Who waits for whom: the wait-for graph over ranks and the collectives they are in. Judges nobody.

Ranks that wait at the same number of the same group share one node (a `Key`), so a job of thousands of ranks
in one collective makes a graph of thousands of edges, not of millions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from torchloom.core.detect.window import PAIRWISE, Collective, GroupPosition, RankWindow

Key = tuple[str, int, int, int]
"""Group, number, and for a send or recv the two ranks within the group (else -1, -1)."""


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


class Graph(Struct, frozen=True):
    waits: dict[Key, CollectiveWait]
    at: dict[int, Key]
    """Where each waiting rank waits."""
    weak: frozenset[int]
    """Waiting ranks that entered without waiting: they may be busy with something else."""
    awaited: dict[int, tuple[Key, ...]]
    """At which places each rank is absent."""
    members: dict[str, dict[int, tuple[RankWindow, GroupPosition]]] = {}
    """By group, and rank within it."""
    in_group: dict[str, list[int]] = {}
    """By group, the ranks that wait in a collective of all its members."""


def build(windows: Sequence[RankWindow], whole: bool = True) -> Graph:
    """The graph of all living ranks that are in a collective. `whole`: there is a window of every rank of the
    job, with all groups that it has used."""
    members: dict[str, dict[int, tuple[RankWindow, GroupPosition]]] = {}
    for window in windows:
        for position in window.groups:
            members.setdefault(position.name, {})[position.rank] = (window, position)
    at: dict[int, Key] = {}
    in_group: dict[str, list[int]] = {}
    weak: set[int] = set()
    met: dict[Key, list[tuple[RankWindow, Collective]]] = {}
    for window in windows:
        collective = None if window.dead else blocking(window)
        if collective is None or collective.group_seq == 0 or not collective.exact:
            continue
        key = _key(window, collective)
        at[window.rank] = key
        if key[2] == -1:
            in_group.setdefault(key[0], []).append(window.rank)
        met.setdefault(key, []).append((window, collective))
        if not collective.waited and not collective.on_device:
            weak.add(window.rank)
    waits = {key: _wait(key, here, members.get(key[0], {}), windows, whole) for key, here in met.items()}
    awaited: dict[int, list[Key]] = {}
    for key, wait in waits.items():
        for rank in wait.absent:
            awaited.setdefault(rank, []).append(key)
    absent = {rank: tuple(keys) for rank, keys in awaited.items()}
    return Graph(waits, at, frozenset(weak), absent, members, in_group)


def blocking(window: RankWindow) -> Collective | None:
    """What holds the rank up: what it waits in, else its oldest asynchronous operation. On a device that is
    the oldest one that is not done, however far ahead the host is."""
    for collective in window.collectives:
        if collective.under_way and (collective.waited or collective.on_device):
            return collective
    return window.waits()


def past(wait: CollectiveWait, graph: Graph, by_rank: Mapping[int, RankWindow]) -> list[RankWindow]:
    """Members that have left the operation others are still in: a rank may be done with its part of it before
    the last of what it sends has gone out."""
    at = wait.collective
    elsewhere = {w.rank for w in before(wait, graph, by_rank)}.union(wait.ranks, wait.absent)
    found = []
    for window, place in graph.members.get(at.group, {}).values():
        if window.dead or window.rank in elsewhere:
            continue
        if at.op not in PAIRWISE or place.rank == at.peer:
            found.append(window)
    return sorted(found, key=lambda w: w.rank)


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
    missed = {key: (*wait.absent, *wait.maybe) for key, wait in graph.waits.items()}
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


def _key(window: RankWindow, collective: Collective) -> Key:
    if collective.op not in PAIRWISE:
        return collective.group, collective.group_seq, -1, -1
    me = next((g.rank for g in window.groups if g.name == collective.group), -1)
    peer = -1 if collective.peer is None else collective.peer
    first, second = (me, peer) if collective.op == "send" else (peer, me)
    return collective.group, collective.group_seq, first, second


def _wait(
    key: Key,
    here: Sequence[tuple[RankWindow, Collective]],
    members: Mapping[int, tuple[RankWindow, GroupPosition]],
    windows: Sequence[RankWindow],
    whole: bool,
) -> CollectiveWait:
    ranks = tuple(sorted(w.rank for w, _ in here))
    ages = [w.age_s(c) for w, c in here]
    collective = here[0][1]
    absent: list[int] = []
    unknown, proven = 0, True
    if collective.op in PAIRWISE:
        absent, unknown, proven = _absent_partner(key, here, members)
    else:
        size = next((p.size for _, p in members.values()), 0)
        absent = [w.rank for w, p in members.values() if p.entered < collective.group_seq]
        if size == len(windows) > len(members):
            # A group of all ranks: a rank that never used it is a member too.
            used = {w.rank for w, _ in members.values()}
            absent += [w.rank for w in windows if w.rank not in used]
        else:
            unknown = size - len(members)
    maybe: tuple[int, ...] = ()
    if whole and unknown and collective.op not in PAIRWISE:
        used = {w.rank for w, _ in members.values()}
        maybe = tuple(w.rank for w in windows if w.rank not in used)
        if len(maybe) == unknown:
            # All others are members, and none has come.
            absent, unknown, maybe = [*absent, *maybe], 0, ()
    timeout_s = max((p.timeout_s for _, p in members.values()), default=0.0)
    return CollectiveWait(
        collective, ranks, tuple(sorted(absent)), unknown, proven, max(ages), min(ages), timeout_s, maybe
    )


def _absent_partner(
    key: Key,
    here: Sequence[tuple[RankWindow, Collective]],
    members: Mapping[int, tuple[RankWindow, GroupPosition]],
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
