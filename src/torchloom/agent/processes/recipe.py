"""Which spawner a job needs, from its interpreter and its environment. Starts nothing.

Imports little: `loom run` asks this before there is an agent.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from torchloom.spawner.key import spawner_key
from torchloom.spawner.launch import TORCHRUN_FLAGS


@dataclass(frozen=True)
class Recipe:
    """All that is needed to start a spawner. Kept in memory only, because of the environment."""

    interpreter: str
    env: dict[str, str] = field(repr=False)
    preload: tuple[str, ...]
    cold: bool
    learned: str = ""
    """A file that lists what the job was seen to import (learned_spawners.py)."""
    digest: str = ""
    """Of that file: another list needs another spawner."""

    @property
    def key(self) -> str:
        preload = (*self.preload, f"{self.learned} {self.digest}") if self.learned else self.preload
        return spawner_key(self.interpreter, TORCHRUN_FLAGS, self.env, preload=preload, cold=self.cold)


def recipe(interpreter: str, env: Mapping[str, str], preload: tuple[str, ...], spawn: str) -> Recipe:
    """The spawner a job needs; an empty interpreter means the agent's own.

    Relative entries of PYTHONPATH mean the shell's directory, so they are made absolute: two jobs with the
    same text and other directories must not share a spawner.
    """
    made = dict(env)
    base = made.get("PWD", "")
    if made.get("PYTHONPATH") and os.path.isabs(base):
        made["PYTHONPATH"] = os.pathsep.join(
            os.path.join(base, entry) for entry in made["PYTHONPATH"].split(os.pathsep)
        )
    return Recipe(interpreter or sys.executable, made, preload, spawn == "cold")
