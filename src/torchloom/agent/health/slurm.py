"""What Slurm says of this node, as a health source: `scontrol show node` where the agent runs in a Slurm job.

The state of the node holds for each of its devices. An operator who drains a node, or a health check of the
site that does, is a sign that it will fail or be taken away: `failing`. A node that slurmctld cannot reach is
only `degraded`: it may be the way to it, and the agent itself is alive. Nothing here says `failed`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from torchloom.agent.health.health_source import SourceLook
from torchloom.agent.health.known_gpus import look as known_devices
from torchloom.model.devices import HealthClass, HealthReport

EVERY_S = 60.0
"""Each node asks the one slurmctld."""
ANSWER_WITHIN_S = 20.0
FAILING = frozenset(
    {"DRAIN", "DRAINING", "DRAINED", "FAIL", "FAILING", "DOWN", "POWERING_DOWN", "REBOOT_REQUESTED"}
)
DEGRADED = frozenset({"NOT_RESPONDING", "UNKNOWN", "MAINT", "MAINTENANCE"})


class SlurmSource:
    name, deadline_s, isolated = "slurm", 30.0, False

    def __init__(self, node: str, home: Path, env: Mapping[str, str] = os.environ) -> None:
        self._node, self._home = node, home
        self._slurm_node = env.get("SLURMD_NODENAME", "")
        every = env.get("LOOM_SLURM_EVERY_S", "")
        self.every_s = float(every) if every.replace(".", "", 1).isdecimal() else EVERY_S
        self._devices: tuple[str, ...] = ()
        self._said: tuple[HealthClass, str] = ("ok", "")

    def why_not(self) -> str:
        if not self._slurm_node:
            return "this is no Slurm job"
        return "" if shutil.which("scontrol") else "there is no scontrol"

    def look(self) -> SourceLook:
        if not self._devices:
            self._devices = tuple(use.device for use in known_devices(self._node, self._home).all())
        done = subprocess.run(
            ["scontrol", "show", "node", self._slurm_node, "-o"],
            capture_output=True,
            text=True,
            timeout=ANSWER_WITHIN_S,
            check=False,
        )
        if done.returncode:
            raise OSError(f"scontrol: {done.stderr.strip()[:200]}")
        found = judge_state(done.stdout)
        if found == self._said:
            return SourceLook()
        self._said = found
        level, why = found
        return SourceLook(
            reports=tuple(
                HealthReport(device=device, level=level, why=why, source=self.name)
                for device in self._devices
            )
        )

    def close(self) -> None:
        pass


def judge_state(text: str) -> tuple[HealthClass, str]:
    """The class of health of a node, and why, from one line of `scontrol show node -o`."""
    state = re.search(r"\bState=(\S+)", text)
    flags = set(re.split(r"[+*~#!%$@^-]+", state.group(1).upper())) if state else set()
    if state and "*" in state.group(1):
        flags.add("NOT_RESPONDING")
    given = re.search(r"\bReason=(.*?)(?: \[\S+@\S+\])?(?= [A-Z]\w*=|$)", text.strip())
    reason = f": {given.group(1).strip()[:200]}" if given else ""
    for level, known in (("failing", FAILING), ("degraded", DEGRADED)):
        if hit := sorted(flags & known):
            return level, f"Slurm has the node in state {'+'.join(hit)}{reason}"  # type: ignore[return-value]
    return "ok", ""
