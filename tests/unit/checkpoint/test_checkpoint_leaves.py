"""Every kind of leaf comes back to the bit, from memory, from disk and by a rollback; others are refused.

Why no test saw that NumPy arrays came back as uninitialised memory: the state of every test was tensors and
plain values, `random` and torch's generator. The one test of trees read them with a `leaf` of its own, which
filled tensors after `decode` as restores did, but had no array in it; and what restores were compared by was
the training that followed, which never drew from NumPy. So the state of these tests has every kind of leaf we
accept (states/every_leaf.py), and it is compared itself, by code that shares nothing with the encoder.
"""

from __future__ import annotations

import datetime
import os
import pathlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torchloom as loom
from torchloom.checkpoint.store.reader import find
from torchloom.checkpoint.store.storage import open_storage
from torchloom.errors import UsageError

sys.path.append(str(Path(__file__).parents[2] / "states"))
from every_leaf import Holder, Point, differences, everything


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if (name.startswith("LOOM_") and name != "LOOM_RESTORE_CHECK") or name in (
            "RANK",
            "WORLD_SIZE",
            "CHECKPOINT_DIR",
            "JOB_ID",
            "USE_S3",
        ):
            monkeypatch.delenv(name)


def checkpoint(holder: Holder, directory: Path, **options: Any) -> Any:
    return loom.Checkpoint(part=holder, dir=directory, name="job", every=1000, **options)


def sums(directory: Path) -> list[tuple[int, str]]:
    """Size and checksum of the files of the newest checkpoint."""
    found = find(open_storage(str(directory), {}), "job").found
    assert found is not None
    return [(entry.size, entry.checksum) for entry in found.files]


def test_the_comparison_sees_what_it_is_for() -> None:
    assert differences(everything(1), everything(1)) == []
    told = differences(everything(1), everything(2))
    for kind in ("arrays", "generators", "tensors", "scalars", "plain"):
        assert any(kind in line for line in told), kind
    one, other = torch.zeros(4), torch.zeros(4)
    assert differences([one, one], [one, other]) and differences([one, one[1:]], [one, other[1:]])


@pytest.mark.parametrize("where", ["disk", "memory"])
def test_every_leaf_comes_back_and_is_saved_again_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    if where == "memory":
        monkeypatch.setenv("LOOM_MEMORY_DIR", str(tmp_path / "memory"))
    first = checkpoint(Holder(everything(1)), tmp_path / "a")
    first.restore()
    np.random.seed(3)
    first.save(7, wait=True)
    first.close()
    drawn = np.random.random(5)
    np.random.seed(4)
    holder = Holder(everything(2))
    second = checkpoint(holder, tmp_path / "a")
    assert second.restore() == 7 and (where == "memory") == (second.restored.where == "memory")
    assert differences(everything(1), holder.state) == []
    again = checkpoint(holder, tmp_path / "b", memory=False)
    again.save(7, wait=True)
    again.close()
    assert sums(tmp_path / "a") == sums(tmp_path / "b")
    assert np.random.random(5).tolist() == drawn.tolist()


@pytest.mark.parametrize("where", ["disk", "memory"])
def test_every_leaf_comes_back_by_a_live_rollback_and_by_undoing_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    if where == "memory":
        monkeypatch.setenv("LOOM_MEMORY_DIR", str(tmp_path / "memory"))
    holder = Holder(everything(1))
    ckpt = checkpoint(holder, tmp_path / "a")
    ckpt.restore()
    np.random.seed(3)
    ckpt.save(7, wait=True)
    drawn = np.random.random(5).tolist()
    holder.state = everything(2)
    prepared = ckpt.prepare_roll_back(7)
    assert prepared.where == ("memory" if where == "memory" else "the store")
    prepared.apply()
    assert differences(everything(1), holder.state) == []
    prepared.undo()
    assert differences(everything(2), holder.state) == []
    ckpt.roll_back(7)
    assert differences(everything(1), holder.state) == []
    assert np.random.random(5).tolist() == drawn


class Tensor2(torch.Tensor):
    pass


def _contains_itself() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


