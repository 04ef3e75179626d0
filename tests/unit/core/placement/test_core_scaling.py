"""More or fewer workers because somebody asked: at a boundary, within limits, only while there is room."""

from __future__ import annotations

from core_story import Story, kinds

from torchloom.core.placement.resize import refusal
from torchloom.model.effects import StartWorkers, StopWorkers
from torchloom.model.events import NodeGone, NodeUnreachable, ScaleRequested, WorkerProgress
from torchloom.model.fleet import JobState


def scale(story: Story, workers: int, steps: int = 0) -> list[str]:
    ranks = range(len(story.job().workers)) if steps else range(0)
    progress = tuple(WorkerProgress(rank, steps, 0.1) for rank in ranks)
    return kinds(story.tell(ScaleRequested(job="j", workers=workers, by="bob", progress=progress)))


def test_a_running_job_ends_at_a_boundary_and_goes_on_with_more() -> None:
    story = Story(a=8)
    story.run(workers=2, max_workers=4)
    assert scale(story, 4, steps=30) == ["StopWorkers"]
    (stop,) = story.open(StopWorkers)
    assert stop.at_step is not None and stop.at_step > 30 and story.state() is JobState.STOPPING
    story.end_rest()
    assert story.state() is JobState.STARTING and story.job().reason == "bob wants 4 workers"
    assert len(story.job().workers) == 4 and not story.job().restarts and not story.fleet.incidents
    story.bring_up()
    assert story.state() is JobState.RUNNING and story.job().reason.endswith("all 4 workers run")
    story.exit(0, steps=50)
    story.end_rest()
    assert len(story.job().workers) == 4, "also after a failure"
    story.check_replay()


def test_fewer_on_several_nodes() -> None:
    story = Story(a=2, b=2)
    story.run(workers=2, nodes=2, min_workers=1)
    scale(story, 3)
    story.end_rest()
    story.store_up()
    assert [s.world_size for s in story.open(StartWorkers)] == [3, 3]
    assert sorted(len(s.launches) for s in story.open(StartWorkers)) == [1, 2]


def test_a_shrunk_job_grows_on_demand() -> None:
    story = Story(a=2, b=2)
    story.run(workers=2, nodes=2, min_workers=2)
    story.tell(NodeUnreachable(node="b", silent_s=4))
    story.tell(NodeGone(node="b", by="ann", steps={"j": 50}))
    story.end_rest()
    story.fire()
    story.bring_up()
    assert len(story.job().workers) == 2
    assert scale(story, 4) == [] and story.state() is JobState.RUNNING, "no room: it is left alone"
    story.join("c", 2)
    assert scale(story, 4) == ["StopWorkers"]
    story.end_rest()
    assert len(story.job().workers) == 4


def test_what_cannot_be_is_refused_and_nothing_is_touched() -> None:
    story = Story(a=4)
    story.run(workers=2)
    assert "for 2 workers only" in refusal(story.fleet, story.job(), 3)
    assert scale(story, 3) == [] and story.state() is JobState.RUNNING and not story.job().target
    other = Story(a=4)
    other.run(workers=4, replicas=2, min_workers=2, max_workers=8)
    assert "2 to 8 workers" in refusal(other.fleet, other.job(), 1)
    assert "replicas of 2" in refusal(other.fleet, other.job(), 3)
    assert "no room for 8" in refusal(other.fleet, other.job(), 8)
    assert not refusal(other.fleet, other.job(), 2)


def test_a_stop_that_follows_wins() -> None:
    story = Story(a=8)
    story.run(workers=2, max_workers=4)
    scale(story, 4)
    story.stop()
    story.end_rest()
    assert story.state() is JobState.STOPPED and not story.job().resizing


def test_a_job_that_is_being_recovered_takes_it_at_its_next_start() -> None:
    story = Story(a=8)
    story.run(workers=2, max_workers=4)
    story.exit(0, steps=50)
    assert scale(story, 3) == []
    story.end_rest()
    assert story.state() is JobState.STARTING and len(story.job().workers) == 3
