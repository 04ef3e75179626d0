"""The rank's side, step by step: what it answers, what it asks the store, when it goes on."""

from __future__ import annotations

import pytest

from torchloom.core.transaction.rank import STORE_TIMEOUT_NS, Rank
from torchloom.core.transaction.rank_actions import (
    CompareSet,
    EndWorker,
    Hold,
    Look,
    Pass,
    Run,
    StopScript,
    Undo,
    Wait,
)
from torchloom.model.transaction.messages import AttemptId, Kind, Mail, Phase, Proposal, Said

S = 1_000_000_000
ID = AttemptId(3, 7, 1)
KEY = "loom/3/7.1"


def mail(
    phase: Phase, at_step: int = 12, *, kind: Kind = Kind.SET, two_phase: bool = False, **more: bool
) -> Mail:
    return Mail(phase, Proposal(ID, kind, {"lr": 0.1}, two_phase), at_step, **more)


def armed(at_step: int = 12, *, kind: Kind = Kind.SET, two_phase: bool = False, world: int = 2) -> Rank:
    """Prepared at step 10, armed at step 11, and now at the boundary of at_step."""
    rank = Rank(3, 0, world)
    rank.arrive(10)
    rank.receive(mail(Phase.PREPARE, kind=kind, two_phase=two_phase))
    if world > 1:
        assert rank.next(0) == Look((KEY,), 1 * S)
        rank.saw({})
    assert said(rank) is Said.PREPARED and rank.next(0) == Pass()
    rank.arrive(11)
    rank.receive(mail(Phase.ARM, at_step))
    assert said(rank) is Said.ARMED
    rank.arrive(at_step)
    return rank


def said(rank: Rank, attempt: AttemptId = ID) -> Said:
    return rank.answers[attempt].said


def test_nothing_to_do_costs_nothing() -> None:
    rank = Rank(1, 0, 2)
    rank.arrive(1)
    assert rank.next(0) == Pass() and not rank.answers


def test_a_confirmed_change_is_committed_and_applied_at_its_step() -> None:
    rank = armed()
    rank.receive(mail(Phase.CONFIRM))
    assert rank.next(5 * S) == CompareSet(KEY, "COMMIT", 5 * S + STORE_TIMEOUT_NS)
    rank.store_said(KEY, "COMMIT")
    assert isinstance(rank.next(5 * S), Run)
    rank.ran(changed=(("lr", 1.0, 0.1),))
    assert rank.next(5 * S) == Pass()
    assert said(rank) is Said.APPLIED
    assert rank.answers[ID].step == 12 and rank.answers[ID].changed == (("lr", 1.0, 0.1),)


def test_the_store_has_the_last_word_both_ways() -> None:
    rank = armed()
    rank.receive(mail(Phase.CONFIRM))
    rank.next(0)
    rank.store_said(KEY, "ABORT")
    assert rank.next(0) == Pass() and said(rank) is Said.NOT_APPLIED

    rank = armed()
    rank.receive(mail(Phase.CONFIRM))
    rank.receive(mail(Phase.WITHDRAW))
    assert rank.next(0) == CompareSet(KEY, "ABORT", STORE_TIMEOUT_NS)
    rank.store_said(KEY, "COMMIT")
    assert isinstance(rank.next(0), Run)


def test_without_a_word_it_waits_control_timeout_and_aborts() -> None:
    rank = armed()
    assert rank.next(5 * S) == Wait(6 * S, (KEY,))
    rank.saw({})
    assert rank.next(6 * S - 1) == Wait(6 * S, (KEY,))
    assert rank.next(6 * S) == CompareSet(KEY, "ABORT", 6 * S + STORE_TIMEOUT_NS)


def test_while_it_waits_it_follows_what_others_decided() -> None:
    rank = armed()
    rank.next(0)
    rank.saw({KEY: "COMMIT"})
    assert isinstance(rank.next(0), Run)


def test_too_late_is_said_and_nothing_is_armed() -> None:
    rank = Rank(3, 0, 1)
    rank.arrive(10)
    rank.receive(mail(Phase.PREPARE))
    rank.arrive(13)
    rank.receive(mail(Phase.ARM, 12))
    rank.receive(mail(Phase.CONFIRM, 12))
    assert said(rank) is Said.TOO_LATE and rank.next(0) == Pass()


def test_armed_at_its_own_boundary_is_in_time() -> None:
    rank = Rank(3, 0, 1)
    rank.arrive(12)
    rank.receive(mail(Phase.PREPARE))
    rank.receive(mail(Phase.ARM, 12))
    rank.receive(mail(Phase.CONFIRM, 12))
    assert isinstance(rank.next(0), Run)


def test_withdrawn_before_any_confirmation_needs_no_store() -> None:
    rank = armed()
    rank.receive(mail(Phase.WITHDRAW, unconfirmed=True))
    assert rank.next(0) == Pass() and said(rank) is Said.NOT_APPLIED


