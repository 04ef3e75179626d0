"""Healthy jobs side by side, each with its own kind of life, for as long as one has time.

Nothing is wrong with any of them, so a restart is the worst that can happen, and whatever is told that is not
a pause is a false alarm. `jobs` of them run at once on few cores, and now and then programs that only compute
oversubscribe the cores twice.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from detecting.cases import HANGS
from detecting.hurting import submit
from detecting.listening import Heard, Listener
from support.table import progress
from torchloom.client import Client
from torchloom.errors import LoomError

LOAD_EVERY_S, LOAD_FOR_S = 240.0, 40.0
_LOAD = "import sys, time\nend = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end: pass\n"


@dataclass
class Life:
    """One job of a benign run."""

    kind: str
    job: str
    heard: Heard
    notes: Path
    steps: dict[int, int] = field(default_factory=dict)
    """By generation: counting begins anew with each."""
    disturbed: int = 0
    """How often somebody steered it."""
    next_s: float = 0.0


def run(
    client: Client, listener: Listener, minutes: float, base: int, write: Callable[[dict[str, Any]], None]
) -> None:
    began, chance, run_id = time.monotonic(), random.Random(base), f"{time.time():.0f}"
    load: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="loom-bench-notes-") as folder:
        lives = _begin(client, listener, Path(folder), base)
        written = 0.0
        try:
            while (now := time.monotonic() - began) < minutes * 60:
                time.sleep(1.0)
                load = _load(load, now)
                for life in lives:
                    _steer(client, life, now, chance)
                    _count(client, life)
                if now - written > 60:
                    written = now
                    progress(f"  benign: {now:.0f} s, {sum(sum(a.steps.values()) for a in lives)} steps")
                    for life in lives:
                        write(_record(client, life, run_id, now))
            for life in lives:
                write(_record(client, life, run_id, time.monotonic() - began))
        finally:
            for process in load:
                process.kill()
                process.wait()
            for life in lives:
                with suppress(LoomError):
                    client.stop(life.job, {"kill": True, "grace_s": None})


def _begin(client: Client, listener: Listener, folder: Path, base: int) -> list[Life]:
    kinds: list[tuple[str, int, list[str]]] = [("pauses", 2, ["--pauses", "70", "--step-ms", "90"])] * 4
    kinds += [
        ("checkpoints, eval, gc, lr", 2, ["--housekeeping", "--step-ms", "70"]),
        ("batch lengths, pause, resume, set", 2, ["--lengths", "--step-ms", "70"]),
        ("workers join and leave", 2, ["--step-ms", "70", "--busy", "0.3"]),
    ]
    lives = []
    for number, (kind, size, flags) in enumerate(kinds):
        notes = folder / str(number)
        more: dict[str, Any] = {"checkpoint": {"directory": str(folder / f"saved-{number}")}}
        if "join" in kind:
            more |= {"min_workers": 2, "max_workers": 3}
        job = submit(client, size, *flags, "--seed", str(base + number), "--notes", str(notes), **more)
        lives.append(Life(kind, job, listener.begin(job), notes, next_s=30.0))
    return lives


def _load(load: list[subprocess.Popen[bytes]], now: float) -> list[subprocess.Popen[bytes]]:
    """Twice as many programs that only compute as there are cores, for a while and again."""
    load = [process for process in load if process.poll() is None]
    if now % LOAD_EVERY_S >= LOAD_EVERY_S - LOAD_FOR_S and not load:
        command = [sys.executable, "-c", _LOAD, str(LOAD_FOR_S)]
        load = [subprocess.Popen(command) for _ in range(2 * (os.cpu_count() or 1))]
    return load


def _steer(client: Client, life: Life, now: float, chance: random.Random) -> None:
    """What people do to healthy jobs. Whatever is refused is tried again later."""
    if now < life.next_s:
        return
    life.next_s = now + chance.uniform(8, 25)
    with suppress(LoomError):
        if "resume" in life.kind:
            match life.disturbed % 3:
                case 0:
                    client.pause(life.job)
                case 1:
                    client.resume(life.job)
                case _:
                    client.change(life.job, {"values": {"lr": chance.choice((1e-4, 1e-3, 3e-3))}})
            life.disturbed += 1
        elif "join" in life.kind:
            life.next_s = now + chance.uniform(50, 80)
            client.scale(life.job, {"workers": 3 - life.disturbed % 2})
            life.disturbed += 1


def _count(client: Client, life: Life) -> None:
    view = client.job(life.job)
    done = max((worker["steps"] or 0 for worker in view["workers"]), default=0)
    life.steps[view["generation"]] = max(done, life.steps.get(view["generation"], 0))


def _record(client: Client, life: Life, run_id: str, ran_s: float) -> dict[str, Any]:
    view, verdicts = client.job(life.job), []
    kinds: dict[str, int] = {}
    pauses = [line.split() for line in life.notes.read_text().splitlines()] if life.notes.exists() else []
    for incident in client.incidents(job=life.job):
        kinds[incident["kind"]] = kinds.get(incident["kind"], 0) + 1
        if incident["kind"] not in HANGS or incident["decision"].startswith(("certain", "it lasts")):
            verdicts.append(f"{incident['kind']}: {incident['verdict']} [{incident['decision']}]")
    return {
        "type": "benign",
        "run": run_id,
        "job": life.job,
        "kind": life.kind,
        "ran_s": ran_s,
        "state": view["state"],
        "steps": sum(life.steps.values()),
        "disturbed": life.disturbed,
        "pauses": len(pauses),
        "paused_s": sum(float(pause[3]) for pause in pauses),
        "pause_kinds": sorted({pause[2] for pause in pauses}),
        "restarts": view["restarts"],
        "told": kinds,
        "verdicts": verdicts,
        "peers": dict(life.heard.alarms),
    }
