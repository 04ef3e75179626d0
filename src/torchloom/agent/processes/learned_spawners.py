"""Spawners that have already imported what a job was seen to import: a restart then costs no imports.

A job's first worker reports its imports after its first step. Then a second spawner imports the same modules,
beside the training; the next start of the job uses it if it is ready and found itself safe to fork, else the
plain one, as if nothing had been learned. A package that was found unsafe is left out, in a new spawner. What
was learned is kept by job: interpreter, program, directory and environment. A spawner that its job no longer
needs is ended. Chooses only where workers are forked from; starting them is `start`'s affair.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchloom.agent.processes.recipe import Recipe
from torchloom.agent.processes.spawners import Spawners
from torchloom.errors import LoomError
from torchloom.home import Home, private_directory
from torchloom.model.effects import StartWorkers
from torchloom.spawner.client import SpawnerGone

log = logging.getLogger(__name__)

OFF = "LOOM_LEARN_IMPORTS"
"""Variable of a job: `0` learns nothing and uses nothing that was learned."""
PATH_VARIABLE = "LOOM_IMPORTS_FILE"
FEWEST_MODULES = 20
"""Fewer than this are imported faster than they are worth a process."""
TRIES = 6
"""Spawners started for one list: each unsafe package costs one."""
LINGER_S = 60.0
"""How long a spawner stays without a worker of its job on this host."""
LOOK_EVERY_S = 0.5


class LearnedSpawners:
    """Those of one host. `has_workers(job)`: whether a worker of the job lives or starts here."""

    def __init__(self, home: Home, spawners: Spawners, has_workers: Callable[[str], bool]) -> None:
        self._home = home
        self._spawners = spawners
        self._has_workers = has_workers
        self._ready: dict[Path, Recipe] = {}
        self._watching: dict[Path, asyncio.Task[None]] = {}
        self.next: dict[str, str] = {}
        """By job the key of the spawner that its next start will use, if that is not its first one."""

    @property
    def directory(self) -> Path:
        return self._home.root / "learned"

    def file_of(self, effect: StartWorkers, plain: Recipe, env: Mapping[str, str]) -> Path | None:
        """Where this job's imports are recorded; None if there is nothing to learn."""
        if plain.cold or effect.program.kind == "command" or env.get(OFF) == "0":
            return None
        whole = replace(plain, preload=(*plain.preload, "learned"))  # then all of the environment counts
        named = [whole.key, effect.program.kind, effect.program.target, effect.cwd]
        return self.directory / f"{hashlib.sha256(json.dumps(named).encode()).hexdigest()[:16]}.json"

    def choose(
        self, effect: StartWorkers, plain: Recipe, env: Mapping[str, str]
    ) -> tuple[Recipe, Path | None]:
        """The recipe to start with, and the file to which a worker should report its imports, if any."""
        path = self.file_of(effect, plain, env)
        if path is None:
            return plain, None
        ready = self._ready.get(path)
        chosen = plain
        if ready is not None and self._spawners.connected(ready.key) and ready == recipe_of(path, plain):
            chosen = ready
        with contextlib.suppress(LoomError):
            private_directory(self.directory)
        self._watch(path, plain, effect.job)
        return chosen, None if path.exists() else path

    def _watch(self, path: Path, plain: Recipe, job: str) -> None:
        if path not in self._watching or self._watching[path].done():
            task = asyncio.create_task(self._learn(path, plain, job), name=f"imports of {job}")
            self._watching[path] = task

    async def _learn(self, path: Path, plain: Recipe, job: str) -> None:
        """Wait for the report, make a spawner of it, and end that when the job has no worker any more."""
        used_s = time.monotonic()
        made = False
        while time.monotonic() - used_s < LINGER_S:
            if self._has_workers(job):
                used_s = time.monotonic()
            if not made and path.exists():
                made = True
                await self._make(path, plain)
                if path in self._ready:
                    self.next[job] = self._ready[path].key
            await asyncio.sleep(LOOK_EVERY_S)
        self.next.pop(job, None)
        ready = self._ready.pop(path, None)
        if ready is not None:
            await self._spawners.quit(ready.key)

    async def _make(self, path: Path, plain: Recipe) -> None:
        for _ in range(TRIES):
            wanted = recipe_of(path, plain)
            if wanted is None:
                return
            try:
                state = await self._spawners.warmed(wanted)
            except (LoomError, SpawnerGone, OSError) as error:
                log.info("nothing is preloaded for %s: %s", path.stem, error)
                return
            unsafe, why = str(state.get("unsafe") or ""), str(state.get("why_unsafe") or "")
            if not unsafe and not state.get("problem"):
                log.info("spawner %s has imported %s modules of its job", wanted.key, state.get("learned"))
                self._ready[path] = wanted
                return
            log.info("spawner %s leaves %s out: %s", wanted.key, unsafe, why or state.get("problem"))
            await self._spawners.quit(wanted.key)
            if not unsafe or not _refuse(path, unsafe):
                return

    async def close(self) -> None:
        """Stop watching; the spawners belong to the pool."""
        for task in self._watching.values():
            task.cancel()
        await asyncio.gather(*self._watching.values(), return_exceptions=True)


def recipe_of(path: Path, plain: Recipe) -> Recipe | None:
    """The recipe that the record at `path` asks for; None if it is not there, or too short to matter."""
    found = _record(path)
    if found is None:
        return None
    data, record = found
    refused = record.get("refused", [])
    if sum(name.partition(".")[0] not in refused for name in record["modules"]) < FEWEST_MODULES:
        return None
    return replace(plain, learned=str(path), digest=hashlib.sha256(data).hexdigest()[:16])


def _refuse(path: Path, package: str) -> bool:
    """Record that a package is unsafe; False if that changes nothing."""
    found = _record(path)
    refused = found[1].get("refused", []) if found is not None else []
    if found is None or package in refused:
        return False
    try:
        made = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        made.write_text(json.dumps(found[1] | {"refused": [*refused, package]}))
        made.replace(path)
    except OSError:
        return False
    return True


def _record(path: Path) -> tuple[bytes, dict[str, Any]] | None:
    """The content, with names under "modules" and "refused". A worker wrote it: it may be anything."""
    try:
        data = path.read_bytes()
        found = json.loads(data)
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    for names in (found.get("modules"), found.get("refused", [])):
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            return None
    return data, found
