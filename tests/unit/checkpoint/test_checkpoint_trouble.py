"""What goes wrong around a save costs that save or the memory tier, and never the training."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
import torch
from large_states import large  # noqa: F401 – in force by being here

import torchloom as loom
from torchloom.checkpoint.memory import slots


def checkpoint(tmp_path: Path, model: torch.nn.Module) -> loom.Checkpoint:
    return loom.Checkpoint(model=model, dir=tmp_path / "store", name="job", every=1000)


def committed(tmp_path: Path) -> list[str]:
    return sorted(path.parent.name for path in (tmp_path / "store").glob("job/*/manifest.json"))


def within(seconds: float, work: threading.Thread) -> None:
    """It must come back: a training that waits for ever is worse than a save that is lost."""
    work.start()
    work.join(seconds)
    assert not work.is_alive(), "it waits for ever"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_state_that_could_not_be_sealed_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ckpt = checkpoint(tmp_path, torch.nn.Linear(100, 100))
    ckpt.save(1, wait=True)
    tier = ckpt._staging.tier
    assert tier is not None and {kept.name.step for kept in tier.offers()} == {1}
    with monkeypatch.context() as full:

        def no_memory(*args: object) -> torch.Tensor:
            raise RuntimeError("not enough memory")

        full.setattr(slots, "sum_blocks", no_memory)
        ckpt._saver.take(2, {}, to_store=False)
        for thread in threading.enumerate():
            if thread.name == "loom-seal":
                thread.join(120)
    within(120, threading.Thread(target=lambda: ckpt.save(4, wait=True), daemon=True))
    ckpt.close()
    assert committed(tmp_path) == ["step-1.g0", "step-4.g0"] and ckpt.failures == 0
    assert {kept.name.step for kept in tier.offers()} == {1, 4}


def test_a_process_that_may_start_no_thread_trains_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ckpt = checkpoint(tmp_path, torch.nn.Linear(100, 100))
    with monkeypatch.context() as limited:

        def start(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        limited.setattr(threading.Thread, "start", start)
        ckpt.step(1)
        ckpt.save(1, wait=True)
        assert ckpt.failures == 1 and "thread" in ckpt.why_failed and committed(tmp_path) == []
        ckpt._saver.take(2, {}, to_store=False)
    ckpt.save(3, wait=True)
    ckpt.close()
    assert committed(tmp_path) == ["step-3.g0"]


def test_a_memory_tier_that_somebody_removed_is_done_without(tmp_path: Path) -> None:
    model = torch.nn.Module()
    model.values = torch.nn.Buffer(torch.zeros(100))
    ckpt = checkpoint(tmp_path, model)
    ckpt.save(1, wait=True)
    ckpt._staging.finish_making()
    shutil.rmtree(tmp_path / "memory")
    model.values = torch.nn.Buffer(torch.zeros(4_000_000))
    ckpt.save(2, wait=True)
    ckpt.close()
    assert committed(tmp_path) == ["step-1.g0", "step-2.g0"] and ckpt.failures == 0
