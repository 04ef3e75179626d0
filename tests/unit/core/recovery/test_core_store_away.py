"""A job that cannot reach its checkpoint store waits for it; nothing of its budget is used up by that."""

from __future__ import annotations

from core_story import FAILED, KILLED, Story, limits, lost_peer, raised

from torchloom.core.recovery import budget
from torchloom.model.checkpoints import CheckpointPlace
from torchloom.model.events import CheckpointStoreOpened
from torchloom.model.fleet import JobState
from torchloom.model.worker import EndRecord

AWAY = EndRecord(
    "exception",
    1,
    "torchloom.errors.StoreUnreachable",
    "could not list s3://b/j within 60 s",
    store_away=True,
)


def opened(story: Story, restored: str = "") -> None:
    place = CheckpointPlace(uri="s3://b", name="j")
    story.tell(CheckpointStoreOpened(node="a", ref=story.ref(), place=place, restored=restored))


def crashed(**more: object) -> Story:
    """A job whose store was reached has crashed and comes back."""
    story = Story(a=8)
    story.run(workers=2, restarts=limits(jitter=0.0, **more))
    opened(story)
    story.exit(0, KILLED, steps=30)
    story.end_rest()
    story.bring_up()
    return story


def try_in_vain(story: Story, ran_s: float = 61.0) -> None:
    story.exit(0, FAILED, end=AWAY, ran_s=ran_s)
    story.exit(1, FAILED, end=AWAY, ran_s=ran_s)


def test_it_waits_for_as_long_as_it_takes_and_goes_on() -> None:
    story = crashed(max_restarts=2, max_fruitless=1)
    before = (story.job().restarts, story.job().fruitless, dict(story.job().restarts_by_rank))
    delays = []
    for _ in range(12):
        try_in_vain(story)
        assert story.state() is JobState.BACKOFF
        assert "the checkpoint store is unreachable: could not list s3://b/j" in story.job().reason
        (timer,) = story.fleet.timers.values()
        delays.append((timer.at_ns - story.now_ns) / 1e9)
        story.fire()
        story.bring_up()
    assert delays[:4] == [0.5, 1.0, 2.0, 4.0] and max(delays) == 30.0
    job = story.job()
    assert (job.restarts, job.fruitless, job.restarts_by_rank) == before
    (incident,) = (i for i in story.fleet.incidents.values() if i.kind == budget.STORE_AWAY)
    assert incident.open and incident.culprit is None and len(incident.exits) == 2
    assert "at no cost" in incident.decision
    opened(story, restored="step-30.g1")
    story.first_step(0)
    assert story.state() is JobState.RUNNING and job.store_waits == 0
    assert not incident.open
    story.check_replay()


def test_a_later_silence_is_another_incident() -> None:
    story = crashed()
    try_in_vain(story)
    story.fire()
    story.bring_up()
    opened(story)
    story.first_step(0)
    story.exit(0, KILLED, steps=30)
    story.end_rest()
    story.bring_up()
    try_in_vain(story)
    assert sum(i.kind == budget.STORE_AWAY for i in story.fleet.incidents.values()) == 2
    (timer,) = story.fleet.timers.values()
    assert (timer.at_ns - story.now_ns) / 1e9 == 0.5, "tries are counted anew"


def test_another_failure_while_it_waits_counts_as_ever() -> None:
    story = crashed(max_fruitless=1)
    try_in_vain(story)
    for _ in range(2):
        story.fire()
        story.bring_up()
        story.exit(0, FAILED, end=raised())
        story.end_rest()
    assert story.state() is JobState.FAILED and "brought no progress" in story.job().reason


def test_a_store_that_was_never_reached_is_likelier_wrong_than_away() -> None:
    story = Story(a=8)
    story.run(workers=1, restarts=limits(max_fruitless=1))
    for _ in range(2):
        story.exit(0, FAILED, end=AWAY)
        if story.state() is JobState.BACKOFF:
            story.fire()
            story.bring_up()
    assert story.state() is JobState.FAILED


def test_a_job_without_restarts_does_not_wait() -> None:
    story = Story(a=8)
    story.run(workers=1, restarts=limits(max_restarts=0))
    opened(story)
    story.exit(0, FAILED, end=AWAY)
    assert story.state() is JobState.FAILED


def test_a_person_can_end_the_wait() -> None:
    story = crashed()
    try_in_vain(story)
    story.stop()
    assert story.state() is JobState.STOPPED
    assert not any(i.open for i in story.fleet.incidents.values())


def test_a_peer_whose_end_is_known_first_does_not_make_it_cost_a_restart() -> None:
    story = crashed(max_restarts=2, max_fruitless=1)
    before = (story.job().restarts, story.job().fruitless, dict(story.job().restarts_by_rank))
    for turn in range(3):
        story.exit(1, FAILED, end=lost_peer())
        story.exit(0, FAILED, end=AWAY)
        assert story.state() is JobState.BACKOFF
        assert "the checkpoint store is unreachable: could not list s3://b/j" in story.job().reason
        assert f"(try {turn + 1})" in story.job().reason
        story.fire()
        story.bring_up()
    job = story.job()
    assert (job.restarts, job.fruitless, job.restarts_by_rank) == before
    newest = story.fleet.incidents[job.incident]
    assert newest.kind == budget.STORE_AWAY and newest.culprit is None and newest.open
    story.check_replay()


def test_a_rank_that_failed_by_itself_is_to_blame_wherever_the_store_is() -> None:
    story = crashed()
    story.exit(1, FAILED, end=raised())
    story.exit(0, FAILED, end=AWAY)
    assert story.fleet.incidents[story.job().incident].kind == "crash" and story.job().restarts == 2
