"""After a restore the script's objects are read back and compared with what was saved."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torchloom as loom
from torchloom.checkpoint.leaves import arrays
from torchloom.checkpoint.state import readback, rng
from torchloom.checkpoint.state.image import Reading
from torchloom.checkpoint.state.readback import WINDOW
from torchloom.checkpoint.state.streaming import Streamed
from torchloom.checkpoint.store.catalogue import list_checkpoints
from torchloom.checkpoint.store.local import LocalStorage
from torchloom.checkpoint.store.storage import open_storage
from torchloom.errors import RestoreDiffers, StorageFailed

sys.path.append(str(Path(__file__).parents[2] / "states"))
from every_leaf import Holder


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("LOOM_") or name in ("RANK", "WORLD_SIZE", "CHECKPOINT_DIR", "JOB_ID", "USE_S3"):
            monkeypatch.delenv(name)


@pytest.fixture(params=["sample", "all"])
def how_much(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("LOOM_RESTORE_CHECK", request.param)
    return str(request.param)


def parts(seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer, "held": Holder({"a": [np.arange(seed, seed + 9.0)]})}


def saved(directory: Path, **more: Any) -> dict[str, Any]:
    made = parts(1) | more
    with loom.Checkpoint(**made, dir=directory, name="job", every=1000) as ckpt:
        ckpt.save(5, wait=True)
    return made


def restore(directory: Path, **more: Any) -> tuple[int, dict[str, Any]]:
    made = parts(2) | more
    return loom.Checkpoint(**made, dir=directory, name="job", every=1000).restore(), made


def test_a_restore_that_is_right_is_said_to_be(
    tmp_path: Path, how_much: str, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path)
    assert restore(tmp_path)[0] == 5
    assert "not what was saved" not in capsys.readouterr().err


@pytest.mark.parametrize("kind", [Streamed, Reading])
def test_a_tensor_that_was_not_filled_is_an_error_and_the_checkpoint_is_not_to_blame(
    tmp_path: Path, how_much: str, monkeypatch: pytest.MonkeyPatch, kind: type[Any]
) -> None:
    made = saved(tmp_path)
    whole = kind.copy_out

    def forgets_one(self: Any, targets: list[Any], *keep: Any) -> None:
        whole(self, [target for target in targets if target[0]["path"] != 'model["0.weight"]'], *keep)

    monkeypatch.setattr(kind, "copy_out", forgets_one)
    if kind is Streamed:
        with pytest.raises(RestoreDiffers, match=r'step-5.* model\["0.weight"\] is not what was saved'):
            restore(tmp_path)
    else:
        ckpt = loom.Checkpoint(**made, dir=tmp_path, name="job", every=1000)
        ckpt.restore()
        with torch.no_grad():
            made["model"][0].weight.zero_()
        with pytest.raises(RestoreDiffers):
            ckpt.prepare_roll_back(5).apply()
    (entry,) = list_checkpoints(open_storage(str(tmp_path), {}), "job")
    assert entry.whole and entry.resumable
    monkeypatch.undo()
    assert restore(tmp_path)[0] == 5


def test_a_sample_of_a_store_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = torch.nn.ParameterDict({f"p{n}": torch.randn(500_000) for n in range(12)})
    saved(tmp_path, large=large)
    size = next(tmp_path.glob("job/step-5.*/*.own")).stat().st_size
    reads: list[int] = []
    usual = LocalStorage.read_scattered

    def counted(self: LocalStorage, key: str, start: int, buffers: Any) -> int:
        reads.append(sum(len(buffer) for buffer in buffers))
        return usual(self, key, start, buffers)

    monkeypatch.setattr(LocalStorage, "read_scattered", counted)
    again = torch.nn.ParameterDict({f"p{n}": torch.zeros(500_000) for n in range(12)})
    assert restore(tmp_path, large=again)[0] == 5
    assert all(torch.equal(again[name], large[name]) for name in large)
    assert size <= sum(reads) < size + WINDOW, "once, and the index and the generators"


def test_generators_that_were_not_set_are_an_error(
    tmp_path: Path, how_much: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.random.seed(1)
    saved(tmp_path)
    monkeypatch.setattr(rng, "_put_numpy", lambda found, state: found.seed(2))
    with pytest.raises(RestoreDiffers, match="rng"):
        restore(tmp_path)


def test_an_array_that_is_copied_before_it_is_filled_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], how_much: str
) -> None:
    """The fault that gave this comparison its reason; the object is one of the script's own."""
    saved(tmp_path)
    make = arrays.make
    monkeypatch.setattr(arrays, "make", lambda data, about: make(torch.full_like(data, 7), about))
    monkeypatch.setattr(rng, "put", lambda state: None)
    monkeypatch.setattr(rng, "take", dict)
    if how_much == "all":
        with pytest.raises(RestoreDiffers, match=r'held\["a"\]\[0\]'):
            restore(tmp_path)
    else:
        restore(tmp_path)
        assert 'held["a"][0] is not what was saved' in capsys.readouterr().err


class Forgetful(Holder):
    """Keeps something else than it is given."""

    def load_state_dict(self, state: Any) -> None:
        self.state = {"weights": state["weights"] * 2, "note": "mine"}


def test_a_script_may_keep_what_it_wants_and_that_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path, extra=Holder({"weights": torch.ones(3), "note": "x"}))
    assert restore(tmp_path, extra=Forgetful({"weights": torch.ones(3)}))[0] == 5
    told = capsys.readouterr().err
    assert 'extra["weights"] is not what was saved' in told and "note" not in told
    monkeypatch.setenv("LOOM_RESTORE_CHECK", "all")
    with pytest.raises(RestoreDiffers, match=r"extra.*note"):
        restore(tmp_path, extra=Forgetful({"weights": torch.ones(3)}))


def test_a_model_of_another_dtype_is_not_compared(tmp_path: Path, how_much: str) -> None:
    torch.manual_seed(0)
    with loom.Checkpoint(model=torch.nn.Linear(2, 2), dir=tmp_path, name="job", every=1000) as ckpt:
        ckpt.save(5, wait=True)
    model = torch.nn.Linear(2, 2).to(torch.float64)
    assert loom.Checkpoint(model=model, dir=tmp_path, name="job").restore() == 5


def test_a_sample_costs_a_few_reads_and_no_restore_that_has_succeeded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = Holder({f"t{n}": torch.randn(1000) for n in range(300)} | {"large": torch.randn(1 << 20)})
    saved(tmp_path, many=many)
    reads: list[int] = []
    whole = Streamed.bytes_of

    def counted(self: Streamed, start: int, stop: int) -> torch.Tensor:
        reads.append(stop - start)
        return whole(self, start, stop)

    monkeypatch.setattr(Streamed, "bytes_of", counted)
    restore(tmp_path, many=Holder(dict(many.state)))
    assert len(reads) <= 2 * readback.WINDOWS + 4 and max(reads) <= readback.WINDOW

    def away(self: Streamed, start: int, stop: int) -> torch.Tensor:
        raise StorageFailed("the store went away")

    monkeypatch.setattr(Streamed, "bytes_of", away)
    assert restore(tmp_path, many=Holder(dict(many.state)))[0] == 5
    monkeypatch.setenv("LOOM_RESTORE_CHECK", "off")
    monkeypatch.setattr(readback, "compare", None)
    assert restore(tmp_path, many=Holder(dict(many.state)))[0] == 5
