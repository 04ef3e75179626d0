"""Performs StartWorkers: turns an order into running, watched processes, at most once.

The black box, which the spawner makes before the fork, is the journal: a repeated order finds the workers it
started before. If one worker cannot start, the agent ends those already started: all or nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchloom.agent.checkpoints import memory_tiers
from torchloom.agent.host import Host, LocalWorker, order_id
from torchloom.agent.journal import ProcessNote
from torchloom.agent.logs import files, placing
from torchloom.agent.neighbour.preparing import prepare_memory
from torchloom.agent.observe import boxes, flight_recorder
from torchloom.agent.observe.boxes import ReadableBox
from torchloom.agent.processes import interfaces
from torchloom.agent.processes.exits import ExitWatch
from torchloom.agent.processes.fencing import wait_for_lease
from torchloom.agent.processes.learned_spawners import PATH_VARIABLE
from torchloom.agent.processes.process import Process, boot_id, is_alive
from torchloom.agent.processes.recipe import Recipe, recipe
from torchloom.agent.processes.worker_environment import start_order, without_secrets
from torchloom.boottime import now_ns
from torchloom.bus.protocol import Bus
from torchloom.errors import BlackBoxDamaged, LoomError, SpawnFailed, UsageError
from torchloom.home import private_directory
from torchloom.model.effects import Launch, StartWorkers
from torchloom.model.events import StartedWorker, WorkersStarted
from torchloom.model.ids import check_token
from torchloom.private import make_private
from torchloom.spawner.client import AsyncSpawnerClient, Started
from torchloom.wire.start_line import StartLine

_SIGN_IN_WITHIN_S = 0.5
"""A newborn writes its pid into its box at once; a box without one after this long has no process."""
_LEASES_A_START = 3
_UNDO_WITHIN_S = 10.0
"""How long a failed start waits for its processes to end before it is reported."""
_LOOK_AGAIN_S = 0.5

log = logging.getLogger(__name__)


async def start_workers(
    host: Host, watch: ExitWatch, bus: Bus, effect: StartWorkers, env: Mapping[str, str]
) -> WorkersStarted:
    """Start what is not running yet. Raises a LoomError with the reason when it cannot be done."""
    order = order_id(effect)
    fresh = [
        launch
        for launch in effect.launches
        if launch.ref not in host.workers and not host.journal.has_ended(launch.ref, order)
    ]
    over = asyncio.Event()
    for launch in fresh:
        host.starting[launch.ref] = over
    try:
        _check(effect)
        if fresh:
            await prepare_memory(host, effect, env)
        workers = await _start_leased(host, bus, effect, order, fresh, env) if fresh else []
    finally:
        for launch in fresh:
            host.starting.pop(launch.ref, None)
        over.set()
    for worker in workers:
        host.workers[worker.ref] = worker
    event = WorkersStarted(
        node=host.node,
        effect=effect.id,
        workers=tuple(_started(host, launch) for launch in effect.launches),
    )
    for worker in workers:
        # One turn later, so that the start is reported before an exit that has already happened.
        asyncio.get_running_loop().call_soon(watch.add, worker)
    return event


def _started(host: Host, launch: Launch) -> StartedWorker:
    worker = host.workers.get(launch.ref)
    if worker is None:  # it has already ended, and its exit is reported
        return StartedWorker(launch.ref, 0)
    version = host.spawners.version_of(worker.spawner)
    return StartedWorker(worker.ref, worker.pid, worker.devices, worker.blind, version)


def _check(effect: StartWorkers) -> None:
    """Report now what would otherwise be hard to find in a log file."""
    check_token(effect.job, "job name")
    if not Path(effect.cwd).is_dir():
        raise UsageError(f"the working directory {effect.cwd} does not exist on {effect.node}")
    if effect.program.kind == "script":
        script = Path(effect.cwd) / effect.program.target
        if not script.exists():
            raise UsageError(f"the script {script} does not exist on {effect.node}")


async def _start_leased(
    host: Host, bus: Bus, effect: StartWorkers, order: str, launches: Sequence[Launch], env: Mapping[str, str]
) -> list[LocalWorker]:
    """Where the job wants it, only with a lease, and with a deadline from that lease on.

    The lease is asked for when the spawner is ready to fork, and the spawner refuses to fork after the
    deadline: a host that was suspended in between tries again.
    """
    if not effect.fence_s:
        return await _start(host, effect, order, launches, env)
    refs = [launch.ref for launch in launches]
    fence_ns, until_ns = int(effect.fence_s * 1e9), 0

    async def deadline() -> tuple[int, int]:
        nonlocal until_ns
        leased_ns = await wait_for_lease(host, bus, lambda: not host.withdrawn.intersection(refs))
        if not leased_ns:
            raise SpawnFailed("it was stopped before it had started")
        until_ns = leased_ns + fence_ns
        return fence_ns, until_ns

    for again in range(_LEASES_A_START, 0, -1):
        until_ns = 0
        try:
            return await _start(host, effect, order, launches, env, deadline)
        except SpawnFailed:
            too_late = 0 < until_ns < now_ns()
            if again == 1 or not too_late or host.withdrawn.intersection(refs):
                raise
    raise AssertionError("the last try returns or raises")


async def _start(
    host: Host,
    effect: StartWorkers,
    order: str,
    launches: Sequence[Launch],
    env: Mapping[str, str],
    deadline: Callable[[], Awaitable[tuple[int, int]]] | None = None,
) -> list[LocalWorker]:
    wanted = recipe(effect.interpreter, without_secrets(env), effect.preload, effect.spawn)
    _prepare_directories(host)
    wanted, imports = host.learned.choose(effect, wanted, without_secrets(env))
    orders = [_order(host, effect, order, launch, env) for launch in launches]
    if imports is not None:
        orders[0]["env"][PATH_VARIABLE] = str(imports)
    refs = [launch.ref for launch in launches]

    async def fork(spawner: AsyncSpawnerClient) -> list[Started]:
        if deadline is not None:
            fence = await deadline()
            for asked in orders:
                asked["fence"] = fence
        return await spawner.start(orders)

    try:
        results = await host.spawners.ask(
            wanted,
            fork,
            still_wanted=lambda: not host.withdrawn.intersection(refs),
            before_retry=lambda: _remove_unborn(orders),
        )
    except LoomError:
        # A spawner that died midway may have started some workers, which only their boxes show.
        left = [(*what, _journalled(what[1])) for what in zip(launches, orders, strict=True)]
        await _undo(host, [_worker(host, wanted, order, *what) for what in left if what[2].pid])
        raise
    workers: list[LocalWorker] = []
    problem = next((r.error for r in results if r.error or r.pid is None), None)
    for launch, asked, result in zip(launches, orders, results, strict=True):
        if result.pid is not None and result.start_ticks is not None:
            workers.append(_worker(host, wanted, order, launch, asked, result))
    if host.withdrawn.intersection(refs):
        problem = "it was stopped while it was being started"
    if problem is not None:
        await _undo(host, workers)
        raise SpawnFailed(problem)
    return workers


def _prepare_directories(host: Host) -> None:
    private_directory(host.home.sockets)
    # Boxes without room are a worker without telemetry, which the spawner says; no reason to fail here.
    for directory in (host.home.boxes, host.home.boxes_fallback):
        with contextlib.suppress(OSError):
            make_private(directory)


def _order(
    host: Host, effect: StartWorkers, order: str, launch: Launch, env: Mapping[str, str]
) -> dict[str, Any]:
    ref = launch.ref
    path = host.log_file(ref.job, ref.rank)
    trouble = placing.place(path, effect.log_dir, ref) if effect.log_dir else ""
    files.mark_start(path, StartLine(ref.generation, ref.rank, effect.world_size, effect.restart_count))
    if trouble:
        files.write_line(path, f"[loom] {trouble}")
    host.log_watch.follow(path)
    asked = start_order(
        effect,
        launch,
        env,
        box=host.home.boxes / boxes.file_name(ref, order),
        box_fallback=host.home.boxes_fallback,
        log=path,
        cores=host.devices.pinned(
            launch.local_rank, effect.local_world_size, effect.barred, each=effect.pin_cores
        ),
        unwritten=host.unwritten.pop((ref.job, ref.rank), ""),
    )
    chosen = [one.device for one in effect.launches]
    own = asked["env"].get("CUDA_VISIBLE_DEVICES")
    visible = host.devices.visible(own, chosen, launch.local_rank, effect.barred)
    if visible is not None:
        asked["env"]["CUDA_VISIBLE_DEVICES"] = visible
    # A job of the API brings no PATH, and without one a compiler does not find its own parts.
    asked["env"].setdefault("PATH", os.environ.get("PATH", os.defpath))
    for name, value in memory_tiers.places(host.home, ref.job).items():
        asked["env"].setdefault(name, value)
    for name, value in interfaces.settings(host.address, _hosts(effect)).items():
        asked["env"].setdefault(name, value)
    if effect.replica is not None:
        asked["env"].setdefault("LOOM_NODE_ADDRESS", host.address)
    asked["env"] |= flight_recorder.settings(host.home, ref, asked["env"])
    return asked


def _hosts(effect: StartWorkers) -> int:
    """On how many hosts those are that its collectives reach; other replicas may be anywhere."""
    return max(2, effect.group_world_size) if effect.replica is not None else effect.group_world_size


async def _remove_unborn(orders: Sequence[dict[str, Any]]) -> None:
    """Boxes of workers that were never forked would make a second start refuse."""
    for order in orders:
        for path in _box_paths(order):
            give_up = time.monotonic() + _SIGN_IN_WITHIN_S
            while path.exists() and not _has_process(path):
                if time.monotonic() > give_up:
                    boxes.remove(path)
                    break
                await asyncio.sleep(0.01)


def _has_process(path: Path) -> bool:
    return bool(_signed(path))


def _signed(path: Path) -> tuple[int, int] | None:
    """Pid and start time of the process that belongs to a box, if there is one."""
    try:
        box = ReadableBox.open(path)
    except BlackBoxDamaged:
        return None
    who = (box.pid, box.start_ticks)
    box.close()
    return who if who[0] else None


def _journalled(asked: dict[str, Any]) -> Started:
    """What an interrupted start left of this worker, according to its box."""
    for path in _box_paths(asked):
        if (who := _signed(path)) is not None:
            return Started(pid=who[0], start_ticks=who[1], box=str(path), already=True, error=None)
    return Started(pid=None, start_ticks=None, box=None, already=False, error="not started")


def _box_paths(asked: dict[str, Any]) -> tuple[Path, Path]:
    box = Path(asked["box"])
    return box, Path(asked["box_fallback"]) / box.name


def _worker(
    host: Host, wanted: Recipe, order: str, launch: Launch, asked: dict[str, Any], result: Started
) -> LocalWorker:
    assert result.pid is not None and result.start_ticks is not None
    box, blind = _open_box(result)
    note = None
    if box is None:
        note = ProcessNote(
            kind="worker",
            job=launch.ref.job,
            generation=launch.ref.generation,
            boot_id=f"{boot_id():x}",
            pid=result.pid,
            start_ticks=result.start_ticks,
            spawner=wanted.key,
            order=order,
            rank=launch.ref.rank,
            incarnation=launch.ref.incarnation,
        )
        host.journal.keep(note)
    return LocalWorker(
        ref=launch.ref,
        order=order,
        pid=result.pid,
        start_ticks=result.start_ticks,
        process=Process.open(result.pid, result.start_ticks),
        box=box,
        log=Path(asked["stdout"]),
        spawner=wanted.key,
        devices=host.devices.expected(launch.local_rank, asked["env"], asked["cpus"]),
        blind=blind,
        note=note,
        signalled=False,
    )


def _open_box(result: Started) -> tuple[ReadableBox | None, str]:
    if result.box is None:
        return None, "; ".join(result.notes) or "there was no room for a black box"
    try:
        return ReadableBox.open(Path(result.box)), ""
    except BlackBoxDamaged as error:
        return None, str(error)


async def _undo(host: Host, workers: Sequence[LocalWorker], within_s: float = _UNDO_WITHIN_S) -> None:
    """End the processes of a failed order; they have not been reported to anybody yet.

    A process that does not end although it was killed (it may wait in the kernel for a disk) keeps its box,
    by which a later agent finds it, and is cleaned up once it is gone.
    """
    for worker in workers:
        if worker.process is not None:
            worker.signal_group(signal.SIGKILL)
    until = time.monotonic() + within_s
    for worker in workers:
        while is_alive(worker.pid, worker.start_ticks) and time.monotonic() < until:
            await asyncio.sleep(0.002)
        if is_alive(worker.pid, worker.start_ticks):
            log.warning("process %d of a start that failed does not end; it is left behind", worker.pid)
            task = asyncio.create_task(_undo_later(host, worker), name=f"undo {worker.pid}")
            host.lingering.add(task)
            task.add_done_callback(host.lingering.discard)
        else:
            await _remove_traces(host, worker)


async def _undo_later(host: Host, worker: LocalWorker) -> None:
    while is_alive(worker.pid, worker.start_ticks):
        await asyncio.sleep(_LOOK_AGAIN_S)
    await _remove_traces(host, worker)


async def _remove_traces(host: Host, worker: LocalWorker) -> None:
    if worker.process is not None:
        worker.process.close()
    if worker.box is not None:
        worker.box.close()
        boxes.remove(worker.box.path)
    if worker.note is not None:
        host.journal.drop(worker.note)
    await host.spawners.forget(worker.spawner, worker.pid, worker.start_ticks)
