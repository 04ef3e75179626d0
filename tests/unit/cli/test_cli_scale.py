"""`loom scale` saves first, asks again if ranks were too busy, and stops nothing without a save."""

from __future__ import annotations

from typing import Any

import pytest

from torchloom.cli.jobs import scale
from torchloom.cli.steer import outcome
from torchloom.errors import Conflict, JobFailed

BUSY = "ranks 1 did not answer in time (3 tries)"


class Service:
    """Answers as the API does; `saves` has one outcome for each request to save."""

    timeout_s = 0.0

    def __init__(self, *saves: str, checkpoint_step: int | None = 400, refused: str = "") -> None:
        self.saves, self.refused = list(saves), refused
        self.asked = 0
        self.job = {
            "id": "j",
            "state": "running",
            "world_size": 2,
            "step": 412,
            "checkpoint_step": checkpoint_step,
        }

    def summary(self, job: str) -> Any:
        return self.job

    def checkpoint_now(self, job: str, body: Any) -> Any:
        self.asked += 1
        if self.refused:
            raise Conflict(self.refused)
        return {"operation": f"save-{self.asked}"}

    def operation(self, job: str, operation: str, **how: Any) -> Any:
        state = self.saves[self.asked - 1]
        return {
            "id": operation,
            "job": job,
            "kind": "checkpoint",
            "state": "applied" if state == "saved" else "not applied",
            "ended": True,
            "reason": state,
            "raised": [1] if state == "raised" else [],
            "training_step": 413,
            "saved": "step-412.g1",
            "unsaved": "",
        }


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "AGAIN_AFTER_S", 0.0)
    monkeypatch.setattr(outcome, "LOOK_EVERY_S", 0.0)


def save(service: Service) -> None:
    scale._save(service, "j", 3, quiet=False)  # type: ignore[arg-type]


def test_ranks_that_were_too_busy_are_asked_again(capsys: pytest.CaptureFixture[str]) -> None:
    service = Service(BUSY, BUSY, "saved")
    save(service)
    assert service.asked == 3
    said = capsys.readouterr().err
    assert said.count(f"trying again: the checkpoint was not applied: {BUSY}") == 2


def test_without_a_save_it_is_not_scaled_and_the_loss_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "SAVED_WITHIN_S", -1.0)
    with pytest.raises(
        JobFailed, match=r"j was not scaled, because it could not be saved: .*in time"
    ) as failed:
        save(Service(BUSY))
    assert failed.value.hint == (
        "it keeps training at step 412; its newest checkpoint is of step 400, so 12 steps would be lost; "
        "--no-save scales it all the same"
    )
    with pytest.raises(JobFailed) as failed:
        save(Service(BUSY, checkpoint_step=None))
    assert "has no checkpoint yet, so all steps would be lost" in (failed.value.hint or "")


def test_a_rank_whose_save_failed_is_not_asked_again() -> None:
    service = Service("raised")
    with pytest.raises(JobFailed, match="was not scaled"):
        save(service)
    assert service.asked == 1


def test_a_script_that_saves_by_itself_is_scaled_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    service = Service(checkpoint_step=None, refused="Job j has reported no checkpoints")
    save(service)
    said = capsys.readouterr().err
    assert said == (
        "loom: no save before scaling: Job j has reported no checkpoints. "
        "It resumes from what the script itself has saved.\n"
    )


def test_a_job_with_checkpoints_whose_workers_do_not_listen_yet_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scale, "SAVED_WITHIN_S", -1.0)
    with pytest.raises(JobFailed, match="do not listen yet"):
        save(Service(refused="The workers of j do not listen yet"))


@pytest.mark.parametrize("change", [{"state": "stopping"}, {"world_size": 3}])
def test_what_does_not_run_or_has_that_size_is_not_saved(change: dict[str, Any]) -> None:
    service = Service()
    service.job |= change
    save(service)
    assert service.asked == 0
