"""Processes that are gone, and nodes that are unreachable. Orders nothing by the clocks of two hosts."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torchloom.core.detect import words
from torchloom.core.detect.board import DEAD, WindowBoard
from torchloom.core.detect.window import RankWindow
from torchloom.model.findings import Evidence, Finding


def crashes(windows: Sequence[RankWindow]) -> list[Finding]:
    """All ranks that died on their own. A rank that died of a lost connection followed another one and is
    named only if no other is dead: its peer may be on an unreachable node."""
    dead = WindowBoard.of(windows).with_mark(DEAD)
    own = [w for w in dead if not w.process.connection_lost]
    if not dead:
        return []
    first = own or _first_of_each_node(dead)
    named = {f.rank for f in first}
    followers = sorted(w.rank for w in dead if w.rank not in named)
    after = f"; {words.ranks_text(followers)} followed" if followers else ""
    whose = "it" if len(first) == 1 else "each"
    blamed = "" if own else f"; {whose} lost the connection to a peer, and nobody else is known to be dead"
    done = max(w.steps_done for w in first) + words.offset_of(first)
    return [
        Finding(
            kind="crash",
            ranks=tuple(sorted(w.rank for w in first)),
            node=words.node_of(first),
            sentence=f"{words.whom(first)} died after step {done}{after}{blamed}",
            confidence=0.99 if own else 0.4,
            certain=True,
            certainty="the process is gone",
            may_act=True,
            waiting=tuple(sorted(w.rank for w in windows if not w.dead)),
            evidence=tuple(Evidence(w.rank, f"state {w.process.state}") for w in first),
            inputs={"dead": len(dead), "connection_lost": len(dead) - len(own)},
        )
    ]


def _first_of_each_node(dead: Sequence[RankWindow]) -> list[RankWindow]:
    """Of ranks that all lost a peer: deaths of one host can be ordered, and those of several cannot, so each
    host keeps its first."""
    first: dict[str, RankWindow] = {}
    for window in sorted(dead, key=lambda w: w.process.died_ns):
        first.setdefault(window.node, window)
    return list(first.values())


def lost_nodes(unheard: Collection[str], ranks_of: dict[str, tuple[int, ...]]) -> list[Finding]:
    """Unreachable nodes. Unreachable is not dead, so this is never certain."""
    return [
        Finding(
            kind="node-lost",
            ranks=ranks_of[node],
            node=node,
            sentence=f"node {node} with {words.ranks_text(ranks_of[node])} is unreachable; "
            "whether it is dead cannot be seen from here",
            confidence=0.5,
            certainty="unreachable is not dead",
        )
        for node in sorted(unheard)
        if ranks_of.get(node)
    ]
