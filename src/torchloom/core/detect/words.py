"""Pieces of sentences that several detectors share. One place, so that all verdicts read alike."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchloom.core.detect.board import OFFSET, WindowBoard
from torchloom.core.detect.window import Collective, RankWindow
from torchloom.model.windows import LOOKS_FOR_STOPS


@dataclass(frozen=True, slots=True)
class _Clause:
    """A fact about a rank: the clause, and what is left of it after another clause about the same rank."""

    text: str
    short: str = ""

    @staticmethod
    def it_is(what: str) -> _Clause:
        return _Clause(f"it is {what}", what)


_STATES = {
    "T": _Clause.it_is("stopped (SIGSTOP)"),
    "t": _Clause("a debugger has stopped it"),
    "Z": _Clause.it_is("dead"),
    "X": _Clause.it_is("gone"),
    "D": _Clause("it waits for a disk or device"),
}


def offset_of(windows: Sequence[RankWindow]) -> int:
    """From completed steps to training steps, by which people know them; 0 if the script reports none."""
    told = windows.with_mark(OFFSET) if isinstance(windows, WindowBoard) else windows
    return max((w.offset for w in told if w.offset is not None), default=0)


def ranks_text(ranks: Iterable[int]) -> str:
    """`rank 3`, `ranks 0–2 and 5`; long lists are cut."""
    ordered = sorted(set(ranks))
    runs: list[list[int]] = []
    for rank in ordered:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    parts = [part for a, b in runs[:6] for part in ([f"{a}–{b}"] if b > a + 1 else map(str, sorted({a, b})))]
    if len(runs) > 6:
        text = ", ".join(parts) + " …"
    else:
        text = " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
    return f"{'rank' if len(ordered) == 1 else 'ranks'} {text}"


def who(window: RankWindow) -> str:
    """`rank 3 on node b (GPU-…)`; a dump of a foreign job names no node."""
    where = f" on node {window.node}" if window.node else ""
    return f"rank {window.rank}{where}" + (f" ({window.device})" if window.device else "")


def whom(windows: Sequence[RankWindow]) -> str:
    if len(windows) == 1:
        return who(windows[0])
    nodes = {w.node for w in windows}
    where = f" on node {next(iter(nodes))}" if len(nodes) == 1 and "" not in nodes else ""
    return ranks_text(w.rank for w in windows) + where


def node_of(windows: Iterable[RankWindow]) -> str:
    nodes = {w.node for w in windows}
    return nodes.pop() if len(nodes) == 1 else ""


def place_of(windows: Iterable[RankWindow]) -> str:
    """`node a`, or `their hosts`."""
    node = node_of(windows)
    return f"node {node}" if node else "their hosts"


def lasting(seconds: float) -> str:
    if seconds < 0.0995:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"


def change(before_s: float, after_s: float) -> str:
    """`104 ms to 135 ms`: in one unit and fine enough that a difference is seen."""
    if max(before_s, after_s) < 1:
        return f"{before_s * 1000:.3g} ms to {after_s * 1000:.3g} ms"
    return f"{before_s:.3g} s to {after_s:.3g} s"


def operation(collective: Collective) -> str:
    """`all_reduce #4211 of group dp`."""
    number = f" #{collective.group_seq}" if collective.group_seq else ""
    return f"{collective.op}{number}{of_group(collective.group)}"


def of_group(name: str) -> str:
    """` of group dp`; nothing for a group without a name, as torchft makes them."""
    return f" of group {name}" if name else ""


def doing(window: RankWindow) -> str:
    """What a rank outside of collectives does, as a clause: the most informative fact first."""
    facts = window.process
    if window.left:
        return f"it {window.left}"
    if facts.became:
        return f"its process has become another program ({facts.became})"
    parts: list[_Clause] = []
    if facts.script_failed:
        parts.append(
            _Clause(f"its script has failed ({facts.script_failed}) and a thread keeps its process alive")
        )
    if facts.tracer:
        parts.append(_Clause(f"{facts.tracer} {'has stopped' if facts.state == 't' else 'debugs'} it"))
    elif state := _STATES.get(facts.state):
        parts.append(state)
    synchronizes = waits_for_device(window)
    if synchronizes:
        parts.append(_Clause(f"it waits for its device in {facts.location}"))
    elif facts.location:
        parts.append(_Clause.it_is(f"in {facts.location}"))
    if device := accelerator(window):
        parts.append(_Clause(device))
    if not synchronizes and facts.state not in ("t", "T") and (seen := living(window) or facts.waits_for):
        parts.append(_Clause(seen))
    if not parts and window.phase not in ("training", "none", ""):
        parts.append(_Clause(f"its phase is {window.phase}"))
    if not parts:
        return "what it does is not known yet"
    return ", ".join((parts[0].text, *(part.short or part.text for part in parts[1:])))


def waits_for_device(window: RankWindow) -> bool:
    """Whether its host blocks in a synchronisation (`.item()`, `synchronize()`): its device finishes nothing,
    and the host neither works nor sleeps. A host that polls its device uses CPU and may be at work."""
    device, facts = window.accelerator, window.process
    stuck = device is not None and device.state == "busy" and device.quiet_ns / 1e9 >= DEVICE_QUIET_S
    blocked = bool(facts.location) and facts.state in ("S", "D") and not facts.tracer
    return stuck and blocked and facts.waits_on != "timer" and not living(window)


def accelerator(window: RankWindow) -> str:
    """What its device does, as a clause; empty where there is none, or nothing to say about it."""
    device = window.accelerator
    if device is None:
        return ""
    if device.state == "failed":
        return f"its device failed ({device.error or 'no reason given'})"
    quiet_s = device.quiet_ns / 1e9
    if device.state == "busy" and quiet_s >= DEVICE_QUIET_S:
        return f"its device has been busy for {lasting(quiet_s)} without finishing what it runs"
    if device.state == "idle" and quiet_s >= DEVICE_QUIET_S:
        return "its device is idle and waits for it"
    return ""


def accelerators(windows: Sequence[RankWindow]) -> str:
    """The same of several ranks."""
    if len(windows) == 1:
        return accelerator(windows[0])
    devices = [w.accelerator for w in windows if w.accelerator is not None]
    quiet_s = min((one.quiet_ns for one in devices), default=0) / 1e9
    if quiet_s >= DEVICE_QUIET_S and len(devices) == len(windows) and all(d.state == "busy" for d in devices):
        return f"their devices have been busy for {lasting(quiet_s)} without finishing what they run"
    said = [f"rank {w.rank}: {clause}" for w in windows if (clause := accelerator(w))]
    return "; ".join(said[:_CLAUSES]) + (" …" if len(said) > _CLAUSES else "")


DEVICE_QUIET_S = 0.5
"""A device that has finished something within this time is not worth a clause."""


def all_doing(windows: Sequence[RankWindow]) -> str:
    """What several ranks do: one clause where they do the same, else the first few of them."""
    by_clause: dict[str, list[int]] = {}
    for window in windows:
        by_clause.setdefault(doing(window), []).append(window.rank)
    if len(by_clause) == 1:
        clause = next(iter(by_clause))
        return clause if len(windows) == 1 else re.sub(r"^it\b", "each", clause)
    said = [f"{ranks_text(ranks)}: {clause}" for clause, ranks in by_clause.items()]
    return "; ".join(said[:_CLAUSES]) + (" …" if len(said) > _CLAUSES else "")


_CLAUSES = 3
LIVELY_NS = 10 * 10**9
"""A sign of life within this time is reported as what the rank does now."""


def living(window: RankWindow) -> str:
    """The newest sign of life, as a clause; empty when there was none lately."""
    facts = window.process
    return facts.life if facts.life and facts.quiet_ns < LIVELY_NS else ""


def stopped_often(window: RankWindow) -> str:
    """What holds up a rank that was found stopped again and again, and runs in between."""
    return (
        f"something stops and continues it (SIGSTOP, as cpulimit does; found stopped in "
        f"{window.process.stops} of {LOOKS_FOR_STOPS} looks)"
    )


def waiting(ranks: Sequence[int]) -> str:
    return f"{ranks_text(ranks)} wait{'s' * (len(ranks) == 1)}"


def then_waiting(ranks: Sequence[int]) -> str:
    """The same as the end of a sentence; empty when nobody waits."""
    return f"; {waiting(ranks)}" if ranks else ""
