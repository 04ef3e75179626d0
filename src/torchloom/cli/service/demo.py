"""`loom demo`: a real job with real faults, and a summary of how it recovered.

Trains the example GPT on two workers in a temporary home, kills a worker and then the control service,
prints a summary, and removes everything afterwards.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from torchloom.cli.declared import EndVerb, option

if TYPE_CHECKING:
    from torchloom.client import Client, Endpoint
    from torchloom.client.schema import TimelineView
    from torchloom.home import Home

EXAMPLES = (
    ("loom demo", "two workers, two faults"),
    ("loom demo --steps 500 --no-faults", "only the training"),
)


def command(
    steps: Annotated[int, option(help="Steps to train.", min=60)] = 240,
    workers: Annotated[int, option(help="Workers.", min=2, max=16)] = 2,
    faults: Annotated[bool, option(help="Kill a worker and the control service during training.")] = True,
) -> None:
    """Train a small GPT on 2 workers, kill one of them, and watch the job recover."""
    from torchloom.home import Home

    root = Path(tempfile.mkdtemp(prefix="loom-demo-"))
    os.environ.pop("LOOM_ADDRESS", None)
    os.environ["LOOM_HOME"] = str(root / "home")
    home = Home.default()
    try:
        home.prepare()
        code = _play(home, root / "checkpoints", steps, workers, faults)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    raise EndVerb(code)


def _play(home: Home, checkpoints: Path, steps: int, workers: int, faults: bool) -> int:
    from torchloom.cli.jobs import flags
    from torchloom.cli.jobs.first_build import compile_first
    from torchloom.cli.jobs.follow import Follower
    from torchloom.cli.jobs.request import job_request
    from torchloom.cli.jobs.run import let_go
    from torchloom.cli.jobs.submit import send
    from torchloom.cli.service import parts, stack
    from torchloom.client import Client
    from torchloom.examples import char_gpt_path

    _say(f"a character GPT on {workers} workers, {steps} steps; everything runs on this machine")
    script = [str(char_gpt_path()), "--steps", str(steps), "--checkpoint-dir", str(checkpoints)]
    options = flags.parse("run", ["--nproc-per-node", str(workers), "--name", "demo", *script])
    body = job_request(options, os.environ, os.getcwd())
    holder = parts.hold(home)
    try:
        start = stack.Start(home).begin()
        compile_first(body)
        endpoint = start.wait()
        job = send(home, body)
        over = threading.Event()
        if faults:
            saboteur = threading.Thread(
                target=_sabotage, args=(home, endpoint, job, steps, over), daemon=True
            )
            saboteur.start()
        code = Follower(endpoint, job, home, None, quiet=False).run()
        over.set()
        _summarize(Client(endpoint), job)
        return code
    finally:
        parts.forget(home, holder.name)
        let_go(home)


def _sabotage(home: Home, endpoint: Endpoint, job: str, steps: int, over: threading.Event) -> None:
    """Kill rank 1 after a third of the steps, and the control service after two thirds."""
    from torchloom.cli.service import parts
    from torchloom.client import Client
    from torchloom.errors import LoomError

    api = Client(endpoint)
    todo = ["worker", "weaver"]
    while todo and not over.is_set():
        time.sleep(0.05)
        try:
            view = api.job(job)
        except LoomError:
            continue
        if view["state"] != "running" or view["step"] < steps * (3 - len(todo)) // 3:
            continue
        match todo.pop(0):
            case "worker":
                pid = next(w["pid"] for w in view["workers"] if w["rank"] == 1)
                _say(f"fault: SIGKILL to rank 1 (pid {pid})")
                os.kill(pid, signal.SIGKILL)
            case "weaver":
                weaver = parts.living(home, "weaver")
                if weaver is not None:
                    _say(
                        f"fault: SIGKILL to the control service (pid {weaver.pid}); training does not need it"
                    )
                    os.kill(weaver.pid, signal.SIGKILL)


def _summarize(api: Client, job: str) -> None:
    """Print what happened, phase by phase."""
    from torchloom.cli.show import output

    view = api.job(job)
    metrics = view["workers"][0]["metrics"]
    print()
    print(
        f"steps      {output.steps(view)}"
        + (f", loss {output.number(metrics['loss'])}" if "loss" in metrics else "")
    )
    print(f"restarts   {view['restarts']} of at most {view['max_restarts']}")
    print(f"goodput    {output.percent(view['goodput'])} of {output.seconds(view['elapsed_s'])}")
    for incident in view["incident_list"]:
        lost = incident["lost_steps"]
        print(f"incident   {incident['verdict']}")
        print(f"           {incident['decision']}")
        print(f"           {_phases(incident['timeline'])}")
        if lost is not None:
            print(f"           {lost} steps since the script's last checkpoint were repeated")


def _phases(line: TimelineView) -> str:
    """Each phase of a recovery with the time it took."""
    told, before = [], line["fault_ns"]
    reached = (
        (line["decided_ns"], "decided"),
        (line["stopped_ns"], "peers ended"),
        (line["spawned_ns"], "new workers"),
        (line["first_step_ns"], "first step"),
    )
    for at, name in reached:
        if at and before:
            told.append(f"{name} +{max(0, at - before) / 1e6:.0f} ms")
            before = at
    total = line["first_step_ns"] - line["fault_ns"]
    if line["first_step_ns"] and line["fault_ns"]:
        told.append(f"{total / 1e9:.2f} s in total")
    return " → ".join(["fault", *told[:-1]]) + (f", {told[-1]}" if told else "")


def _say(text: str) -> None:
    print(f"\r\x1b[2K[demo] {text}" if sys.stderr.isatty() else f"[demo] {text}", file=sys.stderr, flush=True)
