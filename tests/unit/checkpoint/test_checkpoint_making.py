"""Memory for saves is made beside the training: what is due is deferred, what is asked for waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from large_states import large  # noqa: F401 – in force by being here

import torchloom as loom
from torchloom.checkpoint.memory import slots
from torchloom.checkpoint.memory import tier as places
from torchloom.checkpoint.memory.slots import SlotFile
from torchloom.checkpoint.state import region, staging
from torchloom.checkpoint.state.image import plan
from torchloom.checkpoint.store.names import CheckpointName


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """No memory is made before it is set."""
    opened = threading.Event()

    def file_backed(path: Path, size: int) -> region.Region:
        assert opened.wait(120)
        return region.file_backed(path, size)

    def anonymous(size: int) -> region.Region:
        assert opened.wait(120)
        return region.anonymous(size)

    monkeypatch.setattr(slots, "file_backed", file_backed)
    monkeypatch.setattr(staging, "anonymous", anonymous)
    yield opened
    opened.set()


def checkpoint(tmp_path: Path, **options: object) -> loom.Checkpoint:
    model = torch.nn.Linear(100, 100)
    made: loom.Checkpoint = loom.Checkpoint(model=model, dir=tmp_path / "store", name="job", **options)  # type: ignore[arg-type]
    return made


def committed(tmp_path: Path) -> list[str]:
    return sorted(path.parent.name for path in (tmp_path / "store").glob("job/*/manifest.json"))


@pytest.mark.parametrize("with_tier", [True, False])
def test_training_does_not_wait_for_fresh_memory(
    tmp_path: Path, gate: threading.Event, with_tier: bool
) -> None:
    ckpt = checkpoint(tmp_path, every=1, memory=with_tier)
    ckpt.restore()
    for step in range(1, 6):
        time.sleep(0.01)
        ckpt.step(step)  # comes back though nothing can be made
    ckpt.wait()
    assert committed(tmp_path) == [] and ckpt.failures == 0
    assert ckpt._staging.making
    gate.set()
    ckpt._staging.finish_making()
    for step in range(6, 10_000):  # the deferred save comes as soon as it is looked for again
        time.sleep(0.01)
        ckpt.step(step)
        ckpt.wait()
        if committed(tmp_path):
            break
    ckpt.close()
    assert committed(tmp_path) and ckpt.failures == 0


def test_a_save_that_is_asked_for_waits_for_its_memory(tmp_path: Path, gate: threading.Event) -> None:
    ckpt = checkpoint(tmp_path, every=1000)
    ckpt.restore()
    ckpt.step(1)
    assert ckpt._staging.making
    threading.Timer(0.05, gate.set).start()
    ckpt.save(1, wait=True)
    ckpt.close()
    assert committed(tmp_path) == ["step-1.g0"] and ckpt.failures == 0


def test_a_script_that_only_saves_gets_its_second_slot_beside_the_training(tmp_path: Path) -> None:
    ckpt = checkpoint(tmp_path, every=1000)
    ckpt.save(1, wait=True)
    ckpt._staging.finish_making()
    tier, sizes = ckpt._staging.tier, ckpt._staging._sizes
    assert tier is not None and sum(tier.made(slot, sizes) for slot in range(places.SLOTS)) == 2
    ckpt.save(2, wait=True)
    ckpt.close()
    assert {kept.name.step for kept in tier.offers()} == {1, 2}


def test_a_third_slot_is_made_when_it_is_missed_and_nobody_waits_for_it(tmp_path: Path) -> None:
    ckpt = checkpoint(tmp_path, every=1000)
    ckpt.save(1, wait=True)
    ckpt._staging.finish_making()
    tier = ckpt._staging.tier
    assert tier is not None
    tier.begin_write(0)  # a slow store still reads the first state
    for step in (2, 3):
        ckpt._saver.take(step, {}, to_store=False)
    assert {kept.name.step for kept in tier.offers()} == {1, 2}, "the third was skipped, not waited for"
    ckpt._staging.finish_making()
    ckpt._saver.take(4, {}, to_store=False)
    ckpt.close()
    assert {kept.name.step for kept in tier.offers()} == {1, 2, 4}


def test_making_a_slot_leaves_what_is_sealed_in_it(tmp_path: Path) -> None:
    path = tmp_path / "own-0.0"
    image = plan({"x": torch.ones(1000)})
    first = SlotFile(path)
    image.copy_into(first.prepare(image.size))
    first.seal(CheckpointName(1, 10), 1)
    SlotFile(path).make(10 << 20)
    sealed = slots.read(path)
    assert sealed is not None and sealed.name == CheckpointName(1, 10)


def test_memory_that_cannot_be_made_turns_the_tier_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(path: Path, size: int) -> region.Region:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(slots, "file_backed", full)
    ckpt = checkpoint(tmp_path, every=1)
    ckpt.restore()
    ckpt.step(1)
    ckpt._staging.finish_making()
    ckpt.step(2)
    ckpt.save(3, wait=True)
    ckpt.close()
    assert "step-3.g0" in committed(tmp_path) and ckpt.failures == 0
    assert "the memory tier is off" in capsys.readouterr().err