def test_a_newer_attempt_makes_waiting_for_an_older_one_pointless() -> None:
    rank = armed()
    newer = Proposal(AttemptId(3, 7, 2), Kind.SET)
    rank.receive(Mail(Phase.PREPARE, newer))
    assert rank.next(0) == CompareSet(KEY, "ABORT", STORE_TIMEOUT_NS)


@pytest.mark.parametrize("phase", Phase)
def test_mail_of_another_generation_is_not_read(phase: Phase) -> None:
    rank = Rank(4, 0, 1)
    rank.arrive(10)
    for step in (Phase.PREPARE, Phase.ARM, Phase.CONFIRM, phase):
        rank.receive(mail(step))
    rank.arrive(12)
    assert rank.next(0) == Pass() and not rank.answers


def test_a_store_that_does_not_answer_is_asked_again_and_then_the_worker_ends() -> None:
    rank = armed()
    rank.receive(mail(Phase.CONFIRM))
    ask = rank.next(0)
    rank.store_failed("refused", S)
    assert rank.next(S) == ask
    rank.store_failed("refused", STORE_TIMEOUT_NS)
    end = rank.next(STORE_TIMEOUT_NS)
    assert isinstance(end, EndWorker) and "refused" in end.why and said(rank) is Said.BROKEN
    rank.arrive(13)
    assert isinstance(rank.next(0), EndWorker), "a swallowed end comes again"


def test_with_a_dead_store_nothing_is_prepared() -> None:
    rank = Rank(3, 0, 2)
    rank.arrive(10)
    rank.receive(mail(Phase.PREPARE))
    rank.next(0)
    rank.store_failed("refused", S)
    assert said(rank) is Said.REFUSED and rank.next(S) == Pass()


def test_a_store_that_answered_lately_is_not_asked_whether_it_can_be_reached() -> None:
    def another(number: int) -> Mail:
        return Mail(Phase.ARM, Proposal(AttemptId(3, number, 1), Kind.SET, {"lr": 0.2}), 20)

    rank = armed()
    rank.receive(mail(Phase.CONFIRM))
    assert isinstance(rank.next(1 * S), CompareSet)
    rank.store_said(KEY, "COMMIT")
    assert isinstance(rank.next(2 * S - 1), Run)
    rank.ran()
    rank.receive(another(8))
    assert rank.next(2 * S - 1) == Pass() and said(rank, AttemptId(3, 8, 1)) is Said.ARMED
    rank.receive(another(9))
    assert isinstance(rank.next(2 * S), Look), "heard of it when it was asked, a second ago"


def test_two_phases_end_well_when_all_votes_are_good() -> None:
    rank = armed(two_phase=True)
    rank.receive(mail(Phase.CONFIRM))
    rank.next(0)
    rank.store_said(KEY, "COMMIT")
    rank.next(0)
    rank.ran()
    assert rank.next(0) == CompareSet(f"{KEY}/vote/0", "ok", STORE_TIMEOUT_NS)
    rank.store_said(f"{KEY}/vote/0", "ok")
    votes = (f"{KEY}/settlement", f"{KEY}/vote/0", f"{KEY}/vote/1")
    assert rank.next(0) == Wait(5 * S, votes)
    rank.saw({f"{KEY}/vote/1": "ok"})
    assert rank.next(0) == CompareSet(f"{KEY}/settlement", "KEEP", STORE_TIMEOUT_NS)
    rank.store_said(f"{KEY}/settlement", "KEEP")
    assert rank.next(0) == Pass() and said(rank) is Said.APPLIED


def counting() -> Rank:
    rank = armed(two_phase=True)
    rank.receive(mail(Phase.CONFIRM))
    rank.next(0)
    rank.store_said(KEY, "COMMIT")
    rank.next(0)
    rank.ran()
    rank.next(0)
    rank.store_said(f"{KEY}/vote/0", "ok")
    rank.next(0)
    return rank


def test_a_bad_or_missing_vote_undoes_it_and_says_whose() -> None:
    rank = counting()
    rank.saw({f"{KEY}/vote/1": "failed: ValueError: no"})
    assert rank.next(0) == CompareSet(f"{KEY}/settlement", "UNDO", STORE_TIMEOUT_NS)
    rank.store_said(f"{KEY}/settlement", "UNDO")
    assert isinstance(rank.next(0), Undo)
    rank.undone()
    assert rank.next(0) == Pass() and said(rank) is Said.UNDONE
    assert rank.answers[ID].why == "rank 1 failed: ValueError: no" and not rank.answers[ID].raised

    rank = counting()
    assert rank.next(5 * S) == CompareSet(f"{KEY}/settlement", "UNDO", 5 * S + STORE_TIMEOUT_NS)
    rank.store_said(f"{KEY}/settlement", "KEEP")
    assert said(rank) is Said.APPLIED, "the others saw the last vote"


def test_an_undo_that_fails_ends_the_worker() -> None:
    rank = counting()
    rank.saw({f"{KEY}/settlement": "UNDO"})
    assert isinstance(rank.next(0), Undo)
    rank.undone("RuntimeError")
    assert isinstance(rank.next(0), EndWorker) and said(rank) is Said.BROKEN
    assert rank.answers[ID].raised


