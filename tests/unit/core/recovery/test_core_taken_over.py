"""A run whose checkpoints another run has taken over ends at once: no restart could ever resume or save."""

from __future__ import annotations

import pytest
from core_story import FAILED, KILLED, Story, limits, lost_peer

from torchloom.model.fleet import JobState
from torchloom.model.worker import EndRecord

WHY = "another run of nightly has taken over: it began generation 2 there: stop one of the two"
FENCED = EndRecord("exception", 1, "torchloom.errors.RunTakenOver", WHY, taken_over=True)


def crashed() -> Story:
    story = Story(a=8)
    story.run(workers=2, restarts=limits(jitter=0.0, max_restarts=500, max_fruitless=500))
    story.exit(0, KILLED, steps=30)
    story.end_rest()
    story.bring_up()
    return story


@pytest.mark.parametrize("ends", [(FENCED, FENCED), (lost_peer(), FENCED), (FENCED, lost_peer())])
def test_it_fails_at_its_first_restart_whichever_end_is_known_first(
    ends: tuple[EndRecord, EndRecord],
) -> None:
    story = crashed()
    for rank, end in enumerate(ends):
        story.exit(rank, FAILED, end=end, steps=500, ran_s=500.0)
    job = story.job()
    assert story.state() is JobState.FAILED and job.restarts == 1, job.reason
    assert job.reason.startswith(WHY) and "not restarted" in job.reason
    incident = story.fleet.incidents[job.incident]
    assert incident.kind == "taken-over" and incident.culprit is None and not incident.open
    assert not story.fleet.timers
    story.check_replay()


def test_a_run_that_was_never_restarted_ends_the_same_way() -> None:
    story = Story(a=8)
    story.run(workers=1, restarts=limits())
    story.exit(0, FAILED, end=FENCED)
    assert story.state() is JobState.FAILED and story.job().restarts == 0
