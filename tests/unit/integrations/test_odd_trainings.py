"""Hugging Face's Trainer and Lightning as people also use them, in this process and with the real packages:
several trainings in one script, trainings that raise, early stops. The loop that trains is the one seen.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from torchloom.integrations.lightning import PACKAGES, callbacks
from torchloom.probe import session as sessions
from torchloom.probe.box import OwnBox
from torchloom.probe.session import Session
from torchloom.wire.blackbox import SIZE, Progress, View


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setenv("LOOM_CHECKPOINT_DIR", str(tmp_path / "index"))
    monkeypatch.delenv("LOOM_RESUME", raising=False)
    monkeypatch.delenv("LOOM_INTEGRATIONS", raising=False)
    monkeypatch.delitem(sys.modules, "torchloom.checkpoint.live", raising=False)  # no other test's Checkpoint
    made = Session(OwnBox(View(memoryview(bytearray(SIZE))), 0))
    made.steps.install(sys.modules["torch.optim.optimizer"], lambda: False, made.guard)
    monkeypatch.setattr(sessions, "current", made)
    yield made
    made.steps.remove()
    assert made.guard.errors == []


def seen(session: Session) -> int:
    """The training step as it is shown."""
    return session.view.progress(Progress.TRAINING_STEP) - 1


# -- Hugging Face ------------------------------------------------------------------------------------


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        out = self.layer(x)
        return {"loss": out.square().mean(), "logits": out}


@pytest.fixture
def hf(session: Session, tmp_path: Path, needs: Any) -> Any:
    """Makes a Trainer with this many steps and other arguments."""
    transformers, trainer_module = needs("transformers"), needs("transformers.trainer")
    from torchloom.integrations.transformers import activate

    activate(trainer_module)
    rows = [{"x": torch.ones(2), "labels": torch.ones(1)}] * 64

    def make(steps: int, callbacks: tuple[Any, ...] = (), **more: Any) -> Any:
        arguments = transformers.TrainingArguments(
            str(tmp_path / "out"),
            **{"save_strategy": "no", **more},
            max_steps=steps,
            per_device_train_batch_size=4,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        return transformers.Trainer(
            Net(), arguments, train_dataset=rows, eval_dataset=rows[:4], callbacks=list(callbacks)
        )

    return make


def raising(at: int) -> Any:
    from transformers import TrainerCallback

    class Raises(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == at:
                raise RuntimeError("a callback of the script")

    return Raises()


def test_hf_a_training_after_one_that_raised_is_seen(session: Session, hf: Any) -> None:
    with pytest.raises(RuntimeError, match="of the script"):
        hf(6, (raising(2),)).train()
    hf(5).train()
    assert seen(session) == 5 and session.trains_with == ""


def test_hf_two_trainings_one_after_the_other(session: Session, hf: Any) -> None:
    trainer = hf(3)
    trainer.train()
    trainer.train()
    assert seen(session) == 3
    hf(4).train()
    assert seen(session) == 4


def test_hf_a_training_that_ends_early_and_loads_its_best(session: Session, hf: Any) -> None:
    from transformers import EarlyStoppingCallback

    trainer = hf(
        40,
        (EarlyStoppingCallback(1),),
        gradient_accumulation_steps=2,
        learning_rate=0.0,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=2,
        load_best_model_at_end=True,
        metric_for_best_model="loss",
        logging_steps=1,
    )
    trainer.train()
    assert seen(session) == trainer.state.global_step < 40
    trainer.evaluate()
    trainer.predict(trainer.eval_dataset)
    assert session.phases.now != 0 and session.trains_with == ""


# -- Lightning ---------------------------------------------------------------------------------------


@pytest.fixture(params=PACKAGES)
def pl(request: Any, session: Session, tmp_path: Path, needs: Any) -> Any:
    """Makes a trainer and a module, of the package under each of its names."""
    lightning = needs(request.param)

    class Line(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            return self.layer(batch[0]).square().mean()

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("val", 1.0)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 2)), batch_size=1)

    def make(steps: int, *more: Any, **arguments: Any) -> tuple[Any, Any, Any]:
        trainer = lightning.Trainer(
            **{"enable_checkpointing": False, **arguments},
            max_steps=steps,
            callbacks=[*more],
            accelerator="cpu",
            devices=1,
            logger=False,
            default_root_dir=str(tmp_path),
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        if not any(type(one).__name__ == "LoomCallback" for one in trainer.callbacks):
            # Where torchloom is not installed, only on the path.
            trainer.callbacks += callbacks(request.param)
        return trainer, Line(), data

    make.package = lightning  # type: ignore[attr-defined]
    return make


def test_lightning_a_training_after_one_that_raised_is_seen(session: Session, pl: Any) -> None:
    class Raises(pl.package.Callback):  # type: ignore[misc,name-defined]
        def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
            raise RuntimeError("a callback of the script")

    trainer, module, data = pl(5, Raises())
    with pytest.raises(RuntimeError, match="of the script"):
        trainer.fit(module, data)
    trainer, module, data = pl(4)
    trainer.fit(module, data)
    assert seen(session) == 4 and session.trains_with == ""


def test_lightning_several_fits_and_a_validation_between(session: Session, pl: Any) -> None:
    trainer, module, data = pl(3)
    trainer.fit(module, data, data)
    assert seen(session) == 3
    trainer.validate(module, data, verbose=False)
    trainer.fit_loop.epoch_loop.max_steps = 6
    trainer.fit(module, data)
    assert seen(session) == 6
    other, module, data = pl(2, accumulate_grad_batches=2)
    other.fit(module, data)
    assert seen(session) == 2 and session.trains_with == ""


def test_lightning_a_stop_before_its_minimum_is_not_refused_for_ever(session: Session, pl: Any) -> None:
    """`should_stop` has no effect before `min_steps`: the script is ended at the next boundary then."""
    from torchloom.probe.steering.stopping import StopAtBoundary

    trainer, module, data = pl(50, min_steps=40)
    steps = iter(range(100))

    class Stops:
        def __call__(self, *args: Any) -> None:
            if next(steps) == 3:
                session._config.max_steps = 4
                session.control.due = 0

    hook = sys.modules["torch.optim.optimizer"].register_optimizer_step_pre_hook(Stops())
    try:
        with pytest.raises((StopAtBoundary, SystemExit)):
            trainer.fit(module, data)
    finally:
        hook.remove()
    assert session.steps.completed < 10