def test_a_handler_that_raises_votes_so_and_keeps_its_traceback() -> None:
    rank = armed(two_phase=True, world=1)
    rank.receive(mail(Phase.CONFIRM))
    assert isinstance(rank.next(0), Run)
    rank.ran("Traceback …\nValueError: no")
    assert isinstance(rank.next(0), Undo)
    rank.undone()
    assert said(rank) is Said.UNDONE and "Traceback" in rank.answers[ID].why and rank.answers[ID].raised


def test_a_single_phase_that_fails_ends_the_worker_because_others_apply_it() -> None:
    rank = armed(world=1)
    rank.receive(mail(Phase.CONFIRM))
    rank.next(0)
    rank.ran("KeyError")
    assert isinstance(rank.next(0), EndWorker)


def test_pause_holds_resume_releases_stop_ends() -> None:
    rank = armed(kind=Kind.PAUSE, world=1)
    rank.receive(mail(Phase.CONFIRM))
    assert rank.next(0) == Hold() and rank.answers[ID].held
    again = Proposal(AttemptId(3, 8, 1), Kind.RESUME)
    for phase in (Phase.PREPARE, Phase.ARM, Phase.CONFIRM):
        rank.receive(Mail(phase, again, 12))
    assert rank.next(0) == Pass() and said(rank, again.attempt) is Said.APPLIED

    rank = armed(kind=Kind.STOP, world=1)
    rank.receive(mail(Phase.CONFIRM))
    assert rank.next(0) == StopScript() and rank.next(0) == StopScript()


def test_a_paused_rank_goes_on_to_the_place_of_what_was_decided_and_stands_there() -> None:
    rank = Rank(3, 0, 1, held=True)
    rank.arrive(12)
    assert rank.next(0) == Hold()
    save = Proposal(AttemptId(3, 8, 1), Kind.CHECKPOINT, two_phase=True)
    for phase in (Phase.PREPARE, Phase.ARM, Phase.CONFIRM):
        rank.receive(Mail(phase, save, 13))
    assert rank.next(0) == Pass() and rank.between_step == 13
    rank.arrive(13, between=True)
    assert rank.next(0) == Run(save)
    rank.ran()
    assert rank.next(0) == Hold() and said(rank, save.attempt) is Said.APPLIED
    change = Proposal(AttemptId(3, 9, 2), Kind.SET)
    for phase in (Phase.PREPARE, Phase.ARM, Phase.CONFIRM):
        rank.receive(Mail(phase, change, 13))
    assert rank.next(0) == Pass(), "a setting counts from the boundary on, after the forward pass"
    rank.arrive(13)
    assert rank.next(0) == Run(change)
    rank.ran()
    assert rank.next(0) == Hold() and said(rank, change.attempt) is Said.APPLIED


def test_a_script_that_does_not_come_to_the_place_after_all_undoes_what_was_decided() -> None:
    rank = Rank(3, 0, 1, held=True)
    rank.arrive(12)
    save = Proposal(AttemptId(3, 8, 1), Kind.CHECKPOINT, two_phase=True)
    for phase in (Phase.PREPARE, Phase.ARM, Phase.CONFIRM):
        rank.receive(Mail(phase, save, 13))
    assert rank.next(0) == Pass()
    rank.arrive(13)
    assert rank.next(0) == Hold() and said(rank, save.attempt) is Said.UNDONE
    assert "Checkpoint.step" in rank.answers[save.attempt].why


def test_who_leaves_armed_aborts_and_never_waits() -> None:
    rank = armed()
    rank.leave()
    assert isinstance(rank.next(0), CompareSet)
    rank.store_said(KEY, "COMMIT")
    assert rank.next(0) == Pass() and said(rank) is Said.LEFT

    rank = armed()
    rank.leave()
    rank.next(0)
    rank.store_failed("refused", 0)
    assert rank.next(0) == Pass() and said(rank) is Said.LEFT


def test_a_boundary_that_was_jumped_over_is_not_made_up_for() -> None:
    rank = armed()
    rank.arrive(13)
    rank.receive(mail(Phase.CONFIRM))
    assert rank.next(0) == CompareSet(KEY, "ABORT", STORE_TIMEOUT_NS)
    rank.store_said(KEY, "COMMIT")
    assert isinstance(rank.next(0), EndWorker)


def test_garbage_in_the_store_ends_the_worker() -> None:
    rank = armed()
    rank.receive(mail(Phase.CONFIRM))
    rank.next(0)
    rank.store_said(KEY, "MAYBE")
    assert isinstance(rank.next(0), EndWorker)


def test_old_attempts_are_forgotten_and_stay_so() -> None:
    rank = Rank(3, 0, 1)
    rank.arrive(10)
    for version in range(1, 40):
        rank.receive(Mail(Phase.PREPARE, Proposal(AttemptId(3, version, 1), Kind.SET)))
    assert len(rank.answers) <= 9
    rank.receive(Mail(Phase.PREPARE, Proposal(AttemptId(3, 1, 1), Kind.SET)))
    assert AttemptId(3, 1, 1) not in rank.answers
