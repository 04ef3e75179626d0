"""The weaver's side, event by event: what it sends, when it confirms, what it tells."""

from __future__ import annotations

import msgspec
from proposer_story import S, Weaver

from torchloom.core.transaction.proposer import QUEUE_LIMIT, wake_at_ns
from torchloom.model.transaction.messages import Answer, AttemptId, Kind, Phase, Said
from torchloom.model.transaction.operation import (
    Answered,
    Cancelled,
    GenerationBegan,
    How,
    JobEnded,
    Operation,
    Progressed,
    RankEnded,
    Requested,
    Send,
    Tell,
    Ticked,
)
from torchloom.model.transaction.state import Proposer, Round


def test_a_change_from_request_to_told_end() -> None:
    weaver = Weaver()
    weaver.ask()
    assert weaver.sent == [(0, Phase.PREPARE, 0), (1, Phase.PREPARE, 0)]
    weaver.say(Said.PREPARED, 0, step=10)
    assert not weaver.effects
    weaver.say(Said.PREPARED, 1, step=11)
    assert weaver.sent == [(0, Phase.ARM, 13), (1, Phase.ARM, 13)]
    weaver.say(Said.ARMED, 0, 0)
    assert not weaver.effects
    weaver.say(Said.ARMED, 1)
    assert weaver.sent == [(0, Phase.CONFIRM, 13), (1, Phase.CONFIRM, 13)]
    weaver.say(Said.APPLIED, 1, step=13)
    assert not weaver.effects
    weaver.say(Said.APPLIED, 0, step=13)
    assert (weaver.told.how, weaver.told.at_step, weaver.told.unheard) == (How.APPLIED, 13, ())
    assert weaver.told.reason == "applied at step 13 on all ranks"
    assert weaver.state.reason == "no change is in progress" and wake_at_ns(weaver.state) is None


def test_only_who_has_not_answered_is_told_again() -> None:
    weaver = Weaver()
    weaver.ask()
    weaver.say(Said.PREPARED, 0)
    assert weaver.hear(Ticked()) == []
    assert wake_at_ns(weaver.state) == S + S // 5
    weaver.now_ns += S
    weaver.hear(Ticked())
    assert weaver.sent == [(1, Phase.PREPARE, 0)]
    assert "rank 1 has not answered" in weaver.state.reason


def test_too_late_is_tried_again_with_a_longer_lead_and_not_for_ever() -> None:
    weaver, leads = Weaver(), []
    weaver.ask()
    for attempt in range(1, 6):
        assert weaver.state.attempt == attempt
        weaver.say(Said.PREPARED)
        leads.append(weaver.state.at_step - 10)
        weaver.say(Said.TOO_LATE, 1, why="step 12 is past")
        assert (0, Phase.WITHDRAW, leads[-1] + 10) in weaver.sent
    assert leads == sorted(leads) and leads[-1] > leads[0]
    assert weaver.told.how is How.NOT_APPLIED and "5 tries" in weaver.told.reason


def test_a_refusal_ends_it_with_its_reason() -> None:
    weaver = Weaver()
    weaver.ask()
    weaver.say(Said.REFUSED, 1, why="no such setting")
    assert weaver.told.reason == "rank 1 refused: no such setting"
    assert all(isinstance(e, Tell) or e.mail.unconfirmed for e in weaver.effects)


def test_silence_before_the_confirmation_is_certainly_nothing() -> None:
    weaver = Weaver()
    weaver.ask()
    weaver.now_ns += 31 * S
    weaver.hear(Ticked())
    assert weaver.told.reason == "ranks 0, 1 did not answer within 30 s"


def test_silence_after_the_confirmation_is_waited_for_until_one_rank_tells() -> None:
    weaver = Weaver()
    weaver.confirmed()
    weaver.now_ns += 1000 * S
    weaver.hear(Ticked())
    assert {phase for _, phase, _ in weaver.sent} == {Phase.CONFIRM}
    weaver.say(Said.APPLIED, 0, step=12)
    weaver.now_ns += 31 * S
    weaver.hear(Ticked())
    assert weaver.told.how is How.APPLIED and weaver.told.unheard == (1,)


def test_undone_names_the_culprit_and_carries_the_traceback() -> None:
    weaver = Weaver()
    weaver.confirmed()
    weaver.say(Said.UNDONE, 0, why="rank 1 failed: ValueError: no")
    weaver.say(Said.UNDONE, 1, why="Traceback\n  line\nValueError: no", raised=True)
    assert weaver.told.how is How.NOT_APPLIED
    assert weaver.told.reason == "undone on every rank at step 12: rank 1 failed: ValueError: no"
    assert weaver.told.trouble[1].startswith("Traceback") and weaver.told.raised == (1,)


def test_all_timed_out_is_tried_again() -> None:
    weaver = Weaver()
    weaver.confirmed()
    weaver.say(Said.NOT_APPLIED)
    assert weaver.state.attempt == 2 and weaver.state.stage is Round.PREPARING


def test_an_exit_before_the_decision_aborts() -> None:
    weaver = Weaver()
    weaver.ask()
    weaver.say(Said.PREPARED)
    weaver.hear(RankEnded(1, 0, "killed"))
    assert weaver.sent == [(1, Phase.WITHDRAW, 12)]
    assert weaver.told.reason == "rank 0 ended before the decision: killed"


