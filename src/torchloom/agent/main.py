"""The agent's life cycle: assemble the modules, adopt, join, serve, leave. Contains no other logic.

The end of the agent never ends a worker: workers keep running, and the next agent adopts them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import uuid

from torchloom.agent import leaving, mail, ownership
from torchloom.agent.checkpoints import memory_tiers
from torchloom.agent.commands import Commands
from torchloom.agent.health import known_gpus
from torchloom.agent.health.health_watch import HealthWatch
from torchloom.agent.host import Host
from torchloom.agent.journal import Journal
from torchloom.agent.lighthouse import report_links
from torchloom.agent.lighthouse.keeper import Lighthouses
from torchloom.agent.logs.files import DEFAULT_LIMIT
from torchloom.agent.neighbour import plans
from torchloom.agent.neighbour.copier import Copier, bandwidth
from torchloom.agent.neighbour.copy_process import CopyProcess
from torchloom.agent.neighbour.door import MemoryDoor
from torchloom.agent.node_name import Name
from torchloom.agent.observe import boxes, devices, pulse, stopped_replicas
from torchloom.agent.observe.evidence import Samples
from torchloom.agent.observe.windows import Windows
from torchloom.agent.processes import adopt, fencing
from torchloom.agent.processes.exits import ExitWatch
from torchloom.agent.processes.learned_spawners import LearnedSpawners
from torchloom.agent.processes.recipe import recipe
from torchloom.agent.processes.reserve_processes import ReserveProcesses
from torchloom.agent.processes.spawners import Spawners
from torchloom.agent.processes.worker_environment import without_secrets
from torchloom.agent.queries import Queries
from torchloom.agent.reporting import Reporter
from torchloom.agent.tasks import Tasks
from torchloom.bus.protocol import Bus, Handler, Subscription
from torchloom.errors import BusUnavailable, Conflict
from torchloom.home import Home
from torchloom.model.events import NodeLeft
from torchloom.model.ids import check_token
from torchloom.model.job import MAX_WORKERS
from torchloom.wire import subjects

log = logging.getLogger(__name__)

_GOODBYE_WITHIN_S = 3.0
_WORKERS_PER_CORE = 8
_MOST_WORKERS = 256
"""Each worker costs two of the 1,024 files that a process may usually have open."""


async def serve(
    home: Home,
    node: str,
    bus: Bus,
    *,
    stop: asyncio.Event,
    address: str = "127.0.0.1",
    prewarm: bool = True,
    keep_spawners: asyncio.Event | None = None,
    max_workers: int | None = None,
    log_limit: int = DEFAULT_LIMIT,
    ready: asyncio.Event | None = None,
    leave_within_s: float = 0.0,
) -> None:
    """Serve this host until `stop` is set. If cancelled instead, it drops everything as a crash would.

    `prewarm` starts a spawner for the agent's own interpreter and environment at once. Spawners without
    workers end with the agent unless `keep_spawners` is set by then (an agent about to be replaced).
    `ready` is set when commands are taken and the node has joined. With `leave_within_s` the host ends with
    the agent (a pod): its jobs are saved and moved first, for that long at most. Raises
    Conflict if another agent has this home, or another host this name.
    """
    check_token(node, "node name")
    journal = Journal(home)
    journal.open()
    claim = ownership.Claim(home, once=leave_within_s > 0)
    tasks = Tasks()
    host = _host(home, node, bus, address, journal, max_workers, log_limit, tasks)
    watch = ExitWatch(host, tasks)
    name = Name(host, bus)
    subscriptions: list[Subscription] = []
    clean = refused = False
    try:
        await claim.take()
        # A thread that nobody waits for: a home on a network disk may not answer.
        threading.Thread(target=ownership.sweep, args=(home,), name="sweep", daemon=True).start()
        await host.spawners.reconnect()
        if prewarm:
            tasks.start(_prewarm(host), "prewarm")
        if await host.lighthouses.adopt() or plans.all_here(home):
            host.answer_agents()
        await _adopt(host, watch)
        samples = Samples(host)
        windows = Windows(host, samples)
        commands, queries = Commands(host, watch, bus, tasks), Queries(host, bus, tasks, samples)
        # Before joining: the first commands arrive as soon as the weaver reads the join.
        subscriptions.append(await _subscribe(bus, subjects.command(node), commands.receive))
        bus.on_reconnect.append(name.greet)
        await name.take(stop)
        tasks.keep(host.reporter.run, "reporter")  # after the inventory, which names the exits that follow it
        subscriptions.append(await _subscribe(bus, subjects.query(node), queries.receive))
        tasks.keep(lambda: pulse.follow_starts(host), "first steps and failures")
        tasks.keep(lambda: pulse.beat(host, bus), "pulse")
        tasks.keep(lambda: mail.follow_answers(host), "answers")
        tasks.keep(lambda: windows.send(bus), "windows")
        tasks.keep(samples.run, "samples")
        tasks.keep(lambda: stopped_replicas.watch(host), "stopped replicas")
        tasks.keep(lambda: report_links.watch(host), "links of replicas")
        tasks.keep(host.kernel_log.run, "kernel log")
        HealthWatch(host).start(tasks)
        tasks.keep(lambda: fencing.keep_lease(host, bus), "lease")
        tasks.keep(lambda: fencing.enforce(host), "fence")
        tasks.keep(lambda: memory_tiers.keep(host), "memory tiers")
        tasks.keep(Copier(host, host.copy_process.send).run, "copies in memory")
        tasks.keep(ReserveProcesses(host).run, "reserve processes")
        if ready is not None:
            ready.set()
        tasks.keep(name.keep, "name")
        await _either(stop, name.lost)
        if name.why is not None:
            raise name.why
        if leave_within_s > 0:
            await leaving.leave(host, leave_within_s)
        clean = True
    except Conflict:
        refused = True
        raise
    finally:
        with contextlib.suppress(ValueError):
            bus.on_reconnect.remove(name.greet)
        for subscription in subscriptions:
            await subscription.unsubscribe()
        if clean:
            host.reporter.say(NodeLeft(node=node), f"{host.session}.left")
            if not await host.reporter.drain(_GOODBYE_WITHIN_S):
                log.warning("%d events could not be delivered before the end", host.reporter.waiting)
        watch.look_away()  # an exit seen during shutdown would start a task that nobody waits for
        if clean:
            await watch.left_behind.end_all_now()
        await tasks.cancel()
        keep = not (clean or refused) or (keep_spawners is not None and keep_spawners.is_set())
        if host.door is not None:
            host.door.close()
        host.copy_process.close()
        await host.learned.close()
        await host.spawners.close(quit_unused=not keep)
        watch.close()
        host.kernel_log.close()
        host.log_watch.close()
        if clean:
            memory_tiers.release_idle(host, {}, 0.0, 0.0)
        claim.release(keep=not (clean or refused))
        if clean or refused:
            _sweep(home)
        journal.close()


def _host(
    home: Home,
    node: str,
    bus: Bus,
    address: str,
    journal: Journal,
    max_workers: int | None,
    log_limit: int,
    tasks: Tasks,
) -> Host:
    found, session = known_gpus.look(node, home.root), uuid.uuid4().hex

    def has_workers(spawner: str) -> bool:
        return any(worker.spawner == spawner for worker in host.workers.values())

    def job_lives(job: str) -> bool:
        return any(ref.job == job for ref in (*host.workers, *host.starting))

    spawners, lighthouses = Spawners(home, has_workers), Lighthouses(home, tasks, node, address)
    copy_process = CopyProcess()
    host = Host(
        home=home,
        node=node,
        address=address,
        session=session,
        max_workers=max_workers or _slots(found),
        log_limit=log_limit,
        devices=found,
        journal=journal,
        reporter=Reporter(bus, node, session),
        spawners=spawners,
        learned=LearnedSpawners(home, spawners, job_lives),
        lighthouses=lighthouses,
        copy_process=copy_process,
        door=MemoryDoor(home, address, lighthouses.gate, copy_process.take),
        copies=bool(bandwidth(os.environ)),
        domain=os.environ.get("LOOM_FAILURE_DOMAIN", "")[:128],
        epoch=journal.epoch(),
    )
    return host


def _slots(found: devices.Devices) -> int:
    """How many workers this host offers room for: LOOM_SLOTS, else one per GPU, else a few per core."""
    asked = os.environ.get("LOOM_SLOTS", "")
    if asked.isdecimal() and int(asked) > 0:
        return min(MAX_WORKERS, int(asked))
    gpus = sum(use.kind == "gpu" for use in found.all())
    return gpus or min(_MOST_WORKERS, _WORKERS_PER_CORE * len(found.cores))


async def _either(*events: asyncio.Event) -> None:
    waiting = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()


async def _adopt(host: Host, watch: ExitWatch) -> None:
    """Watch what is found from now on; reports about it wait until this node has joined."""
    workers = await adopt.find_workers(host)
    stores, lost = adopt.find_stores(host)
    host.workers.update({worker.ref: worker for worker in workers})
    for store in stores:
        watch.add_store(store)
    for worker in workers:
        watch.add(worker)
    for ended in watch.left_behind.from_before():
        watch.end_children(ended)
    for note in lost:
        adopt.say_lost_store(host, note)
    if workers or stores:
        alive = sum(not worker.ending for worker in workers)
        log.info(
            "adopted %d workers and %d stores; %d workers had ended", alive, len(stores), len(workers) - alive
        )


async def _prewarm(host: Host) -> None:
    await host.spawners.prewarm(recipe("", without_secrets(os.environ), (), "warm"))


async def _subscribe(bus: Bus, subject: str, handler: Handler) -> Subscription:
    while True:
        try:
            return await bus.subscribe(subject, handler)
        except BusUnavailable as error:
            log.info("waiting for the bus: %s", error)
            await asyncio.sleep(0.2)


def _sweep(home: Home) -> None:
    """Remove everything that nobody needs any more."""
    boxes.remove_empty_directories(home)
    with contextlib.suppress(OSError):
        home.sockets.rmdir()
