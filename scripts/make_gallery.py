"""Makes examples/incidents: injects faults into real jobs, and records what torchloom reports.

    python scripts/make_gallery.py [--only stop,hang] [--workers 3]

Every page has the command that injected the fault and the output of `loom incident`. Only the name of the
machine and paths on it are replaced. Do not edit pages by hand.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
GALLERY = REPOSITORY / "examples" / "incidents"
SCRIPT = REPOSITORY / "bench" / "workloads" / "watched.py"
ON_DEVICE = SCRIPT.with_name("on_device.py")
LOOM = str(Path(sys.executable).parent / "loom")
SETTLED_S = 3.0
"""A verdict that has not changed for this long is what people would read."""


@dataclass(frozen=True)
class Page:
    name: str
    title: str
    inject: tuple[str, ...]
    """What follows `loom inject JOB`."""
    kinds: tuple[str, ...]
    """Any of these is worth a page."""
    workload: tuple[str, ...] = ()
    within_s: float = 90.0
    warm_s: float = 0.0
    """How long to wait first: a curve needs a baseline before it is disturbed."""
    on_device: str = ""
    """A fault that a job on the simulated accelerator causes itself, instead of `inject`."""


PAGES = (
    Page("killed", "A worker is killed", ("kill", "--rank", "1"), ("crash",)),
    Page("exit", "A script exits with a code", ("exit", "--rank", "2", "--amount", "17"), ("crash",)),
    Page("device-error", "A device fails in the backward pass", ("device-error", "--rank", "1"), ("crash",)),
    Page("stopped", "A worker is stopped (SIGSTOP)", ("stop", "--rank", "1"), ("hang",)),
    Page("hang", "A worker never reaches the next step", ("hang", "--rank", "1"), ("hang",)),
    Page(
        "hang-data",
        "A worker waits for a batch that never arrives",
        ("hang", "--rank", "2", "--where", "data"),
        ("hang",),
    ),
    Page(
        "hang-backward",
        "A worker stops in the middle of its backward pass",
        ("hang", "--rank", "0", "--where", "backward"),
        ("hang",),
    ),
    Page("gil", "A call never releases the interpreter's lock", ("gil-hold", "--rank", "1"), ("hang",)),
    Page(
        "pause",
        "A worker pauses and continues without help",
        ("hang", "--rank", "1", "--for", "8s"),
        ("hang",),
    ),
    Page("mismatch", "A worker calls a different collective", ("mismatch", "--rank", "2"), ("desync",)),
    Page("deadlock", "Two groups are used in different orders", ("deadlock",), ("ordering-deadlock",)),
    Page(
        "slow",
        "A worker computes longer than the others",
        ("slow", "--rank", "1", "--amount", "1.5"),
        ("compute-slow",),
    ),
    Page(
        "slow-data",
        "A worker waits longer for data than the others",
        ("data-slow", "--rank", "2", "--amount", "30"),
        ("data-slow",),
    ),
    Page(
        "quota",
        "A CPU quota slows one worker",
        ("cpu-quota", "--rank", "0", "--amount", "20"),
        ("host-contention",),
        ("--busy", "0.3"),
    ),
    Page("all-slow", "All workers become slower", ("slow", "--amount", "1.6"), ("global-slowdown",)),
    Page("nan", "A gradient is not a number", ("nan", "--rank", "1"), ("not-a-number",)),
    Page("spike", "Gradients explode for one step", ("gradient", "--amount", "1e4"), ("spike",), warm_s=12),
    Page(
        "device-missing",
        "A rank is stopped while others wait on their devices",
        (),
        ("hang",),
        on_device="stop",
    ),
    Page("device-loop", "A host is stuck and its device is idle", (), ("hang",), on_device="loop"),
    Page("device-sync", "A host waits for a kernel that never ends", (), ("hang",), on_device="sync"),
    Page("device-kernel", "A kernel never ends and its host continues", (), ("hang",), on_device="kernel"),
    Page(
        "device-communication",
        "All devices have reached a collective, and it does not end",
        (),
        ("communication-hang",),
        on_device="communication",
    ),
    Page("device-lost", "A device falls off the bus", (), ("hang",), on_device="lost"),
    Page("bit-flip", "A bit of a parameter flips on one rank", ("bit-flip", "--rank", "2"), ("divergence",)),
)


def loom(*args: str) -> str:
    return subprocess.run([LOOM, *args], check=True, stdout=subprocess.PIPE, text=True).stdout


def read(*args: str) -> Any:
    return json.loads(loom(*args, "--json"))


def until(condition: Any, within_s: float) -> Any:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.2)
    return None


def make(page: Page, workers: int) -> str:
    """The text of one page; empty if no such incident was reported."""
    script, args = SCRIPT, ["--step-ms", "40", *page.workload]
    if page.on_device:
        notes = str(Path(os.environ["LOOM_HOME"]) / f"notes-{page.name}")
        script, args = ON_DEVICE, [notes, page.on_device, "--rank", "1", "--at", "60"]
    job = loom("submit", "--nproc-per-node", str(workers), str(script), *args).split()[-1]
    try:
        if not page.on_device:
            if not until(lambda: _steps(job) >= 60, 120):
                return ""
            time.sleep(page.warm_s)
            loom("inject", job, *page.inject)
        found = until(lambda: [i for i in read("incidents", job) if i["kind"] in page.kinds], page.within_s)
        if not found:
            return ""
        id = found[0]["id"]
        _settle(id)
        said = loom("incident", id)
    finally:
        loom("stop", job, "--kill")
    shown = f"loom inject {job} {' '.join(page.inject)}"
    if page.on_device:
        shown = f"loom submit --nproc-per-node {workers} {ON_DEVICE} notes {' '.join(args[1:])}"
    return f"# {page.title}\n\n```console\n$ {shown}\n$ loom incident {id}\n{said.rstrip()}\n```\n"


def _steps(job: str) -> int:
    return min((worker["steps"] or 0 for worker in read("status", job)["workers"]), default=0)


def _settle(id: str) -> None:
    """Wait until the incident is closed, or nothing has been added to it for a while."""
    last, since = "", time.monotonic()
    end = since + 60
    while time.monotonic() < end:
        view = read("incident", id)
        now = json.dumps([view["verdict"], view["decision"], view["timeline"], view["open"]])
        if now != last:
            last, since = now, time.monotonic()
        recovering = view["timeline"]["decided_ns"] and view["timeline"]["stopped_ns"]
        settled = not view["open"] or view["timeline"]["first_step_ns"] or not recovering
        if settled and time.monotonic() - since > SETTLED_S:
            return
        time.sleep(0.3)


def anonymous(text: str, home: Path) -> str:
    for found, shown in ((str(home), "/loom"), (sys.prefix, "/venv"), (str(REPOSITORY), "/repo")):
        text = text.replace(found, shown)
    return re.sub(rf"\b{re.escape(socket.gethostname())}\b", "host-a", text)


def index() -> str:
    lines = ["# What torchloom reports when something goes wrong", ""]
    lines += [
        "Each page shows a real job with an injected fault, and the output of `loom incident` for it.",
        "",
    ]
    made = (
        "`scripts/make_gallery.py` generates the pages and the sentences below; they are output of torchloom."
    )
    lines += [made, ""]
    for page in PAGES:
        path = GALLERY / f"{page.name}.md"
        if path.exists():
            verdict = next((li for li in path.read_text().splitlines() if li.startswith("verdict")), "")
            lines.append(f"* [{page.title}]({page.name}.md): {verdict.removeprefix('verdict').strip()}")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="names of pages, with commas")
    parser.add_argument("--workers", type=int, default=3)
    args = parser.parse_args()
    chosen = [page for page in PAGES if not args.only or page.name in args.only.split(",")]
    GALLERY.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="loom-gallery-") as root:
        os.environ |= {"LOOM_HOME": root, "NO_COLOR": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "110"}
        try:
            loom("up", "--port", "0")
            for page in chosen:
                text = make(page, args.workers)
                print(f"{page.name}: {'written' if text else 'nothing was reported'}", flush=True)
                if text:
                    (GALLERY / f"{page.name}.md").write_text(anonymous(text, Path(root)))
        finally:
            subprocess.run([LOOM, "down", "--stop-jobs"], check=False, stdout=subprocess.DEVNULL)
    (GALLERY / "README.md").write_text(index())


if __name__ == "__main__":
    main()
