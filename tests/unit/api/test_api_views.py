"""Fleet records as the API shows them."""

from __future__ import annotations

import json
import math

import pytest
from msgspec import structs

from torchloom.api.log_stream import format_id, parse_id
from torchloom.api.routes.prometheus import _family
from torchloom.api.views import jobs
from torchloom.api.views.devices import device_map
from torchloom.cli.show import output
from torchloom.model.checkpoints import CheckpointPlace, SavedCheckpoint
from torchloom.model.devices import Device
from torchloom.model.fleet import (
    Fleet,
    Job,
    JobCheckpoints,
    JobState,
    Node,
    NodeState,
    Restore,
    Worker,
    WorkerState,
)
from torchloom.model.incidents import Incident, Timeline
from torchloom.model.job import JobSpec, Program
from torchloom.model.messages import WorkerPulse
from torchloom.model.node import Inventory
from torchloom.model.worker import DeviceUse, Exit, WorkerRef

CPU = DeviceUse("cpu-n-0", "cpu")
S = 1_000_000_000


def worker(job: str, rank: int, state: WorkerState = WorkerState.RUNNING) -> Worker:
    return Worker(
        ref=WorkerRef(job, rank, 1, rank + 1),
        node="n",
        local_rank=rank,
        replica=0,
        state=state,
        pid=100 + rank,
        devices=(CPU,),
    )


def job(**changes: object) -> Job:
    spec = JobSpec(program=Program("script", "t.py"), cwd="/", workers_per_node=2, expected_steps=100)
    made = Job(id="j", spec=spec, by="me", state=JobState.RUNNING, reason="", submitted_at_ns=0)
    made.started_at_ns, made.generation = 10 * S, 1
    made.workers = [worker("j", 0), worker("j", 1)]
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def pulse(
    rank: int, steps: int, step_s: float, training_step: int | None = None, idle_s: float = 0.0
) -> WorkerPulse:
    return WorkerPulse(
        ref=WorkerRef("j", rank, 1, rank + 1),
        pid=100 + rank,
        steps=steps,
        step_s=step_s,
        idle_s=idle_s,
        phase="training",
        phase_s=1.0,
        training_step=training_step,
    )


def test_progress_is_what_all_ranks_have_reached() -> None:
    made = job()
    view = jobs.job_summary(
        Fleet(jobs={"j": made}), made, {0: pulse(0, 50, 0.1), 1: pulse(1, 49, 0.2)}, 20 * S
    )
    assert (view.step, view.step_is_training, view.total_steps) == (49, False, 100)
    assert view.steps_per_s == 5.0 and view.eta_s == 51 / 5.0
    assert view.elapsed_s == 10.0 and view.goodput == 1.0


def test_how_far_an_ended_job_came_is_known_without_its_pulses() -> None:
    made = job(state=JobState.COMPLETED)
    for one in made.workers:
        one.state, one.steps, one.training_step = WorkerState.EXITED, 20, 420
    view = jobs.job_summary(Fleet(jobs={"j": made}), made, {}, 20 * S)
    assert (view.step, view.step_is_training) == (420, True)


def test_a_job_in_which_nothing_moves_has_no_pace() -> None:
    made = job()

    def pace(*idle_s: float) -> float:
        pulses = {rank: pulse(rank, 50, 0.2, idle_s=s) for rank, s in enumerate(idle_s)}
        return jobs.job_summary(Fleet(jobs={"j": made}), made, pulses, 20 * S).steps_per_s

    assert pace(0.1, 0.1) == pace(30.0, 0.1) == pace(4.0, 4.0) == 5.0
    assert pace(6.0, 7.0) == 0.0


def test_a_running_job_names_what_is_wrong_with_it() -> None:
    made = job(reason="all 2 workers run", incidents=["j.1", "j.2"])
    past = Incident(id="j.1", job="j", generation=1, kind="crash", culprit=0, open=False)
    hang = Incident(id="j.2", job="j", generation=1, kind="hang", culprit=1)
    fleet = Fleet(jobs={"j": made}, incidents={"j.1": past, "j.2": hang})
    assert jobs.job_summary(fleet, made, {}, 20 * S).reason == "all 2 workers run; open: j.2 (hang, rank 1)"
    made.state = JobState.STOPPED
    assert jobs.job_summary(fleet, made, {}, 20 * S).reason == "all 2 workers run"


def test_the_scripts_own_number_wins() -> None:
    made = job()
    pulses = {0: pulse(0, 5, 0.1, 905), 1: pulse(1, 5, 0.1, 904)}
    view = jobs.job_summary(Fleet(jobs={"j": made}), made, pulses, 20 * S)
    assert (view.step, view.step_is_training) == (904, True)


