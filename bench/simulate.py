"""Accuracy of the detectors on simulated jobs: by class with confidence intervals, beside the rules of peers.

Faults and benign runs come from seeds that were not used for tuning (`--tuning` shows those). On the same
windows run, re-implemented, the rules of other tools: a fixed watchdog of 600 s, "all workers hung 300 s",
a score below 0.75 and more than twice the median. The last table is the CPU time of judging. Run it with

    python bench/simulate.py [--runs 20] [--benign 20] [--sizes 64,1024,4096] [--tuning] [--json]
                             [--ranks 1024] [--no-roles] [--two] [--stale 0.3] [--jitter]
                             [--budget 600] [--processes 2]

`--ranks` makes all jobs of the first table so large, `--no-roles` lets the scripts tell no role, `--two`
gives a second rank the same fault at the same step, `--stale` makes this share of the windows a look old.
`--jitter` adds 5 % of noise to every piece of work, garbage collections and windows that are a look old.
`--budget` ends after so many seconds: what was cut off or never begun is listed as such. Windows are made by
the code that agents use. A run of all classes at 4,096 ranks that ends within half an hour on two cores:

    python bench/simulate.py --ranks 4096 --runs 1 --benign 0 --sizes "" --budget 1800 --processes 2

Over 400 lines, because the three tables share the runs, the seeds and the options.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import repeat
from math import inf
from multiprocessing import get_context
from typing import get_args

from msgspec.structs import replace as replace_fields

from support.peers import PEERS, interval
from support.table import emit, progress
from torchloom.chaos import wide_job
from torchloom.chaos.scenario import (
    EXPECTED,
    FOUND_BY_PROBES,
    NAMES_A_RANK,
    PIPELINES,
    Benign,
    FaultKind,
    Parallelism,
    ScenarioFault,
    faults,
    healthy,
    second,
    shapes,
)
from torchloom.chaos.simulator import Simulation
from torchloom.cli.service.part_main import settle
from torchloom.core.detect.judge import AllLimits, Memory, judge
from torchloom.core.detect.matrix import judge_links
from torchloom.core.detect.wide_board import board_for
from torchloom.core.detect.window_blocks import SKELETON_EVERY, Packing
from torchloom.model.findings import Finding
from torchloom.model.windows import RankWindow, RefWindow, WindowBatch
from torchloom.model.worker import WorkerRef
from torchloom.wire import codec

REPORTING, TUNING = 3_000_000, 0
HORIZON_S = {"never-starts": 70.0, "hang": 640.0, "stall": 640.0}
"""Hangs run on until the watchdogs of peers have had their chance."""
USUAL_HORIZON_S = 75.0
LOOK_GOAL_MS = 15
NEW_STEPS = 3
"""In each window of a job of 3 steps a second."""
LARGE = 8192
HOST, ALL_STEPS_EVERY = 8, 8
"""Ranks of a host, and the looks after which it sends all steps again."""
LISTENED_ON_S = 8.0
"""A large job is looked at for so long after the right finding: what else is said of it comes by then."""
LARGE_HORIZON_S = 45.0
"""A large job without a right finding is looked at for so long after the fault."""
HUGE = 2048
"""Jobs from this size on have one layout: replicas, of two stages where the fault needs a pipeline. Their
fault comes as soon as the pace is known."""
JITTER = {"noise": 0.05, "garbage_every": 30, "own_lengths": 0.03}


# -- one run ------------------------------------------------------------------------------------
@dataclass
class Outcome:
    steps: int = 0
    detected_s: float | None = None
    """After the fault, of the first finding of a right class."""
    right_rank: bool = False
    wrong: list[Finding] = field(default_factory=list)
    """Findings of a wrong class or rank; in a benign run all of them."""
    blamed_healthy: int = 0
    """Of those, how many name a rank that has no fault."""
    cut: bool = False
    """The budget ended before the run did."""
    acted_wrongly: int = 0
    acted_s: float | None = None
    peers: dict[str, tuple[float, tuple[int, ...]]] = field(default_factory=dict)


def run(
    sim: Simulation,
    until_s: float,
    fault: ScenarioFault | None,
    every_s: float = 1.0,
    large: bool = False,
    deadline: float = inf,
) -> Outcome:
    """Look once a second; agents sample a rank from the moment a finding asks for it. A `large` job is not
    simulated for longer than needed, and the rules of peers are not asked."""
    out = Outcome()
    memory, limits = Memory(), AllLimits()
    told: set[tuple[str, tuple[int, ...]]] = set()
    began: float | None = 0.0 if fault is not None and fault.step == 0 else None
    now = 0.0
    horizon_s = until_s if fault is not None and fault.kind == "never-starts" else LARGE_HORIZON_S
    while now < until_s:
        if time.monotonic() > deadline:
            out.cut = True
            break
        if large and began is not None and now - began > horizon_s:
            break
        now += every_s if now < 120 else 10 * every_s
        sim.run_until(now)
        windows = sim.windows()
        if fault is not None and began is None and sim.ranks[fault.rank].done + 1 >= fault.step:
            began = now - every_s
        memory, found = judge(windows, memory, limits)
        # Two ranks with the same fault may be named in one finding or in one each.
        right = EXPECTED[fault.kind] if fault is not None else set()
        both = tuple(sorted({r for f in found if f.kind in right for r in f.ranks}))
        for finding in found:
            sim.ask(finding.ask)
            _take(out, finding, fault, now, began, told, sim, both)
        if large and out.detected_s is not None and now - (began or 0.0) > out.detected_s + LISTENED_ON_S:
            break
        if not large:
            for name, rule in PEERS.items():
                if name not in out.peers and (said := rule(windows)) is not None:
                    out.peers[name] = now - (began or 0.0), said[1]
    out.steps = max(r.done for r in sim.ranks)
    return out


def _take(
    out: Outcome,
    f: Finding,
    fault: ScenarioFault | None,
    now: float,
    began: float | None,
    told: set[tuple[str, tuple[int, ...]]],
    sim: Simulation,
    both: tuple[int, ...],
) -> None:
    kinds = EXPECTED[fault.kind] if fault is not None and began is not None else set()
    struck = tuple(sorted(sim.struck))
    named = fault is None or fault.kind not in NAMES_A_RANK or struck in (f.ranks, both)
    if fault is not None and sim.shape.dp == 2 and fault.kind in ("desync", "diverge"):
        named = fault.rank in f.ranks and len(f.ranks) == 2  # of two that differ nobody can say who is wrong
    if f.kind in kinds and named:
        if out.detected_s is None:
            out.detected_s, out.right_rank = now - (began or 0.0), True
        if f.may_act and out.acted_s is None:
            out.acted_s = now - (began or 0.0)
        return
    if (f.kind, f.ranks) not in told:
        told.add((f.kind, f.ranks))
        out.wrong.append(f)
        out.blamed_healthy += not set(f.ranks) <= set(struck)
    out.acted_wrongly += f.may_act


# -- tables -------------------------------------------------------------------------------------
def _shape(chance: random.Random, kind: FaultKind, ranks: int) -> Parallelism:
    """Of so many ranks (0: any); with stages where the fault is one of a pipeline."""
    if ranks >= HUGE:
        pp = 2 if kind in PIPELINES else 1
        return Parallelism(ranks // pp, pp, 1, gpus=chance.random() < 0.5)
    while True:
        found = shapes(chance, ranks or 64)
        if ranks:
            found = replace(found, dp=max(2, ranks // (found.pp * found.tp)))
        if found.pp > 1 or kind not in PIPELINES:
            return found


@dataclass
class Tally:
    """All runs of one class."""

    kind: FaultKind
    runs: int = 0
    hits: int = 0
    wrong: int = 0
    blamed_healthy: int = 0
    acted_wrongly: int = 0
    probed: int = 0
    cut: int = 0
    delays: list[float] = field(default_factory=list)
    peers: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PEERS, 0))


def _class(kind: FaultKind, base: int, how: argparse.Namespace, deadline: float) -> Tally:
    tally = Tally(kind)
    if how.ranks >= HUGE:
        gc.disable()  # millions of records without a cycle
    for i in range(how.runs):
        if time.monotonic() > deadline:
            break
        _once(tally, base + i, how, deadline)
    progress(f"{kind}: {tally.hits} of {tally.runs}" + f", {tally.cut} cut off" * bool(tally.cut))
    return tally


def _once(tally: Tally, seed: int, how: argparse.Namespace, deadline: float) -> None:
    kind = tally.kind
    chance = random.Random(f"{kind} {seed}")
    shape = _shape(chance, kind, how.ranks)
    fault = faults(kind, shape, chance)
    if how.ranks >= HUGE and fault.step:
        fault = replace(fault, step=24 + fault.step % 8)
    if how.two:
        fault = second(fault, shape, chance)
    benign = Benign(**JITTER) if how.jitter else Benign(noise=how.noise)
    sim = Simulation(shape, seed, fault, benign, roles=not how.no_roles, stale=how.stale)
    # Of large jobs the watchdogs of peers are not waited for.
    until_s = USUAL_HORIZON_S if how.ranks else HORIZON_S.get(kind, USUAL_HORIZON_S)
    out = run(sim, until_s, fault, large=bool(how.ranks), deadline=deadline)
    if out.cut and out.detected_s is None:
        tally.cut += 1
        return
    tally.runs += 1
    tally.hits += out.detected_s is not None
    tally.wrong += bool(out.wrong)
    tally.blamed_healthy += out.blamed_healthy
    tally.acted_wrongly += out.acted_wrongly
    tally.delays += [out.detected_s] if out.detected_s is not None else []
    for name, (_, ranks) in out.peers.items():
        # A watchdog names nobody by design: that it speaks is counted.
        silent = kind in ("hang", "stall") and not ranks
        tally.peers[name] += silent or (kind in NAMES_A_RANK and ranks == (fault.rank,))
    if kind in FOUND_BY_PROBES:
        _, p, t = shape.place(fault.rank)
        # Probes meet some dozens of ranks, those in doubt among them.
        members = [shape.rank(d, p, t) for d in range(shape.dp)]
        ends = {fault.rank, fault.peer}
        links = judge_links(sim.probe([*sorted(ends), *(m for m in members if m not in ends)][:32]))
        ranks = (fault.rank, fault.peer) if kind == "slow-link" else (fault.rank,)
        wanted = (FOUND_BY_PROBES[kind], tuple(sorted(ranks)))
        if shape.dp < 4:  # then only "the link or either end" can be said
            tally.probed += bool(links) and fault.rank in links[0].ranks
        else:
            tally.probed += bool(links) and (links[0].kind, links[0].ranks) == wanted
    if out.wrong and how.verbose:
        progress(f"  {seed} {fault}: {[f.sentence for f in out.wrong]}")


def accuracy(kinds: Iterable[FaultKind], base: int, how: argparse.Namespace) -> list[dict[str, object]]:
    deadline = time.monotonic() + how.budget if how.budget else inf
    if how.processes > 1:
        with ProcessPoolExecutor(
            how.processes, max_tasks_per_child=1, mp_context=get_context("spawn")
        ) as pool:
            found = list(pool.map(_class, kinds, repeat(base), repeat(how), repeat(deadline)))
    else:
        found = [_class(kind, base, how, deadline) for kind in kinds]
    return [_row(one) for one in found]


def _row(one: Tally) -> dict[str, object]:
    n = one.runs
    return {
        "fault": one.kind, "right class and rank": f"{one.hits}/{n}", "95 %": interval(one.hits, n),
        "median s": statistics.median(one.delays) if one.delays else None,
        "runs with another finding too": one.wrong,
        "findings that blame a healthy rank": one.blamed_healthy,
        "would have acted wrongly": one.acted_wrongly,
        "cut off": one.cut,
        "probes right": f"{one.probed}/{n}" if one.kind in FOUND_BY_PROBES else "",
        **{name: f"{k}/{n}" for name, k in one.peers.items()},
    }  # fmt: skip


def calm(runs: int, base: int, steps: int = 240) -> list[dict[str, object]]:
    """Benign runs. A reported pause of one rank is no false alarm; an action would be one."""
    total, pauses, told_pause, acted = 0, 0, 0, 0
    false: dict[str, int] = {}
    peers = dict.fromkeys(PEERS, 0)
    for i in range(runs):
        chance = random.Random(f"benign {base + i}")
        shape = shapes(chance, 32)
        benign = healthy(chance, shape, steps, pauses=4)
        sim = Simulation(shape, base + i, None, benign)
        out = run(sim, steps * 0.6 + sum(p.seconds for p in benign.pauses) + 4 * benign.eval_s, None)
        total += out.steps
        pauses += len(benign.pauses)
        acted += out.acted_wrongly
        for f in out.wrong:
            if f.kind in ("hang", "no-progress", "communication-hang"):
                told_pause += 1
            else:
                false[f.kind] = false.get(f.kind, 0) + 1
                progress(f"  {base + i} {shape} {benign}: {f.sentence}")
        for name in out.peers:
            peers[name] += 1
    alarms = sum(false.values())
    progress(f"benign: {total} steps, {alarms} false alarms, {acted} actions")
    return [{
        "steps": total, "unannounced pauses": pauses, "false alarms": alarms,
        "per 1,000 steps": 1000 * alarms / max(1, total),
        "kinds": " ".join(f"{k}×{n}" for k, n in false.items()),
        "pauses reported": told_pause, "would have acted": acted,
        **{f"{name}: runs": n for name, n in peers.items()},
    }]  # fmt: skip


def judging(sizes: Iterable[int]) -> list[dict[str, object]]:
    """CPU time of one look at a large job: the newest messages of all hosts are decoded, joined to what is
    known, and all of it is judged, with the search for stragglers, whatever share of the ranks is slow or
    hung. Hosts are at different looks: some send skeletons or all steps again."""
    settle()  # as a weaver does
    rows: list[dict[str, object]] = []
    for size in sizes:
        for name, job in _jobs(size).items():
            whole = wide_job.windows(job)
            known = [replace_fields(w, steps=w.steps[:-NEW_STEPS]) for w in whole]
            before, data = _messages(whole, known)
            del whole, known
            costs = []
            for _ in range(7 if size < LARGE else 3):
                board = board_for(size)
                for message in before:
                    for block in codec.decode_window_batch(message).blocks:
                        board.take(block)
                memory, _ = judge(board, Memory(), AllLimits())  # as the look before would have left it
                memory = replace_fields(memory, localised_step=0)
                gc.collect()
                began = time.process_time()
                batches = [codec.decode_window_batch(message) for message in data]
                read = time.process_time()
                for batch in batches:
                    for block in batch.blocks:
                        board.take(block)
                joined = time.process_time()
                judge(board, memory, AllLimits())
                costs.append((time.process_time() - joined, joined - read, read - began))
            judging_s, joining_s, reading_s = min(costs, key=sum)
            each = 1e6 / size
            rows.append({
                "ranks": size, "job": name, "decode": each * reading_s, "join": each * joining_s,
                "judge": each * judging_s, "ms per 1,000 ranks": each * (judging_s + joining_s + reading_s),
                "goal": LOOK_GOAL_MS, "bytes a rank": sum(map(len, data)) / size,
            })  # fmt: skip
        progress(f"{size} ranks judged")
    return rows


def _messages(whole: Sequence[RankWindow], known: Sequence[RankWindow]) -> tuple[list[bytes], list[bytes]]:
    """What agents sent until now, and what they send in this look: hosts of eight ranks, each at a look of
    its own."""
    before, now = [], []
    for host, first in enumerate(range(0, len(whole), HOST)):
        agent = Packing()
        for look in range(1 + host % SKELETON_EVERY):
            sent = _message(agent, known[first : first + HOST])
            before += [sent] * (look < 2)  # later ones say nothing new
        newest = whole[first : first + HOST]
        if host % ALL_STEPS_EVERY:
            newest = [wide_job.newest(w, NEW_STEPS) for w in newest]
        now.append(_message(agent, newest))
    return before, now


def _message(agent: Packing, windows: Sequence[RankWindow]) -> bytes:
    refs = tuple(RefWindow(WorkerRef("job", w.rank, 1, 1), w) for w in windows)
    odd, blocks = agent.pack(refs)
    return codec.encode(WindowBatch(node=windows[0].node, session="s", windows=odd, blocks=blocks))


def _jobs(size: int) -> dict[str, wide_job.WideJob]:
    return {
        "healthy": wide_job.WideJob(ranks=size, seed=7),
        "1 % slow": wide_job.WideJob(ranks=size, seed=7, slow=0.01),
        "10 % slow": wide_job.WideJob(ranks=size, seed=7, slow=0.1),
        "40 % slow": wide_job.WideJob(ranks=size, seed=7, slow=0.4),
        "one hung": wide_job.WideJob(ranks=size, seed=7, hung=1.5 / size, hung_s=70.0),
        "40 % hung": wide_job.WideJob(ranks=size, seed=7, hung=0.4, hung_s=70.0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--benign", type=int, default=8)
    parser.add_argument("--noise", type=float, default=0.02)
    parser.add_argument("--sizes", default="1024,16384")
    parser.add_argument("--kinds", default=",".join(get_args(FaultKind)))
    parser.add_argument("--ranks", type=int, default=0, help="of the jobs with faults; 0: 8 to 64")
    parser.add_argument("--no-roles", action="store_true", help="scripts tell no role")
    parser.add_argument("--two", action="store_true", help="two ranks have the fault at once")
    parser.add_argument("--stale", type=float, default=0.0, help="share of windows that are a look old")
    parser.add_argument("--jitter", action="store_true", help="noise, garbage and windows a look old")
    parser.add_argument("--budget", type=float, default=0.0, help="seconds after which it ends; 0: none")
    parser.add_argument("--processes", type=int, default=1, help="classes at once")
    parser.add_argument("--tuning", action="store_true", help="seeds the rules were tuned on")
    parser.add_argument("--verbose", action="store_true", help="tell what else was said in a run")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    args.stale = args.stale or (0.3 if args.jitter else 0.0)
    base = TUNING if args.tuning else REPORTING
    seeds = "tuning" if args.tuning else "reporting"
    kinds = [k for k in get_args(FaultKind) if k in args.kinds.split(",")]
    size = f"{args.ranks:,} ranks" if args.ranks else "8–64 ranks"
    told = "roles not reported" if args.no_roles else "roles reported"
    shaky = "; with jitter" if args.jitter else ""
    notes = [
        f"{seeds} seeds{shaky}; {size}, {told}; one look a second; where a rank is to blame it must be right"
    ]
    if args.runs:
        emit(
            "simulate: faults",
            accuracy(kinds, base, args),
            notes,
            args.json,
        )
    if args.benign:
        told = (
            "a pause of 3–60 s on one rank is reported and not acted on; only other findings are false alarms"
        )
        emit("simulate: benign", calm(args.benign, base), [told], args.json)
    if args.sizes:
        cpu = "CPU ms per 1,000 ranks; every look here searches for stragglers, usually one in 4 steps does"
        emit("simulate: judging", judging([int(s) for s in args.sizes.split(",")]), [cpu], args.json)


if __name__ == "__main__":
    main()
