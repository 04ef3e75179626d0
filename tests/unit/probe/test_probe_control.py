"""The worker's shell around the transaction, alone: a world of one, errors while armed, answers that fit."""

from __future__ import annotations

import importlib
import json
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from torchloom.agent.mail import put
from torchloom.core.transaction.packing import unpack_answers
from torchloom.model.transaction.messages import Answer, AttemptId, Kind, Mail, Phase, Proposal, Said
from torchloom.probe.box import OwnBox
from torchloom.probe.guard import LIMIT
from torchloom.probe.session import Session
from torchloom.probe.steering.control import Answers
from torchloom.probe.steering.registers import MOST_STUCK, Registers, StoreSilent
from torchloom.probe.steering.stopping import Lost, StopAtBoundary
from torchloom.wire.blackbox import (
    ANSWERS,
    END,
    HYPERPARAMETERS,
    MAIL,
    MAILBOX_AT,
    SIZE,
    Header,
    Progress,
    View,
)


class Worker:
    """A session that is not installed: the tests call the hooks themselves."""

    def __init__(self, world: int = 1) -> None:
        self.view = View(memoryview(bytearray(SIZE)))
        self.view.set_header(Header.GENERATION, 1)
        self.view.set_header(Header.WORLD_SIZE, world)
        self.session = Session(OwnBox(self.view, 0))
        self.optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
        self.used: list[float] = []
        self.attempt = 0

    def step(self) -> None:
        args = (self.optimizer,)
        self.session.steps.before(self.optimizer, args)
        self.used.append(self.optimizer.param_groups[0]["lr"])
        self.session.steps.after(self.optimizer, args)

    def mail(self, phase: Phase, kind: Kind = Kind.SET, at_step: int = 0, **values: object) -> None:
        if phase is Phase.PREPARE:
            self.attempt += 1
        proposal = Proposal(AttemptId(1, self.attempt, self.attempt), kind, values)
        put(self.view, (Mail(phase, proposal, at_step),))

    def said(self) -> Answer:
        return unpack_answers(self.view.read_blob(ANSWERS) or b"")[-1]


@pytest.fixture
def worker() -> Worker:
    return Worker()


def change(worker: Worker, **values: object) -> None:
    """All three messages, a step apart."""
    at_step = worker.session.steps.completed + 3
    for phase in (Phase.PREPARE, Phase.ARM, Phase.CONFIRM):
        worker.mail(phase, at_step=at_step, **values)
        worker.step()


def test_a_world_of_one_decides_alone(worker: Worker) -> None:
    worker.step()
    change(worker, lr=0.5)
    worker.step()
    assert worker.used == [0.1, 0.1, 0.1, 0.5, 0.5]
    assert worker.optimizer.param_groups[0]["lr"] == 0.5, "the script sees what is in force"
    assert (worker.said().said, worker.said().step) == (Said.APPLIED, 4)
    assert worker.said().changed == (("optimizer0.lr@0", 0.1, 0.5),)
    assert worker.view.progress(Progress.CONFIG_VERSION) == 1


def test_what_is_shown_is_what_steps_use(worker: Worker) -> None:
    worker.step()
    change(worker, lr={"scale": 3.0})
    worker.session.steps._housekeeping_ns = 0
    worker.step()
    shown = json.loads(worker.view.read_blob(HYPERPARAMETERS) or b"")
    assert shown["optimizers"][0]["groups"][0]["lr"] == pytest.approx(0.3)


def test_a_stop_is_answered_before_it_is_raised(worker: Worker) -> None:
    worker.step()
    for phase in (Phase.PREPARE, Phase.ARM):
        worker.mail(phase, Kind.STOP, at_step=4)
        worker.step()
    worker.mail(Phase.CONFIRM, Kind.STOP, at_step=4)
    for _ in range(2):  # a script that swallows it meets it again
        with pytest.raises(StopAtBoundary):
            worker.step()
    assert worker.said().said is Said.APPLIED


@pytest.fixture
def handled() -> Iterator[list[int]]:
    """How often the script's own handler of SIGTERM was called."""
    calls: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: calls.append(number))
    yield calls
    signal.signal(signal.SIGTERM, before)


def test_a_stop_uses_the_scripts_own_handler_at_the_agreed_step(worker: Worker, handled: list[int]) -> None:
    worker.step()
    for phase in (Phase.PREPARE, Phase.ARM):
        worker.mail(phase, Kind.STOP, at_step=4)
        worker.step()
    assert not handled
    worker.mail(Phase.CONFIRM, Kind.STOP, at_step=4)
    for _ in range(3):  # the script ends when it wants to, and its handler is called once
        worker.step()
    assert handled == [signal.SIGTERM]
    assert worker.said().said is Said.APPLIED and worker.session.steps.completed == 6


def stopped_by(worker: Worker, name: str) -> None:
    """Everything up to the boundary before step 4, at which it counts."""
    worker.step()
    for phase in (Phase.PREPARE, Phase.ARM):
        worker.mail(phase, Kind.STOP, at_step=4, signal=name)
        worker.step()
    worker.mail(Phase.CONFIRM, Kind.STOP, at_step=4, signal=name)


def test_a_stop_by_a_named_signal_uses_that_handler(worker: Worker, handled: list[int]) -> None:
    before = signal.signal(signal.SIGUSR1, lambda number, frame: handled.append(number))
    try:
        stopped_by(worker, "SIGUSR1")
        for _ in range(3):
            worker.step()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert handled == [signal.SIGUSR1], "once, and not SIGTERM"


@pytest.mark.parametrize("name", ["SIGUSR2", "SIGNOTHING", "raise_signal"])
def test_a_named_signal_that_the_script_does_not_handle_is_never_sent(worker: Worker, name: str) -> None:
    stopped_by(worker, name)
    with pytest.raises(StopAtBoundary):
        worker.step()


