"""One of four workers becomes twice as slow: a step before, while all wait for it, and with `rebalance`.

    python bench/rebalance.py [--factor 2.0] [--steps 40] [--json]

A real `loom up` and a real DDP job on gloo (workloads/shared_batch.py). A sample takes 10 ms of sleep, so
that two cores suffice. Perfect balance is worked out from the pace before: three ranks at full speed and one
at half make 3.5 of 4 samples in the same time.
"""

from __future__ import annotations

import argparse
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from support.launchers import WORKLOADS, wait_for
from support.steering import Cluster, cluster, connect
from support.table import emit, progress

WORLD, SLOW = 4, 3
RULES = "".join(f'[rules.{kind}]\nlikely = "rebalance"\n' for kind in ("compute-slow", "host-contention"))
WITHIN_S = 180.0


def rows_of(folder: Path) -> list[tuple[int, int, float]]:
    """Of rank 0: step, samples of its own, when it was done."""
    try:
        lines = (folder / "rank0").read_text().splitlines()[:-1]
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        step, _, rest = line.partition(" ")
        found.append((int(step), rest.count(",") + 1, float(rest.rpartition(" ")[2])))
    return found


def step_s(folder: Path, steps: int) -> float:
    """The median of the newest steps."""
    times = [at for _, _, at in rows_of(folder)][-steps - 1 :]
    return median([b - a for a, b in pairwise(times)])


def set_pace(folder: Path, factor: float) -> None:
    (folder / "next").write_text(f"{SLOW} {factor}")
    (folder / "next").replace(folder / "pace")


def more_steps(folder: Path, steps: int) -> None:
    begun = len(rows_of(folder))
    if not wait_for(lambda: len(rows_of(folder)) >= begun + steps, WITHIN_S):
        raise SystemExit(f"the job made fewer than {steps} steps in {WITHIN_S:g} s")


def measure(made: Cluster, factor: float, steps: int) -> dict[str, Any]:
    folder = made.root / "notes"
    folder.mkdir()
    set_pace(folder, 1.0)
    policy = made.root / "policy.toml"
    policy.write_text(f"cooldown_s = 0\n{RULES}")
    made.env["CHECKPOINT_DIR"] = str(made.root / "checkpoints")
    flags = ("--nproc-per-node", str(WORLD), "--policy", str(policy))
    job = made.loom("submit", *flags, str(WORKLOADS / "shared_batch.py"), str(folder)).split()[-1]
    client = connect(made)
    more_steps(folder, steps)
    usual = step_s(folder, steps - 5)
    progress(f"undisturbed: {usual * 1000:.0f} ms a step")
    began = time.monotonic()
    set_pace(folder, factor)
    more_steps(folder, 12)
    waiting = step_s(folder, 8)
    progress(f"one rank {factor:g} times as slow: {waiting * 1000:.0f} ms a step")

    def told() -> list[str]:
        return [i["decision"] for i in client.incidents(job=job) if "; steps went from" in i["decision"]]

    if not wait_for(told, WITHIN_S):
        raise SystemExit(f"not rebalanced within {WITHIN_S:g} s: {client.incidents(job=job)}")
    took = time.monotonic() - began
    more_steps(folder, steps)
    balanced = step_s(folder, steps)
    perfect = usual * WORLD / (WORLD - 1 + 1 / factor)
    return {
        "workers": WORLD,
        "slower": factor,
        "undisturbed_ms": round(usual * 1000, 1),
        "all_wait_ms": round(waiting * 1000, 1),
        "rebalanced_ms": round(balanced * 1000, 1),
        "perfect_ms": round(perfect * 1000, 1),
        "all_wait_of_perfect": round(perfect / waiting, 3),
        "of_perfect": round(perfect / balanced, 3),
        "reported_after_s": round(took, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--factor", type=float, default=2.0)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with cluster() as made:
        row = measure(made, args.factor, args.steps)
    notes = ["of_perfect: speed in parts of perfect balance; the goal is 0.8, without the action it is 0.57"]
    emit("rebalance: one of four workers is slower", [row], notes, args.json)


if __name__ == "__main__":
    main()
