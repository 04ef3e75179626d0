"""A real job in a temporary home: are its collectives, their ends, its waits and a stopped rank seen?

Starts a stack of its own, ends everything it started, and reports checks. Every wait is bounded.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from torchloom.cli.doctor.check import Check
from torchloom.errors import LoomError, TimedOut

if TYPE_CHECKING:
    from torchloom.client import Client
    from torchloom.client.schema import IncidentView
    from torchloom.home import Home

STEPS = 20
SCRIPT = Path(__file__).with_name("script.py")
_STARTS_WITHIN_S = 180.0
_NAMED_WITHIN_S = 90.0
_CORRECTED_WITHIN_S = 5.0
_RECOVERS_WITHIN_S = 120.0
_LOOK_EVERY_S = 0.1
_HANGS = ("hang", "communication-hang", "no-progress")
Found = TypeVar("Found")
Say = Callable[[str], None]


def run(device: str, workers: int, say: Say) -> list[Check]:
    """Train, look, stop the last rank, and see who is blamed."""
    say(f"self-test: {STEPS} steps on {workers} workers ({device}), then rank {workers - 1} is stopped")
    try:
        with _stack() as home:
            return list(_examine(home, device, workers))
    except LoomError as error:
        return [Check("self-test", "broken", f"it could not be run: {str(error).rstrip('.')}")]


def _examine(home: Home, device: str, workers: int) -> Iterator[Check]:
    from torchloom.cli.jobs import flags
    from torchloom.cli.jobs.request import job_request
    from torchloom.cli.jobs.submit import send
    from torchloom.client import Client, Endpoint

    words = ["--nproc-per-node", str(workers), "--name", "doctor", str(SCRIPT), "--device", device]
    began = time.monotonic()
    job = send(home, job_request(flags.parse("run", words), os.environ, os.getcwd()))
    with Client(Endpoint.find(home)) as client:
        try:
            yield _trains(client, job, workers, began)
            completions = _completions(client, job, workers)
            yield completions
            if workers > 1:
                yield _waits(client, job, workers, completions.state == "ok")
                yield from _stopped(client, job, workers - 1)
        except _Failed as failed:
            yield failed.check
        finally:
            _end(client, job)


class _Failed(Exception):
    """The rest of the self-test makes no sense."""

    def __init__(self, check: Check) -> None:
        super().__init__(check.found)
        self.check = check


def _trains(client: Client, job: str, workers: int, began: float) -> Check:
    def far_enough() -> bool:
        view = client.job(job)
        crashed = any(one["kind"] == "crash" for one in view["incident_list"])
        if view["ended"] or crashed:
            raise _Failed(Check("self-test", "broken", f"the job failed: {_what_failed(client, job)}"))
        ranks = [w for w in view["workers"] if w["state"] == "running"]
        return len(ranks) == workers and all(w["steps"] >= STEPS for w in ranks)

    try:
        _wait(far_enough, _STARTS_WITHIN_S)
    except TimedOut:
        steps = [w["steps"] for w in client.job(job)["workers"]]
        text = f"after {_STARTS_WITHIN_S:g} s the ranks had made {steps} steps of {STEPS}"
        raise _Failed(Check("self-test", "broken", text)) from None
    text = f"{workers} workers trained {STEPS} steps {time.monotonic() - began:.1f} s after submission"
    return Check("self-test", "ok", text)


def _completions(client: Client, job: str, workers: int) -> Check:
    """Of the collectives that must have ended, how many have a recorded end."""
    name = "…completions"

    def looked() -> list[dict[str, Any]]:
        boxes = client.telemetry(job, newest=64)["workers"]
        # The newest ones may still run.
        return [dict(one) for box in boxes for one in box["collectives"][:-8]]

    seen = _wait(looked, _LOOK_EVERY_S * 50, default=[])
    if not seen:
        fix = "Send us the output of `loom doctor --json`."
        return Check(name, "limited", "no collective was recorded", "hangs and stragglers name no rank", fix)
    ended = [one for one in seen if one["finished_ns"]]
    sources = sorted({str(one["source"]) for one in ended})
    text = f"{len(ended)} of {len(seen)} collectives of {workers} ranks have an end"
    if 10 * len(ended) < 9 * len(seen):
        fix = "Build the native recorder (`python -m torchloom.probe.native`)."
        return Check(name, "limited", text, "who waits for whom is not known", fix)
    return Check(name, "ok", f"{text} ({', '.join(sources)})")


def _waits(client: Client, job: str, workers: int, ends_known: bool) -> Check:
    name = "…waits"
    if not ends_known:
        return Check(name, "limited", "not known without the ends of collectives", "stragglers are not found")

    def known() -> list[float]:
        ranks = client.stragglers(job)["ranks"]
        waits = [one["waits_s"] for one in sorted(ranks, key=lambda one: one["rank"])]
        return waits if len(waits) == workers and any(wait > 0 for wait in waits) else []

    waits: list[float] = _wait(known, 30.0, default=[])
    if not waits:
        text = "no rank was seen to wait, though the last one is slower"
        return Check(name, "limited", text, "stragglers are not found", "Build the native recorder.")
    # Several ranks wait for the last one, which is late on purpose.
    return Check(name, "ok", f"rank 0 waits {1000 * waits[0]:.1f} ms a step for the late rank {workers - 1}")


def _stopped(client: Client, job: str, rank: int) -> Iterator[Check]:
    before = {one["id"] for one in client.incidents(job=job)}
    pid = next(w["pid"] for w in client.job(job)["workers"] if w["rank"] == rank)
    os.kill(pid, signal.SIGSTOP)
    at = time.monotonic()

    def reported() -> list[IncidentView]:
        fresh = [one for one in client.incidents(job=job) if one["id"] not in before]
        return [one for one in fresh if one["kind"] in _HANGS]

    def blamed() -> list[IncidentView]:
        return [one for one in reported() if one["culprit"] == rank]

    name = "…stopped rank"
    try:
        found: list[IncidentView] = _wait(reported, _NAMED_WITHIN_S, default=[])
        if not found:
            text = f"rank {rank} was stopped, and nothing was reported within {_NAMED_WITHIN_S:g} s"
            yield Check(name, "limited", text, "hangs are not found")
            return
        right: list[IncidentView] = _wait(blamed, _CORRECTED_WITHIN_S, default=[])
        took = time.monotonic() - at
        if not right:
            text = f"rank {rank} was stopped, but the report is: {found[0]['verdict']}"
            yield Check(name, "limited", text, "hangs name no rank, or a wrong one")
            return
        yield Check(name, "ok", f"rank {rank} was named {took:.1f} s after its SIGSTOP")
        if right[0]["decision"].startswith("reported"):
            text = "the stop was reported and not acted on, because it was not certain"
            yield Check("…recovery", "limited", text, "a hang ends with the process group's timeout")
            return
        yield _recovery(client, job, at)
    finally:
        _continue(pid)


def _recovery(client: Client, job: str, at: float) -> Check:
    name, before = "…recovery", client.job(job)["restarts"]

    def trains() -> bool:
        view = client.job(job)
        restarted = view["restarts"] > 0 and view["state"] == "running"
        return restarted and all(w["steps"] > 0 for w in view["workers"] if w["state"] == "running")

    if _wait(trains, _RECOVERS_WITHIN_S, default=False):
        return Check(name, "ok", f"the job trained again {time.monotonic() - at:.1f} s after the stop")
    text = f"no step within {_RECOVERS_WITHIN_S:g} s after the stop ({before} restarts)"
    return Check(name, "limited", text, "torchloom does not recover jobs here")


def _what_failed(client: Client, job: str) -> str:
    incidents = client.incidents(job=job)
    if incidents:
        return incidents[-1]["verdict"]
    lines = [line for log in client.logs(job, tail=1)["logs"] for line in log["text"].splitlines() if line]
    return lines[-1] if lines else "it ended"


def _end(client: Client, job: str) -> None:
    from torchloom.errors import Conflict

    try:
        client.stop(job, {"kill": True})
    except Conflict:
        return  # it has ended
    _wait(lambda: client.job(job)["ended"], _STARTS_WITHIN_S, default=True)


def _continue(pid: int) -> None:
    """If nobody killed the stopped process, it must not stay stopped."""
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        pass


_RAISE: Any = object()


def _wait(look: Callable[[], Found], within_s: float, default: Any = _RAISE) -> Any:
    """What `look` gives once it is true."""
    deadline = time.monotonic() + within_s
    while not (found := look()):
        if time.monotonic() > deadline:
            if default is _RAISE:
                raise TimedOut(f"nothing happened within {within_s:g} s")
            return default
        time.sleep(_LOOK_EVERY_S)
    return found


@contextmanager
def _stack() -> Iterator[Home]:
    """A stack of its own in a temporary home; the environment is as before afterwards."""
    from torchloom.cli.jobs.run import let_go
    from torchloom.cli.service import parts, stack
    from torchloom.home import Home

    root = Path(tempfile.mkdtemp(prefix="loom-doctor-"))
    kept = {name: value for name, value in os.environ.items() if name.startswith("LOOM_")}
    for name in ("LOOM_ADDRESS", "LOOM_NATS_URL", "LOOM_CONTEXT", "LOOM_TOKEN", "LOOM_NODE"):
        os.environ.pop(name, None)
    os.environ["LOOM_HOME"] = str(root / "home")
    home = Home.default()
    try:
        home.prepare()
        holder = parts.hold(home)
        try:
            stack.Start(home).begin().wait()
            yield home
        finally:
            parts.forget(home, holder.name)
            let_go(home)
    finally:
        os.environ.pop("LOOM_HOME", None)
        os.environ.update(kept)
        shutil.rmtree(root, ignore_errors=True)
