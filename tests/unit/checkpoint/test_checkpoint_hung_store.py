"""A store that neither answers nor fails: the training makes its steps; whoever asked is told why."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import torchloom as loom
from torchloom.checkpoint import checkpoint as checkpoint_module
from torchloom.checkpoint import live, reporting
from torchloom.checkpoint.saving import saver
from torchloom.checkpoint.store.local import LocalStorage
from torchloom.checkpoint.store.reader import find
from torchloom.checkpoint.store.storage import Bytes
from torchloom.core.detect.thresholds import STORE_WAIT
from torchloom.errors import CheckpointError

PATIENCE_S = 60.0
"""Only against a test that hangs: then the store is let go, and the test fails."""


class Gate:
    """A directory whose writes stand still while it is shut, as on a server that keeps a connection open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.open.set()
        self.gave_up = False
        self.waiting = threading.Event()
        put = LocalStorage.put

        def gated(storage: LocalStorage, key: str, chunks: Iterable[Bytes]) -> None:
            if not self.open.is_set():
                self.waiting.set()
                if not self.open.wait(PATIENCE_S):
                    self.gave_up = True
            put(storage, key, chunks)

        monkeypatch.setattr(LocalStorage, "put", gated)

    def shut(self) -> None:
        self.waiting.clear()
        self.open.clear()


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in list(os.environ):
        if name.startswith("LOOM_") or name in ("RANK", "WORLD_SIZE", "CHECKPOINT_DIR", "JOB_ID", "USE_S3"):
            monkeypatch.delenv(name)
    yield


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate(monkeypatch)
    yield made
    made.open.set()
    assert not made.gave_up, "the training stood still until the store was let go"


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    assert loom.Checkpoint  # its first use connects the ports
    monkeypatch.setattr(
        reporting.ports, "checkpoints", lambda text: found.append(json.loads(json.dumps(text)))
    )
    return found


class Training:
    def __init__(self, store: Path, every: int = 1_000_000) -> None:
        self.store = store
        self.ckpt = loom.Checkpoint(model=torch.nn.Linear(2, 2), dir=store, name="job", every=every)
        self.step = self.ckpt.restore()

    def train(self, steps: int) -> None:
        for _ in range(steps):
            time.sleep(0.001)  # what a step takes
            self.step += 1
            self.ckpt.step(self.step)

    def ask(self, held: bool = False) -> None:
        """At the end of the next step, as the probe does it."""
        self.ckpt.at_end(lambda step: self.ckpt.save_soon(step, held=held))
        self.train(1)

    def newest(self) -> int:
        found = find(LocalStorage(self.store), "job").found
        return found.step if found else 0

    def train_until_saved(self, step: int) -> None:
        for _ in range(10_000):
            self.train(1)
            self.ckpt._saver.writer.wait(0.01)
            if self.newest() >= step:
                return
        raise AssertionError(f"step {step} was not saved: {self.ckpt.why_failed}")


def test_a_save_that_is_asked_for_does_not_wait_for_the_store(tmp_path: Path, gate: Gate) -> None:
    training = Training(tmp_path)
    training.train(3)
    gate.shut()
    training.ask()
    assert gate.waiting.wait(PATIENCE_S), "it is being written"
    training.train(200)
    assert not gate.open.is_set() and training.newest() == 0 and training.ckpt.failures == 0
    gate.open.set()
    training.ckpt.wait()
    assert training.newest() == 4, "the state of the step it was asked for"


def test_what_is_asked_for_while_a_save_is_written_is_taken_when_that_is_done(
    tmp_path: Path, gate: Gate
) -> None:
    training = Training(tmp_path)
    training.train(1)
    gate.shut()
    training.ask()
    assert gate.waiting.wait(PATIENCE_S)
    training.ask()
    asked = training.step
    training.train(100)
    gate.open.set()
    training.train_until_saved(asked)
    assert training.ckpt.failures == 0 and training.newest() > asked


def test_what_is_asked_for_while_a_save_hangs_is_refused_with_a_sentence(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saver, "REFUSE_STALLED_S", 0.05)
    training = Training(tmp_path)
    training.train(1)
    gate.shut()
    training.ask()
    assert gate.waiting.wait(PATIENCE_S)
    while training.ckpt._saver.writer.stalled_s < 0.1:
        training.train(1)
    with pytest.raises(CheckpointError, match=r"step 2 is still being written .* the store does not answer"):
        training.ask()
    training.ckpt.withdraw_save()
    training.train(100)
    gate.open.set()
    training.ckpt.wait()
    training.train(1)
    assert not training.ckpt._saver.writer.busy, "what was refused is not taken later"