Local = type("Local", (tuple,), {})
REFUSED: dict[str, Callable[[], Any]] = {
    "object array": lambda: np.array([1, "x", None], dtype=object),
    "array of records with objects": lambda: np.zeros(2, dtype=[("a", "O")]),
    "masked array": lambda: np.ma.array([1, 2], mask=[0, 1]),
    "matrix": lambda: np.asmatrix(np.eye(2)),
    "variable text": lambda: np.array(["a"], dtype=np.dtypes.StringDType()),
    "object": object,
    "function": lambda: len,
    "class": lambda: int,
    "date": lambda: datetime.date(2026, 1, 1),
    "path": lambda: pathlib.PurePath("x"),
    "tuple of another class": lambda: Local((1, 2)),
    "int of another class": lambda: type("Count", (int,), {})(3),
    "dict of another class": lambda: type("Config", (dict,), {})(a=1),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "meta": lambda: torch.empty(2, device="meta"),
    "tensor of another class": lambda: torch.zeros(2).as_subclass(Tensor2),
    "tensor in a set": lambda: {torch.zeros(1)},
    "contains itself": _contains_itself,
    "module": lambda: torch.nn.Linear(1, 1),
    "iterator": lambda: iter([]),
    "system random": lambda: __import__("random").SystemRandom(),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_saved_is_refused_with_its_place_before_anything_is_written(
    tmp_path: Path, kind: str
) -> None:
    holder = Holder({"a": {"b": [1, 2, 3, Point(0, REFUSED[kind]())]}})
    ckpt = checkpoint(holder, tmp_path)
    ckpt.restore()
    with pytest.raises(UsageError) as refused:
        ckpt.save(1, wait=True)
    assert 'part["a"]["b"][3][1]' in str(refused.value) and "cannot be saved" in str(refused.value)
    assert refused.value.hint
    assert not list(tmp_path.glob("job/step-*"))


@pytest.mark.parametrize("saves", [1, 2, 3, 4])
def test_of_two_states_of_one_step_the_later_comes_back_from_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saves: int
) -> None:
    """As when a script calls `step(n)`, evaluates, and calls `save(n)`. Which came depended on the slot."""
    monkeypatch.setenv("LOOM_MEMORY_DIR", str(tmp_path / "memory"))
    holder = Holder({"n": 0})
    ckpt = checkpoint(holder, tmp_path / "store")
    ckpt.restore()
    for n in range(1, saves + 1):
        holder.state = {"n": n}
        ckpt.save(7, wait=True)
    ckpt.close()
    again = Holder({"n": 0})
    later = checkpoint(again, tmp_path / "store")
    later.restore()
    assert later.restored.where == "memory" and again.state == {"n": saves}


def _schedulers(optimizer: torch.optim.Optimizer) -> list[Any]:
    kinds = torch.optim.lr_scheduler
    return [
        kinds.LambdaLR(optimizer, lambda step: 0.9**step),
        kinds.MultiStepLR(optimizer, [2, 4]),
        kinds.ReduceLROnPlateau(optimizer),
        kinds.CosineAnnealingWarmRestarts(optimizer, 3),
        kinds.OneCycleLR(optimizer, 0.1, total_steps=10),
        kinds.CyclicLR(optimizer, 0.1, 0.2, cycle_momentum=False),
        kinds.SequentialLR(optimizer, [kinds.ConstantLR(optimizer), kinds.StepLR(optimizer, 1)], [2]),
        torch.optim.swa_utils.SWALR(optimizer, 0.1),
    ]


@pytest.mark.parametrize(
    "kind", ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Rprop", "NAdam", "LBFGS", "Adafactor"]
)
def test_what_torch_has_can_be_saved_and_comes_back(tmp_path: Path, kind: str) -> None:
    def parts() -> dict[str, Any]:
        model = torch.nn.Linear(3, 3)
        optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.01)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(torch.randn(4, 3)).pow(2).mean()
            loss.backward()
            return loss

        optimizer.step(closure)
        schedulers = _schedulers(optimizer) if kind == "SGD" else []
        scaler = torch.amp.GradScaler("cpu", enabled=True)
        average = torch.optim.swa_utils.AveragedModel(model)
        made = {"model": model, "optimizer": optimizer, "scaler": scaler, "average": average}
        return made | ({"schedulers": schedulers} if schedulers else {})

    first = parts()
    with loom.Checkpoint(**first, dir=tmp_path, name="job", every=1000) as ckpt:
        ckpt.save(1, wait=True)
    second = parts()
    assert loom.Checkpoint(**second, dir=tmp_path, name="job", every=1000).restore() == 1
    for name in ("model", "optimizer", "scaler", "average"):
        assert differences(first[name].state_dict(), second[name].state_dict()) == [], name
    for one, other in zip(first.get("schedulers", []), second.get("schedulers", []), strict=True):
        assert differences(one.state_dict(), other.state_dict()) == [], type(one)
