"""Changes in real workers: the same step on all ranks, told by the workers' own logs of what they used."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest
from stack import wait_until
from steered import HERE, Start, lands, used

from torchloom.model.transaction.config import Entry
from torchloom.model.transaction.messages import Kind
from torchloom.model.transaction.operation import How
from torchloom.wire.blackbox import Progress, WorkerPhase

# -- an unmodified script --------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["plain", "ddp", "apart"])
def test_a_learning_rate_lands_on_one_step(start: Start, case: str) -> None:
    job = start(case)
    job.reach(3)
    told = job.change({"lr": 0.5})
    assert told.how is How.APPLIED, told
    assert told.reason == f"applied at step {told.at_step} on all ranks"
    job.more(3)
    lands(job, "optimizer0.lr@0", told.at_step, 0.5)
    before = told.changed[0][0]
    assert before == ("optimizer0.lr@0", 0.01, 0.5)
    for rank in range(2):  # the script logs its param groups after each step
        seen = {step: line["seen"]["optimizer0.lr@0"] for step, line in job.values(rank).items()}
        assert all(lr == (0.5 if step >= told.at_step else 0.01) for step, lr in seen.items())
    held = {"value": 0.5, "mode": "hold", "own": 0.01}
    assert job.settings()["held"]["optimizer0.lr@0"].items() >= held.items()
    unwritten = held | {"stays": True}  # found out at the next step, written with a later look
    wait_until(lambda: job.settings()["held"]["optimizer0.lr@0"] == unwritten, "known as never written")


def test_one_group_one_optimizer_and_several_values_at_once(start: Start) -> None:
    job = start("plain")
    job.reach(3)
    told = job.change({"lr@1": 0.3, "optimizer0.momentum@0": 0.5})
    assert told.how is How.APPLIED, told
    job.more(2)
    for rank in range(2):
        before, line = job.values(rank)[told.at_step - 1]["used"], job.values(rank)[told.at_step]["used"]
        assert (before["optimizer0.lr@1"], before["optimizer0.momentum@0"]) == (0.02, 0.9)
        assert (line["optimizer0.lr@0"], line["optimizer0.lr@1"]) == (0.01, 0.3)
        assert (line["optimizer0.momentum@0"], line["optimizer0.momentum@1"]) == (0.5, 0.9)


@pytest.mark.parametrize("case", ["lambda", "exponential", "onecycle", "hand", "tensor", "compiled", "zero"])
def test_a_schedule_of_the_scripts_own_goes_on_beneath(start: Start, case: str) -> None:
    """It sees its own value, as if nothing were held; scaled, the step uses a part of it; then it is back."""
    job = start(case)
    job.reach(3)
    held = job.change({"lr": 0.5})
    job.more(3)
    scaled = job.change({"lr": {"scale": 0.25}})
    job.more(3)
    back = job.change({"lr": {"own": True}})
    job.more(3)
    assert [o.how for o in (held, scaled, back)] == [How.APPLIED] * 3, job.story()
    place = "optimizer0.lr@0"
    for rank in range(2):
        lines = job.values(rank)
        for step, line in lines.items():
            own = line["seen"][place]
            factor = 0.25 if scaled.at_step <= step < back.at_step else 1.0
            wanted = 0.5 if held.at_step <= step < scaled.at_step else own * factor
            assert line["used"][place] == pytest.approx(wanted, rel=1e-5), (rank, step)
        steps = sorted(lines)
        if case in ("exponential", "tensor", "compiled", "zero", "lambda"):
            owns = [lines[step]["seen"][place] for step in steps]
            assert owns == [pytest.approx(0.01 * 0.999 ** (step - 1), rel=1e-4) for step in steps]
        assert len({lines[step]["seen"][place] for step in steps}) > 3, "the script's schedule stood still"


def test_a_grad_scaler_counts_updates(start: Start) -> None:
    job = start("scaler")
    job.reach(3)
    told = job.change({"lr": 0.5})
    job.more(2)
    lands(job, "optimizer0.lr@0", told.at_step, 0.5)


def test_two_optimizers_take_it_over_at_the_same_boundary(start: Start) -> None:
    job = start("two")
    job.reach(3)
    told = job.change({"lr": 0.5})
    one = job.change({"optimizer1.betas": [0.8, 0.9]})
    job.more(3)
    lands(job, "optimizer0.lr@0", told.at_step, 0.5)
    lands(job, "optimizer1.betas@0", one.at_step, [0.8, 0.9])
    for rank in range(2):
        assert [used(job, rank, "optimizer1.lr@0")[told.at_step + n] for n in (-1, 0)] == [0.02, 0.5]


def test_a_step_that_raised_leaves_no_trace(start: Start) -> None:
    job = start("raises", world=1, schedule=(Entry(1, 0, {"lr": 0.5}),))
    job.reach(8)
    lines = job.values()
    assert all(line["used"]["optimizer0.lr@0"] == 0.5 for line in lines.values())
    seen = [line["seen"]["optimizer0.lr@0"] for line in lines.values()]
    assert seen == [0.01] + [0.5] * (len(seen) - 1), "held from the start: watched for one step"
    job.change({"lr": {"own": True}})
    job.more(2)
    assert list(job.values().values())[-1]["seen"]["optimizer0.lr@0"] == 0.01


def test_what_makes_no_sense_is_refused_by_the_ranks(start: Start) -> None:
    job = start("plain")
    job.reach(2)
    told = job.change({"lerning_rate": 1.0})
    assert told.how is How.NOT_APPLIED and "there is no setting 'lerning_rate'" in told.reason
    told = job.change({"dropout": 0.2})  # by a handler, but in one phase
    assert "needs two phases" in told.reason
    assert "no loom.Checkpoint" in job.outcome(job.ask(Kind.CHECKPOINT, two_phase=True)).reason
    job.more(2)


# -- settings of the script's own ------------------------------------------------------------------


def test_handlers_are_called_on_all_ranks_before_one_step(start: Start) -> None:
    job = start("plain")
    job.reach(3)
    told = job.change(
        {"dropout": 0.3, "noise": {"scale": 2.0, "seed": 7}, "clip": 0.5, "lr": 0.2}, two_phase=True
    )
    assert told.how is How.APPLIED, told
    enum = job.change({"colour": "BLUE"}, two_phase=True)
    job.more(2)
    for rank in range(2):
        before, line = (job.values(rank)[told.at_step + n] for n in (-1, 0))
        assert (before["dropout"], before["noise"], before["clip"]) == (0.1, None, 1.0)
        assert (line["dropout"], line["noise"], line["clip"]) == (0.3, 2.0, 0.5)
        assert line["used"]["optimizer0.lr@0"] == 0.2
        assert [job.values(rank)[enum.at_step + n]["mode"] for n in (-1, 0)] == ["fast", "BLUE"]
    told_settings = {row["name"]: row for row in job.settings()["settings"]}
    assert told_settings["dropout"]["value"] == 0.3
    assert told_settings["dropout"]["description"] == "how much is left out"
    assert told_settings["colour"]["choices"] == ["RED", "BLUE"]
    assert told_settings["noise"]["optional"] and told_settings["noise"]["fields"][0]["name"] == "scale"
    assert job.views[0].progress(Progress.CONFIG_VERSION) == job.versions


def test_a_handler_that_fails_on_one_rank_is_undone_on_all(start: Start) -> None:
    job = start("plain")
    job.reach(3)
    told = job.change({"clip": 0.5, "dropout": 0.66, "lr": 0.7}, two_phase=True)
    assert told.how is How.NOT_APPLIED and "undone on every rank" in told.reason
    assert "ValueError: this rank does not like it" in told.trouble[1]
    assert "set_dropout" in told.trouble[1] and "torchloom" not in told.trouble[1].splitlines()[1]
    assert "rank 1 failed" in told.trouble[0]
    job.more(3)
    for rank in range(2):
        for line in job.values(rank).values():
            assert (line["dropout"], line["clip"], line["used"]["optimizer0.lr@0"]) == (0.1, 1.0, 0.01)
    assert job.views[0].progress(Progress.CONFIG_VERSION) == 0


# -- pause, resume, stop ---------------------------------------------------------------------------


def test_paused_ranks_stand_at_one_step_and_answer(start: Start) -> None:
    job = start("ddp")
    job.reach(3)
    told = job.outcome(job.ask(Kind.PAUSE))
    assert told.how is How.APPLIED
    job.until(lambda: {job.phase(0), job.phase(1)} == {WorkerPhase.PAUSED})
    assert [job.steps(0), job.steps(1)] == [told.at_step - 1] * 2
    began_ns = time.monotonic_ns()
    change = job.change({"lr": 0.5})
    assert (change.how, change.at_step) == (How.APPLIED, told.at_step)
    refused = job.outcome(job.ask(Kind.CHECKPOINT, two_phase=True))
    assert refused.how is How.NOT_APPLIED and "no loom.Checkpoint" in refused.reason
    assert [job.steps(0), job.steps(1)] == [told.at_step - 1] * 2
    stood_ns = time.monotonic_ns() - began_ns
    assert job.outcome(job.ask(Kind.RESUME)).at_step == told.at_step
    job.more(3)
    lands(job, "optimizer0.lr@0", told.at_step, 0.5)
    for before, after in pairwise(job.views[0].steps()):
        if after.seq == told.at_step:
            assert after.step_ns <= after.ended_ns - before.ended_ns - stood_ns, "a pause is no step"


def test_a_stop_ends_all_ranks_well_after_the_same_step(start: Start) -> None:
    job = start("apart")
    job.reach(3)
    told = job.outcome(job.ask(Kind.STOP))
    assert told.how is How.APPLIED
    assert job.wait_for_end() == [0, 0]
    assert [job.steps(0), job.steps(1)] == [told.at_step - 1] * 2
    assert job.end_record(0)["stopped"] is True


def test_a_script_that_ends_makes_nobody_wait(start: Start) -> None:
    job = start("apart", STEPS="60")
    job.reach(20)
    version = job.ask(Kind.SET, {"lr": 0.5}, at_step=61)
    assert job.wait_for_end() == [0, 0]
    assert job.outcome(version).how is How.NOT_APPLIED


# -- the schedule ----------------------------------------------------------------------------------

SCHEDULE = (
    Entry(1, 0, {"lr": 0.3}),
    Entry(2, 5, {"lr@1": {"scale": 2.0}, "dropout": 0.4}),
    Entry(3, 9, {"lr@1": {"own": True}}),
    Entry(4, 9, {"max_steps": 12}),
)


def test_a_new_generation_without_a_training_step_starts_with_the_newest(start: Start) -> None:
    job = start("plain", schedule=SCHEDULE)
    assert job.wait_for_end() == [0, 0]
    assert [job.steps(0), job.steps(1)] == [12, 12]
    for line in job.values().values():
        assert (line["used"]["optimizer0.lr@0"], line["used"]["optimizer0.lr@1"]) == (0.3, 0.02)
        assert line["dropout"] == 0.4
    assert job.end_record(0)["stopped"] is True


def test_a_restored_training_follows_its_schedule(start: Start, tmp_path: Path) -> None:
    job = start("checkpoint", schedule=SCHEDULE, CKPT=str(tmp_path / "ckpt"))
    assert job.wait_for_end() == [0, 0], job.story()
    lines = job.values()
    assert sorted(lines) == list(range(1, 13))
    assert {step for step, line in lines.items() if line["dropout"] == 0.4} == set(range(5, 13))
    assert all(line["used"]["optimizer0.lr@0"] == 0.3 for line in lines.values())


def test_an_older_change_that_lies_ahead_does_not_override_a_newer_one(start: Start, tmp_path: Path) -> None:
    """As after a crash: version 1 was applied at step 150, and version 2 is made before that comes again."""
    ahead = 150
    schedule = (Entry(1, ahead, {"lr": 0.1, "dropout": 0.4}),)
    job = start("checkpoint", schedule=schedule, CKPT=str(tmp_path / "ckpt"))
    job.versions = 1
    job.reach(3)
    told = job.change({"lr": 0.2})
    assert told.how is How.APPLIED and told.at_step < ahead, told
    job.reach(ahead + 3)
    for rank in range(2):
        lines = job.values(rank)
        for step in range(told.at_step, ahead + 3):
            assert lines[step]["used"]["optimizer0.lr@0"] == 0.2, (rank, step)
            assert (lines[step]["dropout"] == 0.4) == (step >= ahead), "what nobody decided anew still comes"


def test_max_steps_can_be_set_while_it_runs(start: Start) -> None:
    job = start("plain")
    job.reach(3)
    told = job.change({"max_steps": job.steps() + 50_000})
    assert told.how is How.APPLIED
    sooner = job.change({"max_steps": 1})
    assert job.wait_for_end() == [0, 0]
    assert job.steps(0) == job.steps(1) == sooner.at_step - 1


def test_batch_size_and_transforms_of_our_loaders_are_settings(start: Start) -> None:
    job = start("", script=HERE / "loaders.py")
    job.reach(3)
    job.until(lambda: job.settings() is not None)
    rows = {row["name"]: row for row in job.settings()["settings"]}
    assert (rows["batch_size"]["value"], rows["transforms"]["value"]) == (8, "double")
    told = job.change({"batch_size": 12, "transforms": "negate,double"}, two_phase=True)
    assert told.how is How.APPLIED, told
    refused = job.change({"transforms": "nothing"}, two_phase=True)
    assert "transforms has no 'nothing'" in refused.reason
    job.more(4)
    for rank in range(2):
        lines = job.values(rank)
        sizes = {step: (line["size"], line["negative"]) for step, line in lines.items()}
        # The batch of at_step was in the loop's hands already; from the next one on it holds.
        assert sizes[told.at_step] == (4, False), rank
        assert all(sizes[step] == (6, True) for step in sizes if step > told.at_step), (rank, sizes)


def test_the_example_of_local_sgd_changes_its_rhythm_on_all_ranks(start: Start, tmp_path: Path) -> None:
    """Ranks that averaged at different steps would wait for each other for ever."""
    script = Path(__file__).parents[2] / "examples" / "local_sgd.py"
    job = start("1000000", script=script, WEIGHTS=str(tmp_path / "weights"))
    job.reach(20)
    for value in (3, 16, 1):
        told = job.change({"sync_every": value, "outer_lr": 0.9}, two_phase=True)
        assert told.how is How.APPLIED, told
    assert job.change({"max_steps": job.steps() + 50}).how is How.APPLIED
    assert job.wait_for_end() == [0, 0], job.story()
