"""Effective training time of 16,384 ranks with published failure rates, by torchloom and by torchrun.

    python bench/fleet.py [--runs 200] [--seed 1] [--ranks 16384] [--days 54] [--save-every 600] [--start 120]
                          [--hang-limit 60] [--watchdog 600] [--host-confirmed 120] [--json]

Failures are those of the Llama 3 405B run (419 in 54 days on 16,384 GPUs). Times come from
bench/measured_times.json, which names the page and the command of each. What is assumed is an option and is
printed: with steps of several seconds a hang is certain only after --hang-limit; torchrun itself sees no
hang, torch's watchdog ends it after --watchdog; a dead host is replaced when it is confirmed, after
--host-confirmed, with torchrun not before the watchdog. Each run has a seed of its own, the same for both.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.fleet_model import FleetRun, Launcher, Lost, simulate
from support.table import emit

MEASURED = Path(__file__).parent / "measured_times.json"
NOT_RECOVERED_S = 60.0
"""bench/restart.py counts a run as not recovered after so long."""


def launchers(
    measured: Mapping[str, Any], hang_limit_s: float, watchdog_s: float, host_s: float
) -> list[Launcher]:
    loom = {name: one["value"] for name, one in measured["torchloom"].items()}
    torchrun = {name: one["value"] for name, one in measured["torchrun"].items()}
    return [
        Launcher(
            "torchrun",
            # What it needs to notice a crash is part of its measured restart.
            {"crash": 0.0, "hang": watchdog_s, "host": max(host_s, watchdog_s)},
            torchrun["restart_s"],
            torchrun["recovered_share"],
            NOT_RECOVERED_S,
            torchrun["restore_s"],
            torchrun["save_blocks_s"],
        ),
        Launcher(
            "torchloom",
            {
                "crash": loom["detect_crash_s"],
                "hang": hang_limit_s + loom["detect_hang_over_limit_s"],
                "host": host_s,
            },
            loom["restart_s"],
            loom["recovered_share"],
            NOT_RECOVERED_S,
            loom["restore_s"],
            loom["save_blocks_s"],
        ),
    ]


def row(launcher: Launcher, run: FleetRun, lost: Sequence[Lost]) -> dict[str, object]:
    def hours(of: Sequence[float]) -> str:
        return f"{statistics.mean(of) / 3600:.1f} h"

    effective = sorted(one.effective(run.days) * 100 for one in lost)
    low, high = effective[len(lost) // 20], effective[-1 - len(lost) // 20]
    return {
        "launcher": launcher.name,
        "effective": f"{statistics.mean(effective):.2f} %",
        "5–95 % of runs": f"{low:.2f}–{high:.2f} %",
        "interruptions": f"{statistics.mean(one.interruptions for one in lost):.0f}",
        "lost": hours([one.total_s for one in lost]),
        "until noticed": hours([one.notice_s for one in lost]),
        "restarting": hours([one.restart_s for one in lost]),
        "repeated": hours([one.repeated_s for one in lost]),
        "saving": hours([one.saving_s for one in lost]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--ranks", type=int, default=16_384)
    parser.add_argument("--days", type=float, default=54)
    parser.add_argument("--save-every", type=float, default=600, metavar="S", help="between checkpoints")
    parser.add_argument("--start", type=float, default=120, metavar="S", help="of a start, for both")
    parser.add_argument("--hang-limit", type=float, default=60, metavar="S")
    parser.add_argument("--watchdog", type=float, default=600, metavar="S", help="torch's default for NCCL")
    parser.add_argument("--host-confirmed", type=float, default=120, metavar="S")
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else")
    options = parser.parse_args()
    run = FleetRun(
        ranks=options.ranks, days=options.days, save_every_s=options.save_every, start_s=options.start
    )
    measured = json.loads(MEASURED.read_text())
    made = launchers(measured, options.hang_limit, options.watchdog, options.host_confirmed)
    seeds = range(options.seed, options.seed + options.runs)
    rows = [row(one, run, [simulate(run, one, seed) for seed in seeds]) for one in made]
    assumed = (
        f"{run.ranks:,} ranks, {run.days:g} days, a checkpoint every {run.save_every_s:g} s, a start takes "
        f"{run.start_s:g} s besides; hang limit {options.hang_limit:g} s, watchdog {options.watchdog:g} s, "
        f"a dead host is confirmed after {options.host_confirmed:g} s"
    )
    notes = [f"assumed: {assumed}", f"seeds {seeds.start} to {seeds.stop - 1}, the same for both"]
    emit("Effective training time", rows, notes, options.json)


if __name__ == "__main__":
    main()
