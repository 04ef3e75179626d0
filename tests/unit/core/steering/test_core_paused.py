"""A job that is paused stays so until somebody resumes it, whatever becomes of its processes."""

from __future__ import annotations

from core_story import FAILED
from finding_story import hang, made
from steering_story import SteeringStory

from torchloom.model.effects import StartWorkers
from torchloom.model.events import FirstStep, NodeGone, NodeUnreachable, ScaleRequested
from torchloom.model.fleet import JobState
from torchloom.model.transaction.messages import Kind, Phase, Said


def paused(**nodes: int) -> SteeringStory:
    story = SteeringStory(**(nodes or {"a": 8}))
    workers = max(1, 2 // max(1, len(nodes)))
    story.run(workers=workers, nodes=max(1, len(nodes)), min_workers=1, max_workers=4)
    story.step()
    story.ask(kind=Kind.PAUSE, operation="p")
    story.carry()
    assert story.job().paused
    return story


def stand(story: SteeringStory, training_step: int | None = None) -> None:
    """Every rank of the new generation stands before its first step."""
    for worker in story.job().workers:
        story.tell(
            FirstStep(node=worker.node, ref=worker.ref, at_ns=1, training_step=training_step, paused=True)
        )


def resume(story: SteeringStory) -> None:
    ranks = tuple(range(len(story.job().workers)))
    story.ask(kind=Kind.RESUME, operation="r")
    assert story.mail().phase is Phase.PREPARE
    story.answer(Said.PREPARED, ranks, step=1, held=True)
    assert story.mail().at_step == 1
    story.answer(Said.ARMED, ranks, step=1, held=True)
    story.answer(Said.APPLIED, ranks, step=1)
    assert not story.job().paused and story.record("r").state == "applied"


def test_a_restart_comes_back_paused_and_can_be_resumed() -> None:
    story = paused()
    story.exit(0, FAILED, training_step=30)
    story.end_rest()
    if story.state() is JobState.BACKOFF:
        story.fire()
    story.store_up()
    assert all(start.paused for start in story.open(StartWorkers))
    story.started()
    assert story.state() is JobState.RUNNING and story.job().paused
    stand(story, training_step=20)
    assert not story.incident().open and story.incident().lost_steps == 10, "it is back: the rest is a wish"
    resume(story)
    story.exit(0, FAILED)
    story.end_rest()
    if story.state() is JobState.BACKOFF:
        story.fire()
    story.store_up()
    assert not any(start.paused for start in story.open(StartWorkers)), "it is over with the resume"
    story.check_replay()


def test_a_resume_during_the_restart_counts_for_the_next_generation() -> None:
    story = paused()
    story.exit(0, FAILED)
    assert story.state() is JobState.RECOVERING
    story.ask(kind=Kind.RESUME, operation="r")
    assert story.record("r").state == "applied" and "recovering" in story.record("r").reason
    story.end_rest()
    if story.state() is JobState.BACKOFF:
        story.fire()
    story.store_up()
    assert not any(start.paused for start in story.open(StartWorkers))
    story.check_replay()


def test_a_resume_before_the_ranks_stand_waits_for_them() -> None:
    story = paused()
    story.exit(0, FAILED)
    story.end_rest()
    if story.state() is JobState.BACKOFF:
        story.fire()
    story.bring_up()
    story.ask(kind=Kind.RESUME, operation="early")
    assert story.record("early").state == "waiting" and "first step" in story.record("early").reason
    stand(story)
    assert story.record("early").state == "preparing"
    story.check_replay()


def test_another_size_comes_back_paused() -> None:
    story = paused()
    story.tell(ScaleRequested(job="j", workers=4, by="bob", progress=()))
    story.end_rest()
    story.bring_up()
    assert (len(story.job().workers), story.job().paused) == (4, True)
    stand(story)
    resume(story)
    story.check_replay()


def test_after_a_lost_node_it_comes_back_paused() -> None:
    story = paused(a=1, b=1)
    story.tell(NodeUnreachable(node="b", silent_s=4))
    story.tell(NodeGone(node="b", by="ann", steps={"j": 50}))
    story.end_rest()
    while story.state() is not JobState.STARTING:
        story.fire()
    story.bring_up()
    assert (len(story.job().workers), story.job().paused) == (1, True)
    stand(story)
    resume(story)


def test_a_job_that_was_stopped_while_paused_is_not_when_it_is_begun_again() -> None:
    story = paused()
    story.stop()
    story.end_rest()
    assert story.state() is JobState.STOPPED and not story.job().paused


def test_a_pause_that_a_hung_job_does_not_take_names_whom_it_waits_for() -> None:
    story = SteeringStory(a=8)
    story.run(workers=2)
    story.step()
    busy = "rank 1 has not entered; its device has been busy for 9.0 s without finishing what it runs"
    story.tell(made(hang(sentence=busy)))
    story.ask(kind=Kind.PAUSE, operation="p")
    for _ in range(20):
        if story.record("p").ended:
            break
        story.fire()
    record = story.record("p")
    assert record.state == "not applied" and "did not answer within" in record.reason
    assert busy in record.reason, "the hang is the reason behind the reason"