def test_a_paused_job_waits_a_little_and_then_refuses(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saver, "HELD_WITHIN_S", 0.2)
    training = Training(tmp_path)
    training.train(1)
    gate.shut()
    training.ask(held=True)
    assert gate.waiting.wait(PATIENCE_S), "with nothing in flight it is taken where it stands"
    with pytest.raises(CheckpointError, match="while the job is paused"):
        training.ask(held=True)
    gate.open.set()
    training.ckpt._saver.writer.wait()
    training.ckpt.look()
    assert training.ckpt._saver.stored(2) == ("step-2.g0", ""), "it is reported without a step"


def test_a_save_that_does_not_move_is_reported_before_the_store_fails(
    tmp_path: Path, gate: Gate, told: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saver, "REPORT_STALLED_S", 0.05)
    training = Training(tmp_path, every=5)
    gate.shut()
    training.train(5)
    while not (told and told[-1].get("failing")):
        training.train(1)
    assert told[-1]["failing"]["step"] == 5 and "not answered" in told[-1]["failing"]["why"]
    reports = len(told)
    training.train(100)
    assert len(told) == reports, "once for a save"
    gate.open.set()
    training.ckpt.wait()
    assert told[-1]["failing"] is None and told[-1]["saved"]["step"] == 5


def test_a_script_that_waits_itself_is_let_go(
    tmp_path: Path,
    gate: Gate,
    told: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(checkpoint_module, "STALLED_S", 0.1)
    monkeypatch.setattr(saver, "REPORT_STALLED_S", 0.05)
    phases: list[str] = []

    def phase(name: str) -> AbstractContextManager[object]:
        phases.append(name)
        return nullcontext()

    monkeypatch.setattr(reporting.ports, "phase", phase)
    training = Training(tmp_path)
    training.train(1)
    gate.shut()
    training.ckpt.save(1, wait=True)
    assert training.ckpt._saver.writer.busy and training.ckpt.failures == 0
    assert phases[-1] == STORE_WAIT, "the hang detection knows that this wait has an end"
    assert "not answered" in told[-1]["failing"]["why"], "reported while the script waits"
    assert "does not move" in capsys.readouterr().err
    training.ckpt.save(2, wait=True)
    assert training.ckpt.failures == 1 and "still writing" in training.ckpt.why_failed
    with pytest.raises(CheckpointError, match="does not answer"):
        training.ckpt.prepare_roll_back(1)
    training.train(50)


def test_the_end_of_the_process_is_bounded(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checkpoint_module, "CLOSING_WITHIN_S", 0.2)
    training = Training(tmp_path)
    training.train(1)
    gate.shut()
    training.ckpt.save(1)
    training.ckpt.close()
    assert "was not done within 0.2 s" in capsys.readouterr().err


def test_a_request_is_answered_when_its_state_is_in_the_store(tmp_path: Path, gate: Gate) -> None:
    training = Training(tmp_path)
    training.train(1)
    gate.shut()
    answered: list[live.Request] = []
    request = training.ckpt.request("before maintenance", answered.append)
    training.train(50)
    assert not request.done
    gate.open.set()
    training.train_until_saved(2)
    training.ckpt.wait()
    assert answered == [request] and (request.name, request.problem) == ("step-2.g0", "")


def test_a_rank_whose_part_is_in_the_store_takes_the_next_save(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 commits as soon as it sees the part; rank 1's thread may end later than the next save begins."""
    training = Training(tmp_path)
    saver_of_1, put = training.ckpt._saver, LocalStorage.put
    saver_of_1._group = replace(saver_of_1._group, rank=1, world=2)
    slow = threading.Event()

    def late(storage: LocalStorage, key: str, chunks: Iterable[Bytes]) -> None:
        put(storage, key, chunks)
        if "part" in key.rpartition("/")[2]:
            slow.set()
            time.sleep(0.2)  # its directory is synced

    monkeypatch.setattr(LocalStorage, "put", late)
    saver_of_1.take(1, {}, to_store=True)
    assert slow.wait(PATIENCE_S)
    saver_of_1.take(2, {}, to_store=True)
    assert not training.ckpt.why_failed

    assert saver_of_1.writer.wait(PATIENCE_S)
    saver_of_1.collect()
    gate.shut()
    saver_of_1.take(3, {}, to_store=True)
    assert gate.waiting.wait(PATIENCE_S), "it writes its state"
    saver_of_1.take(4, {}, to_store=True)  # returns: the gate is still shut
    assert training.ckpt.why_failed == saver.BUSY
