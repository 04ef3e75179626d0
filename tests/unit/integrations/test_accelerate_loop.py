"""A loop written with the real accelerate, in this process: what is asked of it happens between two steps."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from torchloom.integrations.accelerate import named_like
from torchloom.probe import session as sessions
from torchloom.probe.box import OwnBox
from torchloom.probe.session import Session
from torchloom.probe.steering.stopping import StopAtBoundary
from torchloom.wire.blackbox import SIZE, View


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needs: Any) -> Iterator[Callable[[], Session]]:
    """Makes a session as a new process would have one; the former is over."""
    from torchloom.integrations.accelerate import activate

    needs("accelerate")
    monkeypatch.setenv("LOOM_CHECKPOINT_DIR", str(tmp_path / "index"))
    monkeypatch.delenv("LOOM_RESUME", raising=False)
    monkeypatch.delitem(sys.modules, "torchloom.checkpoint.live", raising=False)  # no other test's Checkpoint
    activate(sys.modules["accelerate.accelerator"])
    sessions_made: list[Session] = []

    def make() -> Session:
        for former in sessions_made:
            former.steps.remove()
        session = Session(OwnBox(View(memoryview(bytearray(SIZE))), 0))
        session.steps.install(sys.modules["torch.optim.optimizer"], lambda: False, session.guard)
        monkeypatch.setattr(sessions, "current", session)
        sessions_made.append(session)
        return session

    yield make
    for session in sessions_made:
        session.steps.remove()
        assert session.guard.errors == []


class Training:
    """As people write it: `step` is one micro step."""

    def __init__(self, accumulate: int = 1) -> None:
        from accelerate import Accelerator

        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
        torch.manual_seed(0)
        net = torch.nn.Linear(2, 1)
        optimizer: Any = torch.optim.AdamW(net.parameters())
        data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(64, 2)), batch_size=1)
        self.net, self.optimizer, self.data = self.accelerator.prepare(net, optimizer, data)
        self.batches: Any = None

    def step(self) -> None:
        self.batches = self.batches or iter(self.data)
        (batch,) = next(self.batches)
        with self.accelerator.accumulate(self.net):
            self.accelerator.backward(self.net(batch).square().mean())
            self.optimizer.step()
            self.optimizer.zero_grad()

    def weights(self) -> torch.Tensor:
        return torch.cat([p.detach().flatten() for p in self.net.parameters()])


def steered(session: Session) -> Any:
    return session._changes.checkpoints.trainer


def test_a_state_is_saved_beside_the_scripts_own_after_the_step(made: Any, tmp_path: Path) -> None:
    session, training = made(), Training(accumulate=2)
    for _ in range(6):
        training.step()
    training.accelerator.save_state(str(tmp_path / "out" / "at-3"))
    assert session.trains_with == "accelerate"
    steered(session).save_soon(3)
    training.step()
    assert not (tmp_path / "out" / "at-4").exists(), "gradients are being accumulated"
    training.step()
    assert (tmp_path / "out" / "at-4").is_dir()
    before = training.weights()
    training.step()
    training.step()
    training.accelerator.load_state(str(tmp_path / "out" / "at-4"))
    assert torch.equal(training.weights(), before) and session.training_step() == 4


def test_a_stop_saves_and_ends_the_script(made: Any, tmp_path: Path) -> None:
    session, training = made(), Training()
    training.step()
    training.accelerator.save_state(str(tmp_path / "step_1"))
    assert steered(session).stop_soon(1)
    with pytest.raises(StopAtBoundary):
        training.step()
    assert (tmp_path / "step_2").is_dir()


def test_a_stop_saves_nothing_where_the_script_never_does(made: Any, tmp_path: Path) -> None:
    session, training = made(), Training()
    training.step()
    assert steered(session).stop_soon(1)
    before = os.listdir()
    with pytest.raises(StopAtBoundary):
        training.step()
    assert os.listdir() == before


@pytest.mark.parametrize("loads", [True, False])
def test_resume_auto_loads_the_newest_unless_the_script_does(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loads: bool
) -> None:
    made()
    first = Training()
    weights = []
    for step in (1, 2, 3):
        first.step()
        first.accelerator.save_state(str(tmp_path / f"step_{step}"))
        weights.append(first.weights())
    monkeypatch.setenv("LOOM_RESUME", "auto")
    again = made()
    second = Training()
    if loads:
        second.accelerator.load_state(str(tmp_path / "step_2"))
    second.batches = iter(second.data)
    next(second.batches)
    assert torch.equal(second.weights(), weights[1 if loads else 2])
    second.step()
    assert again.training_step() == (3 if loads else 4)


def test_names_are_like_the_scripts() -> None:
    assert named_like(None, 7) == "step_7"
    assert named_like((20, "/out/step-20"), 37) == "step-37"
    assert named_like((20, "/out/run2020-step20.state"), 37) == "run2020-step37.state"
    assert named_like((20, "/out/epoch_3"), 37) == "step_37"
