"""Changes while something dies: applied on all ranks at one step or on none, and no rank waits for long."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest
from steered import Job, Start, Store, lands, used

from torchloom.model.transaction.messages import Kind, Mail, Said
from torchloom.model.transaction.messages import Phase as MailPhase
from torchloom.model.transaction.operation import How
from torchloom.model.transaction.state import ProposerLimits
from torchloom.wire.blackbox import WorkerPhase

LR = "optimizer0.lr@0"


@pytest.fixture
def store() -> Iterator[Store]:
    made = Store()
    yield made
    made.signal(signal.SIGCONT)
    made.close()


def never_used(job: Job, value: float, ranks: int = 2) -> None:
    for rank in range(ranks):
        assert value not in used(job, rank, LR).values()


def goes_on(job: Job, rank: int = 0, steps: int = 5) -> None:
    reached = job.steps(rank) + steps
    job.until(lambda: job.steps(rank) >= reached)


# -- the store -------------------------------------------------------------------------------------


def test_a_store_that_does_not_answer_is_a_refusal_and_training_goes_on(start: Start, store: Store) -> None:
    job = start("apart", port=store.port)
    job.reach(3)
    store.signal(signal.SIGSTOP)
    told = job.change({"lr": 0.5})
    assert told.how is How.NOT_APPLIED and "store does not answer" in told.reason
    goes_on(job)
    store.signal(signal.SIGCONT)
    told = job.change({"lr": 0.6})
    assert told.how is How.APPLIED, told
    job.more(2)
    lands(job, LR, told.at_step, 0.6)
    never_used(job, 0.5)


def test_armed_ranks_whose_store_falls_silent_end_with_the_reason(start: Start, store: Store) -> None:
    job = start("apart", port=store.port)
    job.reach(3)

    def stop_the_store(rank: int, mail: Mail) -> bool:
        if mail.phase is MailPhase.CONFIRM:
            store.signal(signal.SIGSTOP)
        return True

    job.on_mail = stop_the_store
    version = job.ask(Kind.SET, {"lr": 0.5})
    assert job.wait_for_end(250) == [1, 1]  # a store waits for 300 s if it is let
    assert job.outcome(version).how is How.NOT_APPLIED
    for rank in range(2):
        assert job.answers(rank)[-1].said is Said.BROKEN
        assert "store does not say what the ranks decided" in job.end_record(rank)["message"]
    never_used(job, 0.5)


# -- messages --------------------------------------------------------------------------------------


def test_nobody_waits_long_for_a_word_that_does_not_come(start: Start) -> None:
    job = start("plain", limits=ProposerLimits(answer_timeout_s=20.0, tries=1))
    job.reach(3)
    job.on_mail = lambda rank, mail: mail.phase < MailPhase.CONFIRM
    version = job.ask(Kind.SET, {"lr": 0.5})
    job.until(lambda: job.phase(0) == WorkerPhase.CONTROL_WAIT or version in job.told)
    told = job.outcome(version)
    assert told.how is How.NOT_APPLIED and "not every rank learned in time" in told.reason
    goes_on(job)
    never_used(job, 0.5)


def test_one_rank_that_heard_is_enough_for_all(start: Start) -> None:
    job = start("plain")
    job.reach(3)
    job.on_mail = lambda rank, mail: mail.phase < MailPhase.CONFIRM or rank == 1
    told = job.change({"lr": 0.5})
    assert told.how is How.APPLIED
    job.more(2)
    lands(job, LR, told.at_step, 0.5)


# -- a rank dies -----------------------------------------------------------------------------------


def kill_when(job: Job, phase: MailPhase) -> Callable[[int, Mail], bool]:
    def on_mail(rank: int, mail: Mail) -> bool:
        if rank == 1 and mail.phase is phase and 1 not in job.codes:
            os.kill(job.pids[1], signal.SIGKILL)
        return True

    return on_mail


@pytest.mark.parametrize("phase", [MailPhase.PREPARE, MailPhase.ARM, MailPhase.CONFIRM])
def test_a_rank_killed_on_the_way_leaves_one_truth(start: Start, phase: MailPhase) -> None:
    job = start("apart")
    job.reach(3)
    job.on_mail = kill_when(job, phase)
    told = job.change({"lr": 0.5})
    assert 1 in job.codes
    goes_on(job)
    if told.how is How.APPLIED:
        lands(job, LR, told.at_step, 0.5, ranks=1)
    else:
        never_used(job, 0.5, ranks=1)
    if phase is not MailPhase.CONFIRM:
        assert told.how is How.NOT_APPLIED


def test_a_rank_killed_in_its_handler_has_the_change_undone(start: Start) -> None:
    job = start("apart")
    job.reach(3)
    told = job.change({"dropout": 0.77, "lr": 0.5}, two_phase=True, vote_timeout_s=1.0)
    assert told.how is How.NOT_APPLIED, told
    goes_on(job)
    assert all(line["dropout"] == 0.1 for line in job.values(0).values())
    never_used(job, 0.5, ranks=1)


def test_a_rank_killed_while_all_are_paused_is_told_and_the_rest_can_be_stopped(start: Start) -> None:
    job = start("apart")
    job.reach(3)
    assert job.outcome(job.ask(Kind.PAUSE)).how is How.APPLIED
    os.kill(job.pids[1], signal.SIGKILL)
    job.until(lambda: 1 in job.codes)
    job.until(lambda: job.phase(0) == WorkerPhase.PAUSED)


def test_what_a_signal_handler_raises_in_a_pause_is_the_scripts_and_the_pause_holds(start: Start) -> None:
    job = start("signals", world=1)
    job.reach(3)
    told = job.outcome(job.ask(Kind.PAUSE))
    job.until(lambda: job.phase() == WorkerPhase.PAUSED)
    os.kill(job.pids[0], signal.SIGUSR1)
    job.until(lambda: "told" in job.story())
    job.until(lambda: job.phase() == WorkerPhase.PAUSED)
    assert job.steps() == told.at_step - 1
    assert job.outcome(job.ask(Kind.RESUME)).how is How.APPLIED
    goes_on(job)
