"""A framework's training loop as the probe sees it: what can be asked of it, and how a refusal reads."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchloom.integrations.training_loop import TrainingLoop
from torchloom.model.transaction.messages import AttemptId, Kind, Proposal
from torchloom.probe.box import OwnBox
from torchloom.probe.session import Session
from torchloom.probe.steering.saving import HELD
from torchloom.wire.blackbox import SIZE, View

SAVE = Proposal(AttemptId(1, 1, 1), Kind.CHECKPOINT, {})


class Trainer:
    """What a loop belongs to."""


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.delenv("LOOM_CHECKPOINT_DIR", raising=False)
    monkeypatch.delitem(sys.modules, "torchloom.checkpoint.live", raising=False)  # no other test's Checkpoint
    made = Session(OwnBox(View(memoryview(bytearray(SIZE))), 0))
    trainer = Trainer()
    assert made.attach_trainer(TrainingLoop(made, "lightning", str(tmp_path), trainer))
    yield made
    assert made.guard.errors == []


def test_a_paused_trainer_refuses_to_save_before_any_rank_tries(session: Session) -> None:
    assert session._changes.problem(SAVE, 0, held=True) == HELD
    assert session._changes.problem(SAVE, 0, held=False) == ""


def test_an_error_of_ours_reads_as_its_sentence_and_not_as_a_traceback(session: Session) -> None:
    trouble, changed = session._changes.run(SAVE, 0, held=True)
    assert (trouble, changed) == (HELD, ())


def test_a_second_callback_of_a_trainer_stays_idle_and_another_trainer_takes_over(
    session: Session, tmp_path: Path
) -> None:
    first = session._changes.checkpoints.trainer
    assert not session.attach_trainer(TrainingLoop(session, "lightning", str(tmp_path), first.owner))
    other = Trainer()
    second = TrainingLoop(session, "transformers", str(tmp_path), other)
    assert session.attach_trainer(second) and session.trains_with == "transformers"
    first.ended()
    assert session.trains_with == "transformers", "an end that comes late is not this one's"
