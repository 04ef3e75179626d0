"""Saving and going back on request in real workers, with the config that belongs to the state."""

from __future__ import annotations

import json
import re
from pathlib import Path

from steered import Job, Start

from torchloom.model.transaction.config import Entry
from torchloom.model.transaction.messages import Kind
from torchloom.model.transaction.operation import How, Outcome
from torchloom.wire.blackbox import HYPERPARAMETERS, WorkerPhase

LR = "optimizer0.lr@0"


def begin(start: Start, tmp_path: Path, **more: object) -> Job:
    return start("checkpoint", CKPT=str(tmp_path / "ckpt"), **more)


def save(job: Job) -> Outcome:
    """The ranks take the state and train on; whoever asked waits until it is written."""
    told = job.outcome(job.ask(Kind.CHECKPOINT, two_phase=True, vote_timeout_s=30.0))
    assert told.how is How.APPLIED, told
    job.until(
        lambda: f"step-{told.at_step + (told.offset or 0) - 1}.g{job.generation}" in saved(job.directory)
    )
    return told


def saved(tmp_path: Path) -> list[str]:
    return sorted(path.parent.name for path in (tmp_path / "ckpt").rglob("manifest.json"))


def test_a_checkpoint_on_request_is_of_one_step_and_whole(start: Start, tmp_path: Path) -> None:
    job = begin(start, tmp_path)
    job.reach(3)
    told = save(job)
    assert saved(tmp_path) == [f"step-{told.at_step - 1}.g1"]
    job.more(2)


def test_going_back_while_it_runs(start: Start, tmp_path: Path) -> None:
    job = begin(start, tmp_path)
    job.reach(3)
    first = job.change({"lr": 0.2, "dropout": 0.3}, two_phase=True)
    job.more(2)
    state = save(job).at_step - 1
    job.more(3)
    later = job.change({"lr": 0.4, "dropout": 0.5}, two_phase=True)
    job.more(3)
    told = job.outcome(job.ask(Kind.RESTORE, {"step": state}, two_phase=True, vote_timeout_s=30.0))
    assert told.how is How.APPLIED, f"{told}\n{job.story()}"
    assert told.offset == state + 1 - told.at_step, "it is told where the training goes on"
    ahead = later.at_step - state
    job.reach(told.at_step + ahead + 3)
    for rank in range(2):
        lines = job.values(rank)
        again = told.at_step  # the step of the process that makes training step state + 1 anew
        assert lines[again]["training"] == state + 1
        for n in range(ahead + 2):
            then, now = lines[state + 1 + n], lines[again + n]
            assert now["used"][LR] == then["used"][LR], (rank, n)
            assert now["dropout"] == then["dropout"], (rank, n)
            assert now["weight"] == then["weight"], f"rank {rank}: training step {state + 1 + n} differs"
    assert first.at_step < state < later.at_step


def test_going_back_may_give_the_later_values_up(start: Start, tmp_path: Path) -> None:
    job = begin(start, tmp_path)
    job.reach(3)
    state = save(job).at_step - 1
    job.more(2)
    job.change({"lr": 0.4, "dropout": 0.5}, two_phase=True)
    job.more(2)
    wish = {"step": state, "config": "revert"}
    told = job.outcome(job.ask(Kind.RESTORE, wish, two_phase=True, vote_timeout_s=30.0))
    assert told.how is How.APPLIED, told
    assert ("dropout", 0.5, 0.1) in told.changed[0]
    job.reach(told.at_step + 25)
    for rank in range(2):
        for step, line in job.values(rank).items():
            if step >= told.at_step:
                assert (line["used"][LR], line["dropout"]) == (0.01, 0.1), (rank, step)


def test_a_state_that_is_not_there_changes_nothing(start: Start, tmp_path: Path) -> None:
    job = begin(start, tmp_path)
    job.reach(3)
    told = job.outcome(job.ask(Kind.RESTORE, {"step": 777}, two_phase=True, vote_timeout_s=30.0))
    assert told.how is How.NOT_APPLIED
    assert "777" in told.reason or any("777" in text for text in told.trouble.values()), told
    reached = job.steps()
    job.more(3)
    trained = [line["training"] for line in job.values().values()]
    assert trained == list(range(1, len(trained) + 1)) and len(trained) > reached


