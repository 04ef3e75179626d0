"""Changes for a training step that is far: kept over generations and rollbacks, told when it is past."""

from __future__ import annotations

from proposer_story import Weaver

from torchloom.core.transaction.waiting import is_near, worth_telling
from torchloom.model.transaction.messages import Answer, Kind, Phase, Said
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
)


def waiting(at_step: int = 500, training_step: int | None = 500) -> Weaver:
    weaver = Weaver()
    change = Operation(1, Kind.SET, {"lr": 0.1}, at_step=at_step, training_step=training_step)
    weaver.hear(Requested(change))
    return weaver


def test_it_is_counted_again_in_the_new_generation() -> None:
    weaver = waiting()
    weaver.hear(GenerationBegan(2, 2))
    assert not weaver.effects and not is_near(weaver.state, weaver.state.queue[0])
    weaver.hear(Progressed(2, 490))
    assert not weaver.effects, "490 of the new count may be any training step"
    assert worth_telling(weaver.state, 5, 0.0, 480) and not worth_telling(weaver.state, 5, 0.0, None)
    weaver.hear(Progressed(2, 5, offset=480))
    assert [phase for _, phase, _ in weaver.sent] == [Phase.PREPARE] * 2
    weaver.say(Said.PREPARED, step=6)
    assert {at_step for *_, at_step in weaver.sent} == {20}


def test_a_step_that_the_new_generation_goes_on_after_is_past() -> None:
    weaver = waiting()
    weaver.hear(GenerationBegan(2, 2), Progressed(2, 2, offset=600))
    assert weaver.told.how is How.NOT_APPLIED
    assert weaver.told.reason == "step 500 is past: generation 2 is at step 602"


def test_without_a_training_step_it_ends_with_its_generation() -> None:
    weaver = waiting(training_step=None)
    weaver.hear(GenerationBegan(2, 2))
    assert "counts anew" in weaver.told.reason


def test_what_was_under_way_when_ranks_died_is_for_the_next_generation() -> None:
    for arms in (False, True):
        weaver = waiting(at_step=12, training_step=12)
        weaver.say(Said.PREPARED)
        if arms:
            weaver.say(Said.ARMED)
        weaver.hear(RankEnded(1, 0, "killed"))
        weaver.hear(RankEnded(1, 1, "killed"), GenerationBegan(2, 2), Progressed(2, 1, offset=4))
        weaver.say(Said.PREPARED, step=3)
        assert {at_step for *_, at_step in weaver.sent} == {8}, arms


def test_what_was_cancelled_is_not() -> None:
    weaver = waiting(at_step=12, training_step=12)
    weaver.say(Said.PREPARED)
    weaver.say(Said.ARMED)
    weaver.hear(Cancelled(1, "ann"))
    weaver.hear(RankEnded(1, 0, "killed"), RankEnded(1, 1, "killed"), GenerationBegan(2, 2))
    assert weaver.told.how is How.NOT_APPLIED and "ann" in weaver.told.reason


def test_the_end_of_the_job_ends_it() -> None:
    weaver = waiting()
    weaver.hear(GenerationBegan(2, 2), JobEnded("completed"))
    assert "the job ended" in weaver.told.reason


def test_a_rollback_moves_the_step_away() -> None:
    weaver = waiting()
    weaver.hear(Requested(Operation(2, Kind.RESTORE, {"step": 100}, two_phase=True)))
    weaver.say(Said.PREPARED, step=300)
    weaver.say(Said.ARMED, step=301)
    at_step = weaver.state.at_step
    name = weaver.state.attempt_id
    for rank in (0, 1):
        weaver.hear(Answered(Answer(name, rank, Said.APPLIED, at_step, offset=101 - at_step)))
    assert weaver.told.how is How.APPLIED
    assert weaver.state.queue[0].at_step == at_step + 399, "training step 500 is 399 steps after step 101"
