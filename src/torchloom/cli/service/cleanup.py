"""Ends the parts of a home and removes what they left behind. Never signals a worker.

Used by the supervisor when it ends, and by `loom down` and `loom run` when no supervisor is left to do it.
"""

from __future__ import annotations

import shutil
import signal
import time
from pathlib import Path

from torchloom.agent.processes.process import Process
from torchloom.cli.service import parts
from torchloom.cli.service.parts import PartRecord
from torchloom.cli.service.plan import Plan, node_name
from torchloom.errors import LoomError
from torchloom.home import Home

GRACE_S = 8.0
"""Time between SIGTERM and SIGKILL for one of our parts."""
LOOK_EVERY_S = 0.01


def end_parts(home: Home) -> None:
    """End the parts in this order: each may need the next one to shut down cleanly."""
    for name in ("notify", "agent", "weaver"):
        record = parts.living(home, name)
        if record is not None:
            end_process(record)
        parts.forget(home, name)
        parts.take_failure(home, name)
    plan = Plan.read(home)
    if plan is None or not plan.servers:
        _end_nats(home)
    parts.forget(home, "nats")
    sweep(home)
    parts.forget(home, "plan")


def end_process(record: PartRecord, grace_s: float = GRACE_S) -> bool:
    """SIGTERM, then SIGKILL; returns when it is dead. False if it would not die."""
    process = record.hold()
    if process is None:
        return True
    try:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                signal.pidfd_send_signal(process.fd, number)
            except ProcessLookupError:
                return True
            if wait_dead(process, grace_s):
                return True
        return False
    finally:
        process.close()


def wait_dead(process: Process, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while process.alive:
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_EVERY_S)
    return True


def _end_nats(home: Home) -> None:
    from torchloom.bus.embedded import EmbeddedNats

    if not (home.nats_dir / "lock").exists():
        return
    try:
        # By its lock and its configuration file: it may be one of a cluster.
        EmbeddedNats(home.nats_dir, node_name()).stop()
    except LoomError:
        # It survived SIGKILL's grace: the next start finds the store in use and reports that.
        pass


def living_workers(home: Home) -> list[str]:
    """Workers whose process runs, found by their black boxes: `<job>/rank-<n>`."""
    from torchloom.agent.observe import boxes
    from torchloom.agent.processes.process import boot_id, is_alive
    from torchloom.errors import BlackBoxDamaged
    from torchloom.model.ids import worker_id

    found: list[str] = []
    for path in boxes.found_in(home):
        named = boxes.parse_name(path)
        try:
            box = boxes.ReadableBox.open(path)
        except BlackBoxDamaged:
            continue
        if box.boot_id == boot_id() and is_alive(box.pid, box.start_ticks):
            found.append(worker_id(named[0].job, named[0].rank) if named else path.name)
        box.close()
    return found


def sweep(home: Home) -> None:
    """Remove what dead parts left behind: sockets of spawners, black boxes, empty directories.

    Asks a spawner without workers to end. While any worker lives, everything stays, because the agent of the
    next `loom up` needs it to adopt that worker.
    """
    from torchloom.agent import ownership
    from torchloom.agent.observe import boxes

    if living_workers(home):
        return
    if all(_end_spawner(path) for path in _sockets(home)):
        shutil.rmtree(home.sockets, ignore_errors=True)
    for path in list(boxes.found_in(home)):
        boxes.remove(path)
    ownership.forget(home)
    boxes.remove_empty_directories(home)


def _sockets(home: Home) -> list[Path]:
    return sorted(home.sockets.glob("*.sock")) if home.sockets.is_dir() else []


def _end_spawner(socket: Path) -> bool:
    """Whether the socket's spawner is gone."""
    from torchloom.spawner.client import SpawnerClient, SpawnerGone

    try:
        with SpawnerClient.connect(socket, timeout_s=0.2) as spawner:
            state = spawner.state(timeout_s=2.0)
            if state.get("children"):
                return False
            spawner.quit(at_once=True, timeout_s=2.0)
        deadline = time.monotonic() + 2.0
        while socket.exists() and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY_S)
    except (SpawnerGone, OSError, LoomError):
        pass
    return True