def test_a_stop_by_sigint_is_a_keyboard_interrupt_of_the_script(worker: Worker) -> None:
    # What Python itself installs, unless its parent ignores the signal, as a shell does for a job with `&`.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        stopped_by(worker, "SIGINT")
        with pytest.raises(KeyboardInterrupt):
            worker.step()
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_the_scripts_handler_raises_is_the_scripts(worker: Worker, handled: list[int]) -> None:
    def save_and_leave(number: int, frame: object) -> None:
        raise RuntimeError("saved")

    signal.signal(signal.SIGTERM, save_and_leave)
    worker.session.steps.install(
        importlib.import_module("torch.optim.optimizer"), lambda: False, worker.session.guard
    )
    try:
        worker.optimizer.step()
        for phase in (Phase.PREPARE, Phase.ARM):
            worker.mail(phase, Kind.STOP, at_step=4)
            worker.optimizer.step()
        worker.mail(Phase.CONFIRM, Kind.STOP, at_step=4)
        with pytest.raises(RuntimeError, match="saved"):
            worker.optimizer.step()
    finally:
        worker.session.steps.remove()
    assert worker.session.guard.trips == 0


def test_an_error_of_ours_ends_an_armed_worker_and_only_that(worker: Worker) -> None:
    worker.step()

    def broken(*_: object) -> None:
        raise RuntimeError("a bug of ours")

    worker.session.control._publish = broken  # type: ignore[method-assign]
    worker.mail(Phase.PREPARE, at_step=9, lr=0.5)
    for _ in range(LIMIT + 2):
        worker.step()
    assert worker.session.steps.completed == LIMIT + 3, "an error in steering ended the counting of steps"

    armed = Worker()
    armed.step()
    for phase in (Phase.PREPARE, Phase.ARM):
        armed.mail(phase, at_step=9, lr=0.5)
        armed.step()
    armed.session.control._publish = broken  # type: ignore[method-assign]
    armed.mail(Phase.CONFIRM, at_step=9, lr=0.5)
    with pytest.raises(Lost, match="a bug of ours"):
        armed.step()
    assert "a bug of ours" in json.loads(armed.view.read_blob(END) or b"")["message"]


@pytest.fixture(autouse=True)
def no_late_exit(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A lost worker is ended for sure; this process is none."""
    monkeypatch.setattr("faulthandler.dump_traceback_later", lambda *_, **__: None)
    yield


def test_mail_that_cannot_be_read_changes_nothing(worker: Worker) -> None:
    worker.step()
    worker.view.write_blob(MAIL, b"[{]")
    worker.view.words[MAILBOX_AT // 8] += 1
    worker.step()
    assert worker.session.guard.trips == 0
    change(worker, lr=0.5)
    assert worker.used[-1] == 0.5


# -- answers ---------------------------------------------------------------------------------------


def test_answers_fit_whatever_they_have_to_tell() -> None:
    view = View(memoryview(bytearray(SIZE)))
    places = tuple((f"optimizer0.lr@{n}", 0.1, 0.2) for n in range(3000))
    answers = [Answer(AttemptId(1, n, n), 0, Said.UNDONE, n, why="x" * 4000) for n in range(1, 8)]
    newest = Answer(AttemptId(1, 9, 9), 0, Said.APPLIED, 9, changed=places)
    box = Answers(view)
    box.write([*answers, newest])
    read = unpack_answers(view.read_blob(ANSWERS) or b"")
    assert read[-1] == replace(newest, changed=(("lr", 0.1, 0.2),))
    assert [answer.attempt for answer in read[:-1]] == [answer.attempt for answer in answers]
    different = tuple((f"optimizer0.lr@{n}", n, 0.2) for n in range(5000))
    box.write([*answers, replace(newest, changed=different)])
    assert unpack_answers(view.read_blob(ANSWERS) or b"")[-1].said is Said.APPLIED
    box.write(answers[1:])
    assert list(unpack_answers(view.read_blob(ANSWERS) or b"")) == answers[1:]
    said_more = replace(answers[1], why="y")
    box.write([said_more])
    assert unpack_answers(view.read_blob(ANSWERS) or b"") == (said_more,)


# -- the store -------------------------------------------------------------------------------------


def later_ns(seconds: float) -> int:
    return time.monotonic_ns() + int(seconds * 1e9)


def test_registers_are_written_once() -> None:
    from torch.distributed import TCPStore

    server: Any = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.port)}
    one, other = Registers(env), Registers(env)
    assert one.look(["a"], later_ns(240)) == {}
    assert one.compare_set("a", "COMMIT", later_ns(240)) == "COMMIT"
    assert other.compare_set("a", "ABORT", later_ns(240)) == "COMMIT"
    assert other.look(["a", "b"], later_ns(240)) == {"a": "COMMIT"}


def test_a_store_that_hangs_is_given_up_on_and_not_asked_for_ever() -> None:
    answered = threading.Event()

    def connect() -> Any:
        answered.wait()
        raise ConnectionError("at last")

    registers = Registers({})
    registers._connect = connect  # type: ignore[method-assign]
    for _ in range(MOST_STUCK + 2):
        with pytest.raises(StoreSilent):
            registers.compare_set("a", "COMMIT", later_ns(0.02))
    assert registers.is_stuck and registers._stuck == MOST_STUCK
    answered.set()
    while registers.is_stuck:
        time.sleep(0.001)
    with pytest.raises(StoreSilent, match="at last"):
        registers.look(["a"], later_ns(240))


def test_without_an_address_there_is_no_store() -> None:
    with pytest.raises(StoreSilent, match="MASTER_ADDR"):
        Registers({}).look(["a"], later_ns(240))
