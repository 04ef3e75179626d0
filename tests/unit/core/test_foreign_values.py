"""Foreign values in a job's store: one incident for each generation, and nothing is restarted."""

from __future__ import annotations

from core_story import FAILED, Story

from torchloom.model.events import StoreValuesIgnored
from torchloom.model.fleet import JobState


def test_foreign_values_are_one_incident_a_generation_and_restart_nothing() -> None:
    story = Story(a=8)
    story.run()
    for rank in (0, 1, 1):
        assert story.tell(StoreValuesIgnored(node="a", ref=story.ref(rank))) == []
    (first,) = story.job().incidents
    incident = story.fleet.incidents[first]
    assert incident.kind == "store-foreign" and not incident.open and "rank 0" in incident.verdict
    assert "training continues" in incident.decision
    assert story.state() is JobState.RUNNING and story.job().restarts == 0
    story.exit(0, FAILED)
    story.end_rest()
    story.fire()
    story.bring_up()
    before = len(story.job().incidents)
    assert story.tell(StoreValuesIgnored(node="a", ref=story.ref(1))) == []
    assert len(story.job().incidents) == before + 1, "the next generation has its own"
    story.check_replay()