def test_an_exit_after_the_confirmation_leaves_the_word_to_the_ranks() -> None:
    weaver = Weaver()
    weaver.confirmed()
    weaver.hear(RankEnded(1, 0, "killed"))
    assert weaver.sent == [(1, Phase.WITHDRAW, 12)]
    assert not weaver.effects[0].mail.unconfirmed if isinstance(weaver.effects[0], Send) else False
    weaver.say(Said.APPLIED, 1, step=12)
    assert weaver.told.how is How.APPLIED and weaver.told.unheard == (0,)


def test_the_box_of_the_dead_is_read() -> None:
    weaver = Weaver(world=1)
    weaver.ask()
    weaver.say(Said.PREPARED, 0)
    weaver.say(Said.ARMED, 0)
    applied = Answer(weaver.state.attempt_id, 0, Said.APPLIED, 12)
    weaver.hear(RankEnded(1, 0, "killed", (applied,)))
    assert weaver.told.how is How.APPLIED


def test_a_generation_that_ends_unseen_is_told_so() -> None:
    weaver = Weaver()
    weaver.confirmed()
    weaver.hear(GenerationBegan(2, 2))
    assert weaver.told.how is How.NOT_APPLIED and "no rank was seen to apply it" in weaver.told.reason


def test_changes_wait_their_turn_and_a_stop_comes_first() -> None:
    weaver = Weaver()
    weaver.confirmed()
    weaver.ask(2)
    assert not weaver.effects
    weaver.ask(3, Kind.STOP)
    weaver.say(Said.APPLIED)
    assert weaver.state.current is not None and weaver.state.current.version == 3
    weaver.hear(Requested(Operation(2, Kind.SET)))
    assert not weaver.effects, "doubled"
    for version in range(4, 4 + QUEUE_LIMIT):
        weaver.ask(version)
    assert "64 changes wait" in weaver.told.reason
    weaver.hear(JobEnded("stopped"))
    assert len([e for e in weaver.effects if isinstance(e, Tell)]) == QUEUE_LIMIT + 1
    weaver.ask(999)
    assert weaver.told.reason == "the job ended: stopped"


def test_a_cancelled_change_is_told_at_once_unless_it_is_confirmed() -> None:
    weaver = Weaver()
    weaver.ask()
    weaver.hear(Cancelled(1, "ann"))
    assert weaver.told.reason == "cancelled by ann"
    weaver = Weaver()
    weaver.confirmed()
    weaver.hear(Cancelled(1, "ann"))
    assert {phase for _, phase, _ in weaver.sent} == {Phase.WITHDRAW} and weaver.state.current is not None
    weaver.say(Said.NOT_APPLIED)
    assert weaver.told.reason == "cancelled by ann"


def test_a_named_step_is_begun_when_it_is_near_and_refused_when_past() -> None:
    weaver = Weaver()
    weaver.ask(1, at_step=100)
    assert not weaver.effects
    weaver.ask(2)
    assert weaver.sent, "another one does not wait for it"
    weaver.hear(Cancelled(2, "ann"))
    weaver.hear(Progressed(1, 85))
    weaver.say(Said.PREPARED, step=85)
    assert weaver.sent == [(0, Phase.ARM, 100), (1, Phase.ARM, 100)]
    weaver = Weaver()
    weaver.ask(1, at_step=5)
    weaver.say(Said.PREPARED, step=10)
    assert weaver.told.reason == "step 5 is past, the job is at step 10"


def test_a_paused_job_is_changed_where_it_stands() -> None:
    weaver = Weaver()
    weaver.ask()
    weaver.say(Said.PREPARED, held=True)
    assert weaver.sent == [(0, Phase.ARM, 10), (1, Phase.ARM, 10)]


def test_a_named_step_does_not_keep_a_paused_job_from_its_resume() -> None:
    weaver = Weaver()
    weaver.ask(1, at_step=12)
    weaver.say(Said.PREPARED, held=True)
    assert weaver.state.current is None and weaver.state.queue
    weaver.ask(2, Kind.RESUME)
    assert weaver.sent


def test_ranks_that_count_different_steps_are_not_steered() -> None:
    weaver = Weaver()
    weaver.ask()
    name = weaver.state.attempt_id
    weaver.hear(
        *(Answered(Answer(name, r, Said.PREPARED, 9, anchor=a)) for r, a in enumerate(("SGD", "Adam")))
    )
    assert "rank 0: SGD, rank 1: Adam" in weaver.told.reason


def test_strangers_and_old_attempts_are_not_heard() -> None:
    weaver = Weaver()
    weaver.ask()
    before = msgspec.json.encode(weaver.state)
    for name in (AttemptId(1, 1, 2), AttemptId(2, 1, 1), AttemptId(1, 9, 1)):
        weaver.hear(Answered(Answer(name, 0, Said.PREPARED, 9)))
    weaver.hear(Answered(Answer(weaver.state.attempt_id, 7, Said.PREPARED, 9)))
    weaver.hear(RankEnded(9, 0, "killed"), GenerationBegan(1, 5))
    assert msgspec.json.encode(weaver.state) == before


def test_the_state_goes_through_a_snapshot() -> None:
    weaver = Weaver()
    weaver.confirmed()
    weaver.ask(2, at_step=7)
    weaver.say(Said.APPLIED, 0)
    assert msgspec.json.decode(msgspec.json.encode(weaver.state), type=Proposer) == weaver.state


def test_contradicting_ranks_are_told_of_loudly() -> None:
    weaver = Weaver()
    weaver.confirmed()
    weaver.say(Said.APPLIED, 0)
    weaver.say(Said.NOT_APPLIED, 1)
    assert weaver.told.how is How.DIVERGED
