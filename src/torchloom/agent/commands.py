"""Receives commands: checks the epoch, answers at once, performs each effect at most once, reports results.

An effect that arrives again while in progress is not performed twice; for a finished effect, the agent
reports its result again under the same id. Only ending stray processes is retried. `start`, `stop` and
`stores` define what each effect does.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

from torchloom import __version__
from torchloom.agent.checkpoints.memory_tiers import release_memory
from torchloom.agent.health.device_tests import DeviceTests
from torchloom.agent.host import Host
from torchloom.agent.injection.faults import inject
from torchloom.agent.lighthouse.move_lighthouse import move_lighthouse
from torchloom.agent.lighthouse.share_change import seat_replica, share_change
from torchloom.agent.logs.removal import remove_job_files
from torchloom.agent.mail import post_mail
from torchloom.agent.processes.exits import ExitWatch
from torchloom.agent.processes.rendezvous import Stores
from torchloom.agent.processes.start import start_workers
from torchloom.agent.processes.stop import stop_workers
from torchloom.agent.processes.warm_standby import warm_spawner
from torchloom.agent.tasks import Tasks
from torchloom.bus.protocol import LEADER, Bus, Message
from torchloom.errors import LoomError
from torchloom.model.effects import (
    Effect,
    InjectFault,
    MoveLighthouse,
    PostMail,
    ReleaseMemory,
    RemoveJobFiles,
    SeatReplica,
    ShareChange,
    StartRendezvous,
    StartWorkers,
    StopRendezvous,
    StopWorkers,
    TestDevice,
    WarmSpawner,
)
from torchloom.model.events import (
    ChangeShared,
    DeviceTested,
    EffectDone,
    EffectFailed,
    RendezvousStarted,
    WorkersStarted,
)
from torchloom.model.messages import Command, Receipt
from torchloom.wire import codec

log = logging.getLogger(__name__)

Result = RendezvousStarted | WorkersStarted | ChangeShared | EffectDone | EffectFailed | DeviceTested

_REMEMBERED = 2048


@dataclass
class _Known:
    """An accepted effect, and its result once there is one."""

    effect: Effect
    result: Result | None = None


def _worth_another_try(known: _Known) -> bool:
    """Nothing else will end a worker that counts as dead, and its job waits for that end; nor will anything
    else bring a lighthouse to where it is needed."""
    effect, failed = known.effect, isinstance(known.result, EffectFailed)
    strays = isinstance(effect, StopWorkers) and effect.strays
    return failed and (strays or isinstance(effect, MoveLighthouse))


class Commands:
    def __init__(self, host: Host, watch: ExitWatch, bus: Bus, tasks: Tasks) -> None:
        self._host = host
        self._watch = watch
        self._bus = bus
        self._tasks = tasks
        self._stores = Stores(host, watch)
        self._tests = DeviceTests(host)
        self._known: OrderedDict[str, _Known] = OrderedDict()

    async def receive(self, message: Message) -> None:
        """Handler of the command subject."""
        try:
            command = codec.decode_command(message.data)
        except codec.NewerSchema as error:
            agent = f"the agent of {self._host.node} (torchloom {__version__})"
            why = f"{agent} is too old for this command: {error}"
            log.error("a command was refused: %s", why)
            receipt = Receipt(False, self._host.epoch, why, too_old=True)
        except codec.DecodeError as error:
            log.warning("a command that cannot be read was refused: %s", error)
            receipt = Receipt(False, self._host.epoch, f"this agent does not understand the command: {error}")
        else:
            if command.session not in ("", self._host.session):
                log.warning("a command for another agent of the name %s is left to it", self._host.node)
                return  # stay silent: our refusal might arrive before the addressed agent's answer
            receipt = await self._check_epoch(command) or self._accept(command)
            if receipt.accepted:
                self._host.fleet_nodes = command.nodes
        await self._bus.respond(message, codec.encode(receipt))

    async def _check_epoch(self, command: Command) -> Receipt | None:
        """A refusal unless the sender leads. A new epoch is believed only from the lease:
        neither a message nor our memory of one deposes a weaver."""
        host, epoch = self._host, command.epoch
        if epoch == host.epoch:
            return None
        try:
            held = await self._bus.held_epoch(LEADER)
        except LoomError as error:
            return Receipt(
                False, host.epoch, f"epoch {epoch} cannot be compared with the lease ({error.message})"
            )
        if epoch != held:
            return Receipt(False, host.epoch, f"epoch {epoch} does not lead; the lease has epoch {held}")
        host.epoch = epoch
        try:
            host.journal.keep_epoch(epoch)
        except LoomError as error:  # a full disk must not keep a job from being stopped
            log.warning("the epoch could not be kept: %s", error)
        return None

    def _accept(self, command: Command) -> Receipt:
        host, effect = self._host, command.effect
        if effect.node != host.node:
            return Receipt(False, host.epoch, f"this is {host.node}, not {effect.node}")
        known = self._known.get(effect.id)
        if known is not None and known.effect == effect and not _worth_another_try(known):
            if known.result is not None:
                self._say(effect, known.result)
            return Receipt(True, host.epoch)
        known = self._known[effect.id] = _Known(effect)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        self._tasks.start(self._do(known, command.env), f"effect {effect.id}")
        return Receipt(True, host.epoch)

    async def _do(self, known: _Known, env: Mapping[str, str]) -> None:
        effect = known.effect
        try:
            result = await self._carry_out(effect, env)
        except LoomError as error:
            result = self._failed(effect, str(error))
        except Exception as error:  # the weaver must learn of every failure
            log.exception("effect %s failed", effect.id)
            result = self._failed(effect, f"the agent failed at it: {type(error).__name__}: {error}")
        known.result = result
        if result is not None:
            self._say(effect, result)

    async def _carry_out(self, effect: Effect, env: Mapping[str, str]) -> Result | None:
        match effect:
            case StartRendezvous():
                return await self._stores.start(effect, env)
            case StopRendezvous():
                return await self._stores.stop(effect)
            case StartWorkers():
                return await start_workers(self._host, self._watch, self._bus, effect, env)
            case StopWorkers():
                return await stop_workers(self._host, effect)
            case RemoveJobFiles():
                return await remove_job_files(self._host, effect)
            case WarmSpawner():
                return await warm_spawner(self._host, effect, env)
            case ReleaseMemory():
                return release_memory(self._host, effect)
            case PostMail():
                post_mail(self._host, effect)
                return None  # the answers of the ranks are its result
            case TestDevice():
                return await self._tests.run(effect)
            case ShareChange():
                return await share_change(self._host, effect)
            case MoveLighthouse():
                return await move_lighthouse(self._host, effect)
            case SeatReplica():
                return await seat_replica(self._host, effect)
            case InjectFault():
                return inject(self._host, self._bus, effect, self._tasks)
            case _:
                assert_never(effect)

    def _failed(self, effect: Effect, why: str) -> EffectFailed:
        return EffectFailed(node=self._host.node, effect=effect.id, why=why)

    def _say(self, effect: Effect, result: Result) -> None:
        """Under an id derived from the effect's id: a repeated report is the same event."""
        self._host.reporter.say(result, f"{effect.id}.{result.__struct_config__.tag}")
