"""Carries out WarmSpawner: a job may have to start here soon. The spawner is one like any other."""

from __future__ import annotations

from collections.abc import Mapping

from torchloom.agent.host import Host
from torchloom.agent.processes.recipe import recipe
from torchloom.agent.processes.worker_environment import without_secrets
from torchloom.home import private_directory
from torchloom.model.effects import WarmSpawner
from torchloom.model.events import EffectDone


async def warm_spawner(host: Host, effect: WarmSpawner, env: Mapping[str, str]) -> EffectDone:
    """Returns when the spawner is there; it may still import."""
    private_directory(host.home.sockets)
    await host.spawners.get(recipe(effect.interpreter, without_secrets(env), effect.preload, "warm"))
    return EffectDone(node=host.node, effect=effect.id)