@pytest.mark.parametrize(
    ("told", "shown", "gauge"),
    [
        ((0.5, 1.5), 1.0, "1"),
        ((float("nan"), 1.0), "nan", "NaN"),
        ((float("inf"), 1.0), "inf", "+Inf"),
        ((float("-inf"), 1.0), "-inf", "-Inf"),
        ((float("-inf"), float("inf")), "nan", "NaN"),
    ],
)
def test_a_loss_that_is_no_number_is_told_by_its_name(
    told: tuple[float, float], shown: float | str, gauge: str
) -> None:
    made = job()
    pulses = {
        rank: structs.replace(pulse(rank, 5, 0.1), metrics={"loss": loss, "accuracy": 0.5})
        for rank, loss in enumerate(told)
    }
    view = jobs.job_detail(Fleet(jobs={"j": made}), made, pulses, 20 * S)
    sent = json.loads(view.model_dump_json())
    assert sent["last_loss"] == shown == sent["replicas"][0]["last_loss"]
    assert output.number(sent["last_loss"]) == str(shown).removesuffix(".0")
    first = told[0]
    assert sent["workers"][0]["metrics"] == {
        "loss": first if math.isfinite(first) else str(first),
        "accuracy": 0.5,
    }
    assert list(_family("loss", "gauge", "it", [({}, float(sent["last_loss"]))]))[1] == f"loss {gauge}\n"


def test_no_loss_is_no_number_either() -> None:
    made = job()
    assert jobs.job_summary(Fleet(jobs={"j": made}), made, {0: pulse(0, 5, 0.1)}, 20 * S).last_loss is None
    assert output.number(None) == "–"


def test_an_open_incident_counts_against_goodput() -> None:
    made = job(incident="j.1", incidents=["j.1"], down_ns=1 * S)
    incident = Incident(id="j.1", job="j", generation=1, kind="crash", timeline=Timeline(fault_ns=19 * S))
    view = jobs.job_summary(Fleet(jobs={"j": made}, incidents={"j.1": incident}), made, {}, 20 * S)
    assert view.goodput == 0.8


def test_an_ended_job_shows_how_far_it_came() -> None:
    made = job(state=JobState.COMPLETED, ended_at_ns=15 * S)
    for each in made.workers:
        each.state, each.steps, each.exit = WorkerState.EXITED, 60, Exit(0, None, "spawner")
    view = jobs.job_detail(Fleet(jobs={"j": made}, seq=7), made, {}, 99 * S)
    assert view.step == 60 and view.elapsed_s == 5.0 and view.eta_s is None and view.seq == 7
    assert [w.exit for w in view.workers] == ["exited with code 0"] * 2


def test_the_device_map_goes_both_ways_and_forgets_the_dead() -> None:
    made = job()
    made.workers[1].state = WorkerState.EXITED
    inventory = Inventory(hostname="h", address="a", boot_id="b", max_workers=4, devices=(CPU,))
    node = Node(id="n", session="s", state=NodeState.READY, inventory=inventory, joined_at_ns=0)
    known = Device(id="cpu-n-0", kind="cpu", name="", node="n")
    found = device_map(Fleet(jobs={"j": made}, nodes={"n": node}, devices={"cpu-n-0": known}))
    assert [(one.device, one.state, one.health) for one in found.devices] == [("cpu-n-0", "available", "ok")]
    assert [user.worker for user in found.devices[0].workers] == ["j/rank-0"]
    assert found.devices[0].replicas == ["j/0"]
    assert [(w.worker, w.devices) for w in found.workers] == [("j/rank-0", ["cpu-n-0"])]
    node.taken = 1  # as core.lifecycle counts it
    assert jobs.node_view(Fleet(jobs={"j": made}), node, 0.5).workers == 1


def test_recovery_time_needs_both_ends() -> None:
    assert jobs.recovery_s(Timeline(fault_ns=S)) is None
    assert jobs.recovery_s(Timeline(fault_ns=S, first_step_ns=2 * S)) == 1.0
    assert jobs.recovery_s(Timeline(detected_ns=S, first_step_ns=3 * S)) == 2.0


def test_places_in_logs_survive_the_wire() -> None:
    assert parse_id(format_id({0: 12, 3: 4, 5: -100})) == {0: 12, 3: 4}
    assert parse_id("") == {}


def test_the_newest_checkpoint_and_a_restore_under_way_are_told() -> None:
    none = jobs.job_summary(Fleet(), job(), {}, 20 * S)
    assert (none.checkpoint_step, none.checkpoint_interval, none.restoring) == (None, None, None)
    saved = SavedCheckpoint(name="step-30.g1", step=30, interval=10)
    known = JobCheckpoints(place=CheckpointPlace("/store", "j"), node="n", saved=saved)
    restore = Restore(step=20, by="ann", after=1)
    told = jobs.job_summary(Fleet(), job(checkpoints=known, restore=restore), {}, 20 * S)
    assert (told.checkpoint_step, told.checkpoint_interval, told.restoring) == (30, 10, 20)
