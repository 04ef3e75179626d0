"""What Slurm knows about an allocation: its nodes and their addresses. Asks scontrol; changes nothing."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Mapping

from torchloom.errors import TimedOut, UsageError

ANSWER_WITHIN_S = 60.0


class Slurm:
    """The allocation that this process runs in."""

    def __init__(self, env: Mapping[str, str] = os.environ) -> None:
        self._env = env

    @property
    def node(self) -> str:
        """Slurm's name of the node that this process runs on."""
        found = self._env.get("SLURMD_NODENAME", "")
        if not found:
            raise UsageError("SLURMD_NODENAME is not set: this runs inside a Slurm job only.")
        return found

    def nodes(self) -> list[str]:
        """All nodes of the allocation."""
        listed = self._env.get("SLURM_JOB_NODELIST", "")
        found = self._ask("show", "hostnames", listed).split() if listed else []
        if not found:
            raise UsageError("SLURM_JOB_NODELIST is empty: this runs inside a Slurm job only.")
        return found

    def address(self) -> str:
        """Where other nodes reach this one: Slurm's NodeAddr, as a number."""
        said = re.search(r"\bNodeAddr=(\S+)", self._ask("show", "node", self.node, "-o"))
        name = said.group(1) if said else self.node
        try:
            return str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
        except OSError as error:
            raise TimedOut(f"the address of {name} cannot be found ({error.strerror})") from None

    def state(self, name: str) -> str:
        """What Slurm says of a node, such as `IDLE` or `DOWN*`."""
        said = re.search(r"\bState=(\S+)", self._ask("show", "node", name, "-o"))
        return said.group(1) if said else ""

    def _ask(self, *words: str) -> str:
        try:
            done = subprocess.run(
                ["scontrol", *words], capture_output=True, text=True, timeout=ANSWER_WITHIN_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise TimedOut(f"scontrol does not answer ({type(error).__name__})") from None
        if done.returncode:
            raise TimedOut(f"scontrol {' '.join(words)}: {done.stderr.strip()[:300]}")
        return done.stdout
