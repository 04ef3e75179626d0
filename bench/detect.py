"""Detection on real jobs: what is injected against what is told, beside the rules of peers and torchrun.

    python bench/detect.py [--runs 2] [--sizes 2,4,8] [--faults kill,stop,…] [--benign-minutes 5]
                           [--torchrun 120] [--results FILE] [--report FILE] [--json]
                           [--budget 480] [--at-once 6] [--markdown] [--render docs/detection.md]
    python bench/detect.py --regime device [--ahead 1,10,100] [--runs 1] [--sizes 2] [--faults kernel,…]
                           [--budget 480] [--at-once 4] [--results FILE] [--markdown] [--render …]

Every run is a real gloo job under a real `loom up`, hurt by `loom inject` on a rank and with a number from a
seed that was not used for tuning (`--tuning` takes those). The truth is the injection, what counts is the
first incident of the right kind that blames the right rank. The rules of peers look at the same windows.
Benign jobs pause without a word, save, evaluate, are steered and resized, on oversubscribed cores; a restart
there is the worst that can happen. `--torchrun S` stops a worker under torchrun and waits S seconds.
`--regime device` runs jobs on the simulated accelerator, whose hosts run ahead of their devices.
Results are appended to a file run by run: with the same FILE a run that was cut short goes on where it was.
`--budget S` begins no run that would not end within S seconds, and lists those that were left out.
`--at-once N` runs so many jobs side by side; those that compare the times of ranks run alone.
All cases take some 20 minutes then: with the same `--results FILE` the next call continues with the others.
A case that needs more workers than a size has runs with as many as it needs.
`--markdown` also prints the table of docs/detection.md, `--render PAGE` puts it there; both work with
`--report FILE` as well, which runs nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from detecting import benign, docs_tables, hurting, on_device, tables
from detecting.cases import CASES
from detecting.listening import Listener
from detecting.results import Results
from detecting.schedule import Budget, Planned, perform
from support.launchers import BIN, Notes, loom_up, torchrun, torchrun_command, wait_for
from support.table import progress
from torchloom.client import Client, Endpoint
from torchloom.core.injection import KINDS
from torchloom.home import Home

REPORTING, TUNING = 10_000_000, 0


@contextlib.contextmanager
def stack(record: Path | None) -> Iterator[tuple[Client, Listener]]:
    """One `loom up` for many runs."""
    with loom_up() as env:
        token = subprocess.run(
            [BIN / "loom", "token", "show"], env=env, check=True, capture_output=True, text=True
        )
        os.environ |= {"LOOM_HOME": env["LOOM_HOME"], "LOOM_TOKEN": token.stdout.strip()}
        with Client(Endpoint.find()) as client, Listener(Home(Path(env["LOOM_HOME"])), record) as listener:
            yield client, listener


def faults(args: argparse.Namespace, results: Results, base: int) -> None:
    """All sizes and kinds in turn, so that a run that is cut short has some of each."""
    unknown = set(args.faults.split(",")) - set(CASES)
    if unknown:
        sys.exit(f"there is no fault {', '.join(sorted(unknown))}: there are {', '.join(CASES)}")
    done = {(r["case"], r["size"], r["seed"]) for r in results.read() if r["type"] == "fault"}
    wanted = dict.fromkeys(
        (name, max(int(size), CASES[name].workers), base + number)
        for number in range(args.runs)
        for size in args.sizes.split(",")
        for name in args.faults.split(",")
        if not CASES[name].fault or CASES[name].fault in KINDS
    )
    left = [one for one in wanted if one not in done]
    if not left:
        return
    with stack(args.telemetry) as (_, listener):

        def planned(name: str, size: int, seed: int) -> Planned:
            case = CASES[name]

            def do(client: Client) -> None:
                result = hurting.run(client, listener, case, size, seed, args.step_ms)
                results.write(result)
                shown = "missed" if result["right_s"] is None else f"{result['right_s']:.2f} s"
                told = [(t["kind"], t["ranks"]) for t in result["told"]]
                restarted = ", FALSE RESTART" if result.get("false_restart") else ""
                progress(f"{name} ×{size} rank {result['rank']}: {shown}{restarted}, told {told}")
                if args.verbose and result["told"]:
                    progress(f"    {result['told'][-1]['verdict']}")

            takes_s = case.horizon_s if case.harmless else min(case.horizon_s, 15.0)
            return Planned(f"{name} ×{size}", takes_s + case.warm_s, case.alone, do)

        perform([planned(*one) for one in left], args.at_once, Budget(args.budget))


def under_torchrun(seconds: float) -> Iterator[dict[str, Any]]:
    """SIGSTOP a worker and listen to what torchrun says."""
    notes = Notes()
    try:
        with torchrun(torchrun_command(notes), notes):
            wait_for(lambda: notes.most_steps() > 50, 120)
            os.kill(min(notes.pids(1)), signal.SIGSTOP)
            time.sleep(0.5)
            before = notes.most_steps()
            noticed = wait_for(lambda: len(notes.pids(0)) > 1, seconds)
            stuck = notes.most_steps() == before
    finally:
        notes.remove()
    said = "restarted" if noticed else f"nothing in {seconds:g} s"
    yield {"type": "launcher", "launcher": "torchrun", "after SIGSTOP": said, "steps go on": not stuck}
    with stack(None) as (client, listener):
        result = hurting.run(client, listener, CASES["stop"], 2, REPORTING, 30.0)
    said = "nothing" if result["right_s"] is None else f"told after {result['right_s']:.2f} s: "
    said += result["told"][-1]["verdict"] if result["told"] else ""
    yield {
        "type": "launcher",
        "launcher": "torchloom",
        "after SIGSTOP": said,
        "steps go on": result.get("decision", ""),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--sizes", default="2")
    parser.add_argument("--faults", default="", help="all unless some are named")
    parser.add_argument("--regime", choices=("host", "device"), default="host")
    parser.add_argument("--ahead", default="1,10,100", help="steps by which hosts run ahead of their devices")
    parser.add_argument("--step-ms", type=float, default=30.0)
    parser.add_argument("--benign-minutes", type=float, default=0.0)
    parser.add_argument("--torchrun", type=float, default=0.0, metavar="S")
    parser.add_argument("--tuning", action="store_true", help="seeds the rules were tuned on")
    parser.add_argument("--results", type=Path, help="file to which every run is appended")
    parser.add_argument("--report", type=Path, metavar="FILE", help="only print the tables of this file")
    parser.add_argument("--telemetry", type=Path, metavar="FILE", help="keep all windows")
    parser.add_argument(
        "--budget", type=float, default=0.0, help="seconds in which all runs must end; 0: any"
    )
    parser.add_argument("--at-once", type=int, default=1, help="jobs side by side; slow ones run alone")
    parser.add_argument("--markdown", action="store_true", help="print the table of docs/detection.md, too")
    parser.add_argument("--render", type=Path, metavar="PAGE", help="put the table into docs/detection.md")
    parser.add_argument("--verbose", action="store_true", help="print every verdict")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # leaves through `with`: nothing stays behind
    if args.regime == "device":
        _on_device(args)
        return
    args.faults = args.faults or ",".join(CASES)
    if args.report:
        _show(Results(args.report).read(), args)
        return
    base = TUNING if args.tuning else REPORTING
    with tempfile.TemporaryDirectory(prefix="loom-bench-detect-") as folder:
        results = Results(args.results or Path(folder) / "results.jsonl")
        if args.torchrun:
            for record in under_torchrun(args.torchrun):
                results.write(record)
        faults(args, results, base)
        if args.benign_minutes:
            with stack(args.telemetry) as (client, listener):
                benign.run(client, listener, args.benign_minutes, base, results.write)
        _show(results.read(), args)


def _show(results: list[dict[str, Any]], args: argparse.Namespace) -> None:
    tables.show(results, args.json)
    faults = [r for r in results if r["type"] == "fault"]
    _publish("host", docs_tables.host(faults) if faults else [], args)


def _on_device(args: argparse.Namespace) -> None:
    if args.report:
        found = Results(args.report).read()
    else:
        with stack(args.telemetry) as (_, listener):
            found = on_device.run(listener, args, Results(args.results) if args.results else None)
    on_device.show(found, args.json)
    _publish("device", [*docs_tables.circumstances(found), "", *on_device.for_docs(found)], args)


def _publish(name: str, lines: list[str], args: argparse.Namespace) -> None:
    if args.markdown:
        print(*lines, sep="\n")
    if args.render and lines:
        docs_tables.put(args.render, name, lines)
        progress(f"the {name} table of {args.render} is new")


if __name__ == "__main__":
    main()
