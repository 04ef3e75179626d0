"""Mail in a box, and the bytes of mail and answers."""

from __future__ import annotations

from itertools import permutations

import pytest

from torchloom.core.transaction.attempt import FAILED, OK, vote
from torchloom.core.transaction.lead import steps_ahead
from torchloom.core.transaction.packing import (
    MailReader,
    pack_answers,
    pack_mail,
    unpack_answers,
    unpack_mail,
)
from torchloom.model.transaction.messages import (
    MAIL_KEPT,
    Answer,
    AttemptId,
    Kind,
    Mail,
    Phase,
    Proposal,
    Said,
    post,
)


def mail(phase: Phase, number: int = 1) -> Mail:
    return Mail(
        phase, Proposal(AttemptId(1, 20 - number, number), Kind.SET, {"lr": 0.1, "betas": [0.9, 0.99]}), 12
    )


def test_however_mail_arrives_the_highest_phase_stays() -> None:
    for order in permutations(Phase):
        box: tuple[Mail, ...] = ()
        for phase in order:
            box = post(box, mail(phase))
        assert box == (mail(Phase.WITHDRAW),)


def test_a_box_keeps_the_newest_attempts() -> None:
    box: tuple[Mail, ...] = ()
    for number in (3, 1, 9, 2, 7, 8):
        box = post(box, mail(Phase.ARM, number))
    assert [held.proposal.attempt.attempt for held in box] == [3, 7, 8, 9] and len(box) == MAIL_KEPT


def test_what_is_packed_is_unpacked() -> None:
    mails = tuple(mail(phase, number) for number, phase in enumerate(Phase))
    assert unpack_mail(pack_mail(mails)) == mails
    answers = tuple(
        Answer(AttemptId(1, 2, 3), 4, said, 5, True, 6, "SGD", "wäre", (("lr", 1, None),), 7, True)
        for said in Said
    )
    assert unpack_answers(pack_answers(answers)) == answers
    assert unpack_mail(b"") == unpack_answers(b"") == ()


def test_a_box_that_is_read_again_gives_what_is_in_it_now() -> None:
    reader, box = MailReader(), post((), mail(Phase.PREPARE, 1))
    for phase, number in ((Phase.ARM, 1), (Phase.PREPARE, 2), (Phase.CONFIRM, 1), (Phase.ARM, 2)):
        before = reader.read(pack_mail(box))
        box = post(box, mail(phase, number))
        after = reader.read(pack_mail(box))
        assert after == box
        assert all(any(one is known for known in before) for one in after if one in before), "not made anew"
    with pytest.raises(ValueError, match="no mail"):
        reader.read(b"[{}]")
    assert reader.read(pack_mail(box)) == box


@pytest.mark.parametrize("data", [b"{", b"7", b"[7]", b"[{}]", b'{"a": 1}', b"\xff", b"null"])
def test_damage_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="no mail"):
        unpack_mail(data)


def answer(step_s: float) -> Answer:
    return Answer(AttemptId(1, 1, 1), 0, Said.PREPARED, 10, step_ns=int(step_s * 1e9))


def test_the_lead_grows_with_the_trip_and_with_every_try() -> None:
    assert steps_ahead([answer(0.05)], took_s=0.052, tries=0) == 2
    assert steps_ahead([answer(0.005)], took_s=0.015, tries=0) == 6
    assert steps_ahead([answer(10.0)], took_s=8.0, tries=0) == 2
    assert steps_ahead([answer(0.005)], took_s=0.015, tries=2) == 20
    assert steps_ahead([answer(0)], took_s=0.0, tries=0) == 2
    assert steps_ahead([answer(1e-9)], took_s=60.0, tries=9) == 100_000


def test_the_other_ranks_are_told_how_a_traceback_ends() -> None:
    told = vote("Traceback (most recent call last):\n" + 50 * "  a line\n" + "ValueError: not 19.5")
    assert told.startswith(FAILED) and told.endswith("ValueError: not 19.5") and len(told) < 250
    assert vote("") == OK
