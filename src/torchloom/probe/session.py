"""One probe in one process: makes the watchers, connects them, and silences them in forked children.

`begin(box)` makes the session `current`; everything of the probe that a script can meet asks for that one.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from torchloom.probe import agent_store, frameworks
from torchloom.probe.box import OwnBox, write_identity
from torchloom.probe.end_record import end_record, threads_go_on, write_end
from torchloom.probe.guard import Guard
from torchloom.probe.import_watch import Arrivals
from torchloom.probe.injected_faults import Faults
from torchloom.probe.observe import device
from torchloom.probe.observe.data_wait import DataWait
from torchloom.probe.observe.hyperparameters import Hyperparameters
from torchloom.probe.observe.import_report import ImportReport
from torchloom.probe.observe.joining import Joining
from torchloom.probe.observe.metrics import Metrics
from torchloom.probe.observe.optimizer_steps import continue_from
from torchloom.probe.observe.parameter_hashes import FIRST, ParameterHashes
from torchloom.probe.observe.phases import Compiling, Phases, keep_dynamo_out
from torchloom.probe.observe.steps import Optimizers, Steps
from torchloom.probe.steering.assembly import SteeringParts
from torchloom.probe.steering.declared import registry
from torchloom.probe.steering.mailbox import Inbox
from torchloom.probe.steering.stopping import Lost, StopAtBoundary, end_surely
from torchloom.probe.training_count import TrainingCount
from torchloom.wire.blackbox import (
    CHECKPOINTS,
    DEVICE,
    IDENTITY,
    ROLE,
    Header,
    Life,
    Progress,
    RecorderKind,
    View,
    WorkerPhase,
)

HOUSEKEEPING_NS = 100_000_000
"""How often, at most, what may change between steps without a hook is looked at."""
HOUSEKEEPING_SHARE = 500
"""…and it takes at most 1/HOUSEKEEPING_SHARE of the time."""
NEVER_NS = 2**63

current: Session | None = None
"""The session of this process; None outside torchloom and in forked children."""


class Session:
    """The probe of this process."""

    def __init__(self, box: OwnBox) -> None:
        view = box.view
        self.view: View = view
        self._address = box.address
        self.guard = Guard(lambda trips: view.set_progress(Progress.GUARD_TRIPS, trips))
        # What is observed.
        self.phases = Phases(view, time.monotonic_ns())
        self.data = DataWait(view, self.phases, self.guard)
        self.optimizers = Optimizers(view)
        self._hyper = Hyperparameters(view)
        self._metrics = Metrics(view)
        self._compiling = Compiling(self.phases, self.guard)
        self._joining = Joining(self.phases, self.guard)
        self._arrivals = Arrivals(self.guard)
        self._device: dict[str, Any] = {}
        self._imports = ImportReport(os.environ)
        self._report_imports = self.guard.wrap(self._imports.write)
        # What can be changed.
        steering = SteeringParts(view, self.phases, self.optimizers, os.environ, self.guard)
        self.hide_settings, self.show_settings = steering.hide, steering.show
        self._config, self._changes, self.control = steering.config, steering.changes, steering.control
        self._store_values, self.replicas = steering.store_values, steering.replicas
        self._ignored = 0
        faults = Faults(view, self.optimizers.living, steering.pacing)
        # The step, at whose boundary both happen.
        self._guard_parts()
        boundary = self._steering(self.control.boundary, outermost=False)
        self.steps = Steps(
            view,
            optimizers=self.optimizers,
            inbox=Inbox(view, faults, self.control, boundary),
            data=self.data,
            overrides=steering.overrides,
            began=self._training_begins,
            housekeeping=self.guard.wrap(self._keep_house, otherwise=NEVER_NS),
        )
        self._changes.count_steps_by(lambda: self.steps.completed)
        self._count = TrainingCount(view, self._changes, lambda: self.steps.completed, self._boundary_due)
        self.continue_after = self._count.continue_after
        self._look_at_parameters()
        registry.changed = self._declared
        if os.environ.get("LOOM_ROLE"):
            self.tell_role(os.environ["LOOM_ROLE"])

    def _guard_parts(self) -> None:
        """One by one: a param group we cannot read must not end the counting of steps."""
        guard, control = self.guard, self.control
        guard.is_armed = lambda: control.is_armed
        self._watch_device = guard.wrap(self._write_device)
        self._watch_compiling = guard.wrap(self._compiling.keep)
        self._watch_hyper = guard.wrap(self._write_hyper)
        self._watch_config = guard.wrap(self._config.write)
        self._watch_store = guard.wrap(self._report_ignored)
        self._count_on = guard.wrap(continue_from)
        self._count_last_steps = guard.wrap(lambda: self._count.catch_up())
        self._write_metrics = guard.wrap(self._metrics.write)
        self._leave = guard.wrap(control.leave)
        control.standing = self._watch_hyper
        control.enter_between = self._steering(control.between)
        # What the script calls.
        self.log = guard.wrap(self._log)
        self.tell_step = guard.wrap(self._tell_step)
        self.tell_training_step = self._steering(self._tell_training_step)
        self.tell_checkpoints = guard.wrap(self._tell_checkpoints)
        self.tell_role = guard.wrap(self._tell_role)
        self.enter_phase = guard.wrap(self._enter_phase)
        self.leave_phase = guard.wrap(self._leave_phase)
        self.identity = guard.wrap(self._identity)
        self.in_force = guard.wrap(self._in_force)
        self.script_writes = guard.wrap(self._script_writes)
        self.restored_writes = guard.wrap(self._restored_writes)
        self.end = guard.wrap(self._end)
        self.ended = guard.wrap(self._ended)

    def _look_at_parameters(self) -> None:
        """Whether they are finite, and with several ranks whether replicas are equal; unless it is off."""
        if os.environ.get("LOOM_PARAMETER_HASHES") == "0":
            return
        several = self.view.header(Header.WORLD_SIZE) > 1
        replicas = ParameterHashes(self.view, self._parameters_looked_at, compare=several)
        self.steps.hash_due = FIRST
        self.steps.look_at_replicas = self.guard.wrap(replicas.look, otherwise=NEVER_NS)

    def _parameters_looked_at(self, finite: bool, step: int) -> None:
        self._metrics.parameters(finite, step, time.monotonic_ns())

    def install(self) -> None:
        """Put the hooks into torch: now if it is imported, else when it is."""
        os.register_at_fork(after_in_child=self.guard.wrap(self._silence))
        self._watch_device()
        self._arrivals.expect("torch", self._torch_arrived)
        self._arrivals.expect("torch.distributed", self._joining.install)
        port = os.environ.get("MASTER_PORT", "")
        if port and os.environ.get(agent_store.VARIABLE) == "True":
            self._arrivals.expect(agent_store.RENDEZVOUS, lambda module: agent_store.only_at(port, module))
            self._arrivals.expect(
                "multiprocessing.spawn", lambda module: agent_store.tell_children(port, module)
            )
        self._arrivals.expect("torch.utils.data.dataloader", self.data.install)
        self._arrivals.expect("torch.distributed.checkpoint.state_dict", self.steps.ignore_initial_steps)
        self._arrivals.expect("torch._dynamo.callback", self._compiling.install)
        for module, integration in frameworks.ARRIVALS.items():
            self._arrivals.expect(module, frameworks.activation(integration))

    def _torch_arrived(self, torch: ModuleType) -> None:
        optim = importlib.import_module("torch.optim.optimizer")
        # All guarded entries of a kind share one code object, so one mark covers them.
        for kind in (self.guard.wrap, self.guard.wrap_steering):
            self.guard.wrap(keep_dynamo_out)(kind(keep_dynamo_out))
        self.steps.install(optim, torch.compiler.is_compiling, self.guard)
        self.guard.wrap(self._start_recorder)()

    def _start_recorder(self) -> None:
        from torchloom.probe.observe import recorder

        recorder.load()
        started = recorder.start(self.view, self._address)
        if started.kind is RecorderKind.PYTHON:
            self.steps.step_ended = self.guard.wrap(started.step_ended)

    def _silence(self) -> None:
        """In a forked child: it is somebody else, and the box is not its own."""
        global current
        current = None
        self.guard.off = True
        self.steps.remove()
        self.data.remove()
        self._joining.remove()
        self._arrivals.forget()

    # -- what the hooks call --------------------------------------------------------------------
    def _training_begins(self, now_ns: int) -> None:
        """The first step is next. If the script has reported no step, a state that it loaded may know."""
        self.phases.training_began(now_ns)
        if not self._count.is_known:
            self._count_on(self._count.continue_after, self.optimizers.anchor())

    def _keep_house(self, completed: int, now_ns: int) -> int:
        """Look at what may have changed; returns when to do so again."""
        began_ns = time.thread_time_ns()
        self._watch_device()
        self._watch_compiling()
        self._write_metrics(now_ns)
        self._count.catch_up()
        if self._imports.is_due:
            self._report_imports()
        self._watch_hyper()
        if self._store_values.ignored != self._ignored:
            self._watch_store()
        if self.steps.overrides.busy:
            self._watch_config()
        # A thousand param groups take milliseconds to look at: then it is done less often.
        spent_ns = time.thread_time_ns() - began_ns
        return now_ns + max(HOUSEKEEPING_NS, HOUSEKEEPING_SHARE * spent_ns)

    def _write_hyper(self) -> None:
        self._hyper.write_changed(self.optimizers.by_number(), self.steps.completed, self._config.held())

    def _steering(self, entry: Callable[..., None], *, outermost: bool = True) -> Callable[..., None]:
        """Guarded by itself, so that a failure of it does not end the counting of steps; and a worker that
        must end does."""
        guarded = self.guard.wrap_steering(entry, outermost=outermost)

        def steer(number: Any) -> None:
            try:
                guarded(number)
            except Lost as lost:
                end_surely(self.view, lost)
                raise

        return steer

    def _report_ignored(self) -> None:
        """Count what others wrote into the job's store; report the first such value in one line."""
        first, self._ignored = not self._ignored, self._store_values.ignored
        self.view.set_progress(Progress.STORE_VALUES_IGNORED, self._ignored)
        self._metrics.log({"store_values_ignored": self._ignored}, self.steps.completed, time.monotonic_ns())
        if first:
            where = self._store_values.where.encode("ascii", "backslashreplace").decode()
            what = f"ignored a value in the job's store that no rank of this job wrote ({where})"
            why = "another process writes into the store on this job's port, see docs/security.md"
            print(f"torchloom: {what}: {why}", file=sys.stderr, flush=True)

    def _declared(self) -> None:
        """The script has declared another setting: report it, and apply the schedule to it."""
        self._changes.dirty = True
        self._boundary_due()

    def _boundary_due(self) -> None:
        self.control.due = 0

    def _write_device(self) -> None:
        described = device.describe()
        if described != self._device:
            self._device = described
            self.view.write_blob(DEVICE, json.dumps(described).encode()[: DEVICE.capacity])

    # -- what the script calls ------------------------------------------------------------------
    @property
    def is_finite(self) -> bool:
        return self._metrics.is_finite

    def _log(self, metrics: Mapping[str, object]) -> None:
        self._metrics.log(metrics, self.steps.completed, time.monotonic_ns())

    def _tell_step(self, number: Any, total: Any) -> None:
        self._count.by_script(number)
        if total is not None and int(total) >= 0:
            self.view.set_progress(Progress.TOTAL_STEPS, int(total))
        self.view.set_progress(Progress.LAST_ACTIVITY_NS, time.monotonic_ns())

    def _tell_training_step(self, number: Any) -> None:
        self._count.by_checkpoint(number)

    def _tell_checkpoints(self, told: Mapping[str, object]) -> None:
        self.view.write_blob(CHECKPOINTS, json.dumps(told).encode())

    def _tell_role(self, name: object) -> None:
        self.view.write_blob(ROLE, str(name).encode()[: ROLE.capacity])

    def _enter_phase(self, name: object) -> int | None:
        if threading.get_ident() != self.data.thread:
            return None
        return self.phases.enter_named(str(name), time.monotonic_ns())

    def _leave_phase(self, before: int) -> None:
        self.phases.leave_named(before, time.monotonic_ns())

    def _identity(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.view.read_blob(IDENTITY) or b"{}")
        header = {
            name.lower(): self.view.header(Header[name])
            for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GENERATION", "INCARNATION")
        }
        return {**header, **told}

    def _in_force(self, optimizer: Any, name: str, group: int) -> Any:
        """None if nothing of ours is known about it."""
        number = self.optimizers.number_of(optimizer)
        return None if number is None else self.steps.overrides.in_force(number, optimizer, name, group)

    def _script_writes(self, optimizer: Any) -> dict[str, Any] | None:
        """What is known of the script's writes to this optimizer's groups."""
        number = self.optimizers.number_of(optimizer)
        return None if number is None else self.steps.overrides.record(number, optimizer)

    def _restored_writes(self, optimizer: Any, told: Mapping[str, Any]) -> None:
        stepped = self.optimizers.number_of(optimizer) is not None
        self.steps.overrides.restore(optimizer, told, stepped=stepped)

    # -- what a framework's training loop calls (torchloom.integrations) --------------------------
    def attach_trainer(self, trainer: Any) -> bool:
        """Steer this loop; False if another callback of its trainer has it. An earlier trainer's is over."""
        trains = self._changes.checkpoints.trainer
        if trains is not None and trains is not trainer and trains.is_of(trainer.owner):
            return False
        self._changes.checkpoints.trainer = trainer
        return True

    def detach_trainer(self, trainer: Any) -> None:
        if self._changes.checkpoints.trainer is trainer:
            self._changes.checkpoints.trainer = None

    @property
    def trains_with(self) -> str:
        """The framework whose trainer trains here now; empty: none."""
        trainer = self._changes.checkpoints.trainer
        return "" if trainer is None else str(trainer.framework)

    @property
    def is_over(self) -> bool:
        """Whether the last step that `max_steps` allows is behind."""
        return self._changes.is_over(self.steps.completed)

    def training_step(self) -> int:
        """The training step that was completed last."""
        return self._count.now

    def held_value(self, name: str, own: float) -> object:
        """The value of `name` in the first group of the first optimizer that steps use, if the script itself
        has `own` there."""
        found = self._config.held().get(f"optimizer0.{name}@0")
        if found is None:
            return own
        return own * found.factor if found.factor is not None else found.value

    # -- the end --------------------------------------------------------------------------------
    def _end(self, error: BaseException | None) -> None:
        """The program has ended; threads and atexit handlers are still to come."""
        self._leave()
        self._count_last_steps()
        self.replicas.ends(error)
        if self._store_values.ignored != self._ignored:
            self._watch_store()
        record = end_record(error, stopped=isinstance(error, StopAtBoundary))
        record["certain"] = not threads_go_on()
        write_end(self.view, record)
        self.phases.set(int(WorkerPhase.ENDING), now_ns := time.monotonic_ns())
        self._watch_hyper()
        self._metrics.write(now_ns, at_once=True)

    def _ended(self) -> None:
        """The interpreter ends."""
        self._leave()
        self.view.set_header(Header.LIFE, Life.ENDED)
        _let_collectives_release_their_tensors()


def _let_collectives_release_their_tensors() -> None:
    """Give gloo's threads the interpreter lock once more.

    They drop the tensors of a collective after its `wait()` returned. If the process group was not destroyed
    and a thread needs the lock for this while the interpreter is finalized, the process aborts (PyTorch
    #38228), and a program that had ended well counts as crashed.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        time.sleep(0.01)


def begin(box: OwnBox) -> Session | None:
    """Start the probe on a mapped box. None when it could not be made: then there is no telemetry."""
    global current
    if current is None:
        made = Guard(lambda trips: None).wrap(_make)(box)
        current = made if isinstance(made, Session) else None
    return current


def _make(box: OwnBox) -> Session:
    write_identity(box.view)
    session = Session(box)
    session.install()
    return session
