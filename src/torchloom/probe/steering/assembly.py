"""Everything that can change this worker, put together: what holds, what is carried out, and who talks."""

from __future__ import annotations

from collections.abc import Mapping

from torchloom.probe.guard import Guard
from torchloom.probe.links.delay_matrix import Links
from torchloom.probe.links.pacing import Pacing, spared_ports
from torchloom.probe.observe.phases import Phases
from torchloom.probe.observe.steps import Optimizers
from torchloom.probe.steering.changes import Changes
from torchloom.probe.steering.config import Config
from torchloom.probe.steering.control import BoundaryControl
from torchloom.probe.steering.data_settings import DataSettings
from torchloom.probe.steering.declared import registry
from torchloom.probe.steering.overrides import Overrides
from torchloom.probe.steering.registers import Registers
from torchloom.probe.steering.replica_steering import ReplicaSteering
from torchloom.probe.steering.saving import ScriptCheckpoint
from torchloom.probe.steering.schedulers import Schedulers
from torchloom.wire import store_values
from torchloom.wire.blackbox import STORE_SECRET, Header, View


class SteeringParts:
    """The parts, each handed those before it."""

    def __init__(
        self,
        view: View,
        phases: Phases,
        optimizers: Optimizers,
        environ: Mapping[str, str],
        guard: Guard,
    ) -> None:
        rank, world = view.header(Header.RANK), max(1, view.header(Header.WORLD_SIZE))
        secret = (view.read_blob(STORE_SECRET) or b"").decode("utf-8", "replace")
        self.store_values = store_values.begin(secret) if secret else store_values.current
        registers = Registers(environ, self.store_values)
        overrides = self.overrides = Overrides(environ.get("LOOM_UNWRITTEN", ""))
        self.hide, self.show = guard.wrap(overrides.hide), guard.wrap(overrides.show)
        overrides.stayed = guard.wrap(Schedulers(self.hide, self.show).wrap)
        # While something is held an optimizer gets its number before its first step, else after it.
        optimizers.arrived = lambda optimizer: overrides.meet(optimizer, ended=not overrides.busy)
        config = self.config = Config(view, self.overrides, registry, optimizers.numbered)
        self.pacing = Pacing(registers, view.header(Header.GENERATION), rank, spared_ports(environ))
        links = Links(registers, environ, rank, world, self.pacing.rate)
        checkpoints = ScriptCheckpoint(view, lambda: config.version)
        self.changes = Changes(config, checkpoints, DataSettings(registry), links)
        self.control = BoundaryControl(view, phases, self.changes, registers)
        self.replicas = ReplicaSteering(self.changes, self.control)
        self.control.anchor = optimizers.anchor_name
        self.control.begins_paused = environ.get("LOOM_PAUSED") == "1"