def test_what_was_changed_is_there_again_after_a_restart(start: Start, tmp_path: Path) -> None:
    """Bit-identity in small: a generation that restores makes the same steps with the same values."""
    job = begin(start, tmp_path)
    job.reach(3)
    first = job.change({"lr": 0.2, "dropout": 0.3}, two_phase=True)
    state = save(job).at_step - 1
    later = job.change({"lr": {"scale": 3.0}}, two_phase=True)
    job.more(6)
    entries = [
        Entry(1, first.at_step, {"lr": 0.2, "dropout": 0.3}),
        Entry(3, later.at_step, {"lr": {"scale": 3.0}}),
    ]
    before = job.values()
    job.kill()
    again = begin(start, tmp_path, generation=2, schedule=tuple(entries))
    again.reach(later.at_step - state + 3)
    now = again.values()
    again_made = sorted(count for count in now if state + count in before)
    assert state + again_made[0] < later.at_step < state + again_made[-1], "from before a change to after it"
    for count in again_made:
        line, then = now[count], before[state + count]
        assert line["training"] == state + count
        assert (line["used"][LR], line["dropout"]) == (then["used"][LR], then["dropout"]), count
        assert line["weight"] == then["weight"], count


def standing(job: Job) -> int:
    """All ranks are paused after this many steps."""
    job.until(lambda: {job.phase(0), job.phase(1)} == {WorkerPhase.PAUSED})
    assert job.steps(0) == job.steps(1)
    return job.steps(0)


def test_a_paused_job_saves_is_changed_and_goes_back_and_stands_all_the_while(
    start: Start, tmp_path: Path
) -> None:
    job = begin(start, tmp_path)
    job.reach(3)
    paused = job.outcome(job.ask(Kind.PAUSE)).at_step
    assert standing(job) == paused - 1
    first = save(job)
    state = first.at_step - 1
    assert (standing(job), saved(tmp_path)) == (state, [f"step-{paused}.g1"]), "the step it stood in was made"
    assert save(job).at_step == first.at_step and standing(job) == state, (
        "now it stands where a state is whole"
    )
    change = job.change({"lr": 0.2, "dropout": 0.3}, two_phase=True)
    assert (change.how, change.at_step, standing(job)) == (How.APPLIED, first.at_step, state)
    again = job.change({"lr": 0.25})
    assert (again.at_step, standing(job)) == (first.at_step, state)
    assert save(job).at_step == first.at_step + 1 and standing(job) == state + 1
    planned = job.ask(Kind.SET, {"lr": 0.4}, at_step=state + 300, training_step=state + 300)
    back = job.outcome(job.ask(Kind.RESTORE, {"step": state}, two_phase=True, vote_timeout_s=30.0))
    assert back.how is How.APPLIED and standing(job) == state + 1, f"{back}\n{job.story()}"
    assert job.outcome(job.ask(Kind.RESUME)).how is How.APPLIED
    job.reach(back.at_step + 3)
    done = job.outcome(planned)
    if done.how is How.APPLIED:
        assert done.at_step == back.at_step + 299, "the training step that was named"
    else:  # on a machine that stood still just before it
        assert re.search(r"past|tries\)|in time", done.reason), done
    for rank in range(2):
        lines = job.values(rank)
        then, now = lines[state + 1], lines[back.at_step]
        assert (now["training"], now["used"][LR]) == (state + 1, 0.25)
        assert (now["weight"], now["dropout"]) == (then["weight"], then["dropout"])


def test_a_generation_can_begin_paused(start: Start, tmp_path: Path) -> None:
    job = begin(start, tmp_path)
    job.reach(4)
    state = save(job).at_step - 1
    job.more(4)
    before = job.values()
    job.kill()
    job = begin(start, tmp_path, generation=2, LOOM_PAUSED="1")
    assert standing(job) == 0
    assert (
        json.loads(job.views[0].read_blob(HYPERPARAMETERS) or b"")["optimizers"][0]["groups"][0]["lr"] == 0.01
    )
    assert {row["name"] for row in job.settings()["settings"]} >= {"dropout", "max_steps"}
    resumed = job.outcome(job.ask(Kind.RESUME))
    assert (resumed.how, resumed.at_step, resumed.offset) == (How.APPLIED, 1, state)
    job.reach(3)
    for count, line in job.values().items():
        if state + count in before:
            assert line["weight"] == before[state + count]["weight"], count
