"""Commands at the boundary: when exactly a stop strikes, and what is answered."""

from __future__ import annotations

import pytest

from torchloom.probe.box import OwnBox
from torchloom.probe.session import Session
from torchloom.probe.steering.mailbox import Inbox
from torchloom.probe.steering.stopping import StopAtBoundary
from torchloom.wire.blackbox import ANSWER_AT, MAILBOX_AT, SIZE, Mailbox, MailboxCommand, View


@pytest.fixture
def view() -> View:
    return View(memoryview(bytearray(SIZE)))


def inbox_of(view: View) -> Inbox:
    return Session(OwnBox(view, 0)).steps.inbox


def post(view: View, version: int, command: int, at_step: int = 0) -> None:
    view.words[MAILBOX_AT // 8 + Mailbox.COMMAND] = command
    view.words[MAILBOX_AT // 8 + Mailbox.AT_STEP] = at_step
    view.words[MAILBOX_AT // 8 + Mailbox.VERSION] = version


def answer(view: View) -> tuple[int, int]:
    return view.words[ANSWER_AT // 8], view.words[ANSWER_AT // 8 + 1]


def test_an_empty_mailbox_is_silent(view: View) -> None:
    inbox = inbox_of(view)
    for completed in range(5):
        inbox.check(completed)
    assert answer(view) == (0, 0)


@pytest.mark.parametrize(("at_step", "ends_after"), [(0, 3), (1, 3), (4, 3), (5, 4), (7, 6)])
def test_a_stop_posted_after_three_steps(view: View, at_step: int, ends_after: int) -> None:
    inbox = inbox_of(view)
    inbox.check(2)
    post(view, 9, MailboxCommand.STOP, at_step)
    for completed in range(3, ends_after):
        inbox.check(completed)
        assert answer(view) == (0, 0)
    with pytest.raises(StopAtBoundary) as stopped:
        inbox.check(ends_after)
    assert stopped.value.code == 0
    assert answer(view) == (9, ends_after)


def test_a_swallowed_stop_comes_again(view: View) -> None:
    inbox = inbox_of(view)
    post(view, 1, MailboxCommand.STOP)
    for completed in range(3):
        with pytest.raises(StopAtBoundary):
            inbox.check(completed)


def test_a_stop_can_be_withdrawn_and_posted_anew(view: View) -> None:
    inbox = inbox_of(view)
    post(view, 1, MailboxCommand.STOP, 10)
    inbox.check(3)
    post(view, 2, MailboxCommand.NOTHING)
    inbox.check(4)
    assert answer(view) == (2, 4)
    inbox.check(20)
    post(view, 3, MailboxCommand.STOP, 30)
    inbox.check(28)
    with pytest.raises(StopAtBoundary):
        inbox.check(29)


def test_an_unknown_command_is_answered_and_does_nothing(view: View) -> None:
    inbox = inbox_of(view)
    post(view, 4, 99, 1)
    inbox.check(5)
    assert answer(view) == (4, 5)
