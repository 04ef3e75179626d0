"""Which nodes of an allocation are lost, by two witnesses: their agents are silent, and Slurm has them DOWN.

Runs beside the control service of an allocation (`allocation watch`). An agent that is silent proves nothing
by itself: the network between it and us may be cut. slurmctld reaches nodes on a way of its own, waits for
SlurmdTimeout, and ends what it finds on a node that comes back, so a node that both miss is given up, as an
operator would do with `loom node gone`.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

from torchloom.cli.places.slurm_nodes import Slurm
from torchloom.errors import LoomError, NotFound
from torchloom.model.ids import token_from

LOOK_EVERY_S = 2.0
ASK_EVERY_S = 10.0
"""slurmctld is asked only while a node of ours is silent, and not more often than that."""


def lost_nodes(nodes: Iterable[Mapping[str, Any]], states: Mapping[str, str]) -> list[str]:
    """Nodes that are unreachable and DOWN. `states`: node → its state as scontrol prints it."""
    silent = [str(node["id"]) for node in nodes if node["state"] == "unreachable"]
    return [name for name in silent if is_down(states.get(name, ""))]


def is_down(state: str) -> bool:
    """Whether a state such as `DOWN*+DRAIN` says that the node has been given up."""
    return "DOWN" in re.split(r"[+*~#!%$@^-]+", state.upper())


class SlurmWatch:
    def __init__(self, slurm: Slurm) -> None:
        self._slurm = slurm
        self._names = {token_from(name, "node"): name for name in slurm.nodes()}

    def run(self) -> None:
        """Until the process is ended."""
        said = ""
        while True:
            try:
                asked = self.look()
                said = ""
            except LoomError as error:
                if str(error) != said:
                    print(f"torchloom: {error}", file=sys.stderr)
                said, asked = str(error), True
            time.sleep(ASK_EVERY_S if asked else LOOK_EVERY_S)

    def look(self) -> bool:
        """One round; whether slurmctld was asked. Raises LoomError if somebody does not answer."""
        from torchloom.client import Client, Endpoint

        with Client(Endpoint.find()) as client:
            nodes = client.nodes()
            silent = [
                node["id"] for node in nodes if node["state"] == "unreachable" and node["id"] in self._names
            ]
            if not silent:
                return False
            states = {name: self._slurm.state(self._names[name]) for name in silent}
            for name in lost_nodes(nodes, states):
                print(f"torchloom: {name} is lost: silent, and {states[name]} in Slurm", file=sys.stderr)
                try:
                    client.node_gone(name)
                except NotFound:
                    continue
        return True
