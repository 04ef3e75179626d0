"""The hostile world, in which hosts have names to lose: reboots are refused while the former self counts as
heard, and strangers want the names.

A stranger never starts anything: if it gets a name, which it may only where no worker may live, it falls
silent, and the host comes back.
"""

from __future__ import annotations

from collections.abc import Callable

from hosts import Host
from world import ACTIONS, SECOND_NS, WEIGHTS, World

from torchloom.model.effects import Effect
from torchloom.model.events import Envelope, NodeJoined, NodeUnreachable
from torchloom.model.fleet import NodeState
from torchloom.model.node import Inventory
from torchloom.model.worker import WorkerRef


class NamedHost(Host):
    """A host that knows its installation, and obeys only what is meant for its present agent."""

    def __init__(
        self, node: str, slots: int, on_start: Callable[[WorkerRef], None], holder: Callable[[str], str]
    ) -> None:
        super().__init__(node, slots, on_start)
        self.home = f"home of {node}"
        self._sessions = self._names = 1000  # those of the nameless host before it were said already
        self._holder = holder
        self.rebooted_ns = 0

    @property
    def holds(self) -> bool:
        return self.session is not None and self._holder(self.node) == self.session.name

    def obey(self, effect: Effect, die_after: int | None = None) -> None:
        if self.holds:
            super().obey(effect, die_after)


class NamingWorld(World):
    def __init__(self) -> None:
        super().__init__()
        self.hosts = [
            NamedHost(host.node, host.slots, self._may_start, lambda node: self.fleet.nodes[node].session)
            for host in self.hosts
        ]
        self._strangers = 0
        for host in self.hosts:
            host.start_agent()
            self._flush(host)
            assert self.named(host).holds

    @staticmethod
    def named(host: Host) -> NamedHost:
        assert isinstance(host, NamedHost)
        return host

    def reboot(self, number: int) -> None:
        super().reboot(number)
        self.named(self.host(number)).rebooted_ns = self.now_ns

    def stranger(self, number: int) -> None:
        """Another host wants a name; it does not while its owner is heard, or workers may live there."""
        self._strangers += 1
        name = f"stranger-{self._strangers if number % 2 else 0}"
        host = self.host(number // 2)
        node = self.fleet.nodes[host.node]
        before = (node.session, node.state, node.taken)
        inventory = Inventory(hostname=name, address="x", boot_id=name, home=name, max_workers=0)
        event = NodeJoined(node=host.node, session=f"{name}.{self._strangers}", inventory=inventory)
        self.append(Envelope(f"claim-{self._strangers}", f"agent/{host.node}", event, session=event.session))
        got = self.fleet.nodes[host.node].session == event.session
        own = before[0].startswith("s") and not before[0].startswith("stranger")
        kept = before[1] is NodeState.READY or (before[2] and before[1] is not NodeState.GONE)
        assert not (got and own and kept), f"a stranger got the name of {host.node} though it was {before}"

    def bring_home(self, host: NamedHost) -> None:
        """Whoever has the host's name is found to be silent, as it is, and the host joins again."""
        self._flush(host)
        if host.session is not None and not host.holds:
            silent_s = max(3.5, (self.now_ns - host.rebooted_ns) / SECOND_NS)
            self.say(NodeUnreachable(node=host.node, silent_s=silent_s, unheard_s=silent_s))
            host.join()
            self._flush(host)
            assert host.holds, f"{host.node} is kept from its own name"

    def good_start(self, number: int) -> None:
        for host in self.hosts:
            if host.session is None:
                host.start_agent()
            self.bring_home(self.named(host))
        super().good_start(number)

    def calm(self, rounds: int = 80) -> None:
        self.good_start(0)
        super().calm(rounds)


NAMING_ACTIONS: dict[str, Callable[[NamingWorld, int], None]] = {
    **ACTIONS,
    "reboot": NamingWorld.reboot,
    "good start": NamingWorld.good_start,
    "stranger": NamingWorld.stranger,
}
NAMING_WEIGHTS = {**WEIGHTS, "stranger": 4, "reboot": 3, "silence": 3, "gone": 2}
