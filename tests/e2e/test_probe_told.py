"""What the probe tells in the black box: steps, waits, hyperparameters, phases, and what the script says."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from probed import ENVIRONMENT, Warm, blob, cold, new_box, plain_python, wait_for

from torchloom.wire.blackbox import (
    ANSWER_AT,
    DEVICE,
    END,
    HYPERPARAMETERS,
    MAILBOX_AT,
    METRICS,
    PHASE_NAME,
    Header,
    Mailbox,
    MailboxCommand,
    Progress,
    WorkerPhase,
)


@pytest.mark.parametrize(
    ("scenario", "steps", "others", "optimizers"),
    [
        ("plain", 5, 0, 1),
        ("accumulation", 3, 0, 1),
        ("zero", 4, 0, 1),
        ("nested_in_a_subclass", 3, 0, 1),
        ("two", 10, 2, 2),
        ("grad_scaler", 4, 0, 1),
        ("lbfgs", 2, 0, 1),
        ("a_step_that_raises", 1, 4, 2),
        ("anchor_collected", 4, 0, 1),
        ("replaced_arguments", 3, 0, 1),
        ("threads", 301, 300, 2),
        ("fork", 2, 0, 1),
    ],
)
def test_steps_are_the_anchors_outermost(
    scenario: str, steps: int, others: int, optimizers: int, box: Path, warm: Warm
) -> None:
    view = new_box(box)
    outcome = warm({"script": "optimizers.py", "argv": [scenario], "box": str(box)})
    assert (outcome.code, outcome.err) == (0, "")
    assert view.progress(Progress.STEPS) == steps
    assert view.progress(Progress.OTHER_STEPS) == others
    assert view.progress(Progress.OPTIMIZERS) == optimizers
    assert view.progress(Progress.GUARD_TRIPS) == 0
    records = list(view.steps())
    assert [record.seq for record in records] == list(range(max(1, steps - 255), steps + 1))
    assert all(a.ended_ns < b.ended_ns and b.step_ns > 0 for a, b in pairwise(records))
    assert view.progress(Progress.STEP_ENDED_NS) == records[-1].ended_ns


def test_a_cold_worker_gets_its_hooks_when_torch_arrives(box: Path) -> None:
    view = new_box(box)
    outcome = cold({"script": "optimizers.py", "argv": ["plain"], "box": str(box)})
    assert outcome == (0, "", "")
    assert view.progress(Progress.STEPS) == 5
    assert view.progress(Progress.GUARD_TRIPS) == 0
    assert view.progress(Progress.FIRST_STEP_NS) > view.header(Header.MONOTONIC_NS)
    assert blob(view, DEVICE) == {"kind": "cpu", "cores": sorted(os.sched_getaffinity(0))}


@pytest.mark.parametrize(
    ("scenario", "naps"), [("single", 8), ("forked", 1), ("nested", 16), ("prefetching_thread", 0)]
)
def test_data_wait_is_the_outermost_on_the_training_thread(
    scenario: str, naps: int, box: Path, warm: Warm
) -> None:
    view = new_box(box)
    outcome = warm({"script": "loaders.py", "argv": [scenario], "box": str(box)})
    assert outcome == (0, "", "")
    waited_s = view.progress(Progress.DATA_WAIT_NS) / 1e9
    assert waited_s >= naps * 0.02
    life_s = (blob(view, END)["at_ns"] - view.header(Header.MONOTONIC_NS)) / 1e9
    assert waited_s <= life_s - (0.16 if scenario == "prefetching_thread" else 0)
    in_steps_s = sum(step.data_wait_ns for step in view.steps()) / 1e9
    assert 0 < in_steps_s <= waited_s


def test_hyperparameters_follow_the_schedule(box: Path, warm: Warm) -> None:
    view = new_box(box)
    outcome = warm({"script": "optimizers.py", "argv": ["scheduler"], "box": str(box)})
    assert outcome == (0, "[0.5, 0.25]\n[0.25, 0.125]\n[0.125, 0.0625]\n", "")
    told = blob(view, HYPERPARAMETERS)
    (optimizer,) = told["optimizers"]
    assert optimizer["name"] == "SGD" and optimizer["anchor"]
    assert [group["lr"] for group in optimizer["groups"]] == [0.125, 0.0625]
    assert [group["parameters"] for group in optimizer["groups"]] == [1, 1]


def test_hyperparameters_stay_within_their_place(box: Path, warm: Warm) -> None:
    view = new_box(box)
    assert warm({"script": "optimizers.py", "argv": ["many_groups"], "box": str(box)}).code == 0
    told = blob(view, HYPERPARAMETERS)
    kept = len(told["optimizers"][0]["groups"])
    assert kept > 10 and kept + told["left_out"] == 500
    assert view.progress(Progress.GUARD_TRIPS) == 0


def test_a_compiled_step_works_and_counts_where_the_graph_breaks_anyway(box: Path, warm: Warm) -> None:
    view = new_box(box)
    outcome = warm({"script": "optimizers.py", "argv": ["compiled"], "box": str(box)})
    assert (outcome.code, outcome.out) == (0, ""), outcome.err
    assert view.progress(Progress.STEPS) == 4
    assert view.progress(Progress.OTHER_STEPS) == 0
    assert view.progress(Progress.GUARD_TRIPS) == 0


def test_compiling_is_a_phase_of_its_own(box: Path, warm: Warm) -> None:
    new_box(box)
    spec = {"script": "optimizers.py", "argv": ["compiling"], "box": str(box)}
    phases = [
        WorkerPhase.STARTING,
        WorkerPhase.COMPILING,
        WorkerPhase.STARTING,
        WorkerPhase.TRAINING,
        WorkerPhase.COMPILING,
        WorkerPhase.TRAINING,
    ]
    expected = (0, "".join(f"{phase:d}\n" for phase in phases), "")
    assert warm(spec) == expected
    new_box(box)
    assert cold(spec) == expected


@pytest.mark.parametrize(("at_step", "completed"), [(4, 3), (1, 0), (0, 0)])
def test_stop_ends_the_script_before_the_named_step(
    at_step: int, completed: int, box: Path, warm: Warm
) -> None:
    view = new_box(box)
    view.words[MAILBOX_AT // 8 + Mailbox.COMMAND] = MailboxCommand.STOP
    view.words[MAILBOX_AT // 8 + Mailbox.AT_STEP] = at_step
    view.words[MAILBOX_AT // 8 + Mailbox.VERSION] = 7
    outcome = warm({"script": "optimizers.py", "argv": ["stop"], "box": str(box)})
    assert outcome == (0, "".join(f"{n}\n" for n in range(1, completed + 1)) + "cleaned up\n", "")
    assert list(view.words[ANSWER_AT // 8 : ANSWER_AT // 8 + 2]) == [7, completed]
    assert view.progress(Progress.STEPS) == completed
    assert blob(view, END)["stopped"] is True


def test_stop_reaches_a_running_script(box: Path, warm: Warm) -> None:
    view = new_box(box)
    logs = warm.order({"script": "optimizers.py", "argv": ["stop"], "box": str(box)})
    wait_for(lambda: view.progress(Progress.STEPS) > 20)
    view.words[MAILBOX_AT // 8 + Mailbox.COMMAND] = MailboxCommand.STOP
    view.words[MAILBOX_AT // 8 + Mailbox.VERSION] = 1
    outcome = warm.outcome(logs)
    assert outcome.code == 0 and outcome.out.endswith("cleaned up\n")
    assert view.words[ANSWER_AT // 8] == 1
    assert view.words[ANSWER_AT // 8 + 1] == view.progress(Progress.STEPS) >= 20


def test_the_public_api_tells_the_box(box: Path, warm: Warm) -> None:
    view = new_box(box)
    outcome = warm({"script": "tells.py", "argv": ["in phase"], "box": str(box)})
    assert outcome == (0, "True True\n", "")
    values = blob(view, METRICS)["values"]
    assert values["loss"] == 0.5 and values["nan"] == "NaN" and values["flag"] is True
    assert values["text"] == "a" * 200 and values["none"] is None
    assert [values[name] for name in ("big", "far", "odd", "broken")] == [None] * 4
    assert view.progress(Progress.TRAINING_STEP) == 42
    assert view.progress(Progress.TOTAL_STEPS) == 100
    assert view.progress(Progress.GUARD_TRIPS) == 1  # loom.step("not a number")
    assert set((view.read_blob(PHASE_NAME) or b"").decode()) == {"é"}


def test_without_torchloom_around_it_the_script_is_the_same() -> None:
    assert plain_python("tells.py") == (0, "False False\n", "")


def test_attach_records_into_the_box_it_is_given(box: Path) -> None:
    view = new_box(box)
    code = "import torchloom as loom; print(loom.attach(), loom.info()); loom.step(1)"
    environment = {**ENVIRONMENT, "LOOM_BOX": str(box)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.startswith("True Info(job='j1', replica='j1/0', rank=1,") and not done.stderr
    assert view.progress(Progress.TRAINING_STEP) == 2
    # The box now belongs to that process: another one is refused.
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout == "False None\n"
