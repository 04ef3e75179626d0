"""Submissions with a key, deletions with their files, and what events change, in words."""

from __future__ import annotations

from core_story import FAILED, KILLED, START_NS, Story, limits, only, spec
from notice_story import apply_and_tell

from torchloom.core import jobs
from torchloom.model.effects import RemoveJobFiles
from torchloom.model.events import Envelope, Event, JobDeleted, JobSubmitted
from torchloom.model.fleet import JobState, Submission
from torchloom.model.notice import Notice
from torchloom.wire import codec


def submitted(job: str, key: str, digest: str = "d") -> JobSubmitted:
    return JobSubmitted(job=job, spec=spec(1), by="ann", key=key, digest=digest)


def end(story: Story) -> None:
    story.stop(kill=True)
    story.end_rest()
    for effect in list(story.fleet.outbox.values()):
        story.done(effect)


def test_of_two_submissions_with_one_key_the_first_makes_the_job() -> None:
    story = Story(a=8)
    assert story.tell(submitted("one", "k"))
    assert story.tell(submitted("two", "k", "other")) == []
    assert list(story.fleet.jobs) == ["one"]
    assert story.fleet.keys == {"k": Submission("one", "d")}
    story.tell(submitted("two", "another"))
    assert list(story.fleet.jobs) == ["one", "two"]
    story.check_replay()


def test_a_submission_that_makes_no_job_takes_no_key() -> None:
    story = Story(a=8)
    story.tell(submitted("one", "k"))
    story.tell(submitted("one", "other"))
    assert list(story.fleet.keys) == ["k"]


def test_old_keys_are_forgotten() -> None:
    story = Story(a=8)
    before, jobs.REMEMBERED_KEYS = jobs.REMEMBERED_KEYS, 2
    try:
        for number in range(3):
            story.tell(submitted(f"j{number}", f"k{number}"))
    finally:
        jobs.REMEMBERED_KEYS = before
    assert list(story.fleet.keys) == ["k1", "k2"]


def test_the_files_of_a_deleted_job_go_from_every_node_that_held_it() -> None:
    story = Story(a=2, b=2)
    story.run(workers=2, nodes=2)
    end(story)
    effects = story.tell(JobDeleted(job="j", by="ann", keep_logs=False))
    assert sorted(e.node for e in effects if isinstance(e, RemoveJobFiles)) == ["a", "b"]
    assert all(e.job == "j" and e.generation == 1 for e in effects if isinstance(e, RemoveJobFiles))
    story.done(*effects)
    assert not story.fleet.outbox
    story.check_replay()


def test_files_are_kept_on_request_and_where_events_do_not_tell() -> None:
    story = Story(a=2)
    story.run(workers=2)
    end(story)
    assert story.tell(JobDeleted(job="j", by="ann")) == []


def test_a_new_job_of_the_name_keeps_its_files() -> None:
    story = Story(a=2)
    story.run(workers=2)
    end(story)
    only(RemoveJobFiles, story.tell(JobDeleted(job="j", by="ann", keep_logs=False)))
    story.submit()
    assert story.open(RemoveJobFiles) == []


def test_files_that_cannot_be_removed_are_not_asked_for_for_ever() -> None:
    story = Story(a=2)
    story.run(workers=2)
    end(story)
    effect = only(RemoveJobFiles, story.tell(JobDeleted(job="j", by="ann", keep_logs=False)))
    assert story.failed(effect) == [] and story.open(RemoveJobFiles) == []


class Told:
    """The same story told to a second fleet by `apply_and_tell`."""

    def __init__(self, story: Story) -> None:
        from torchloom.model.fleet import Fleet

        self.fleet = Fleet()
        self.notices: list[Notice] = []
        for data, seq, now_ns in story.stream:
            notice = apply_and_tell(self.fleet, codec.decode_envelope(data), seq, now_ns)
            assert notice is not None
            self.notices.append(notice)
            assert apply_and_tell(self.fleet, codec.decode_envelope(data), seq + 1, now_ns) is None
            self.fleet.seq = seq


def test_notices_tell_what_changed_and_the_fleet_is_the_same() -> None:
    story = Story(a=8)
    story.run(workers=1, restarts=limits(max_restarts=0))
    story.exit(0, FAILED)
    told = Told(story)
    assert codec.encode(told.fleet) == codec.encode(story.fleet)
    first = next(n for n in told.notices if n.kind == "job-submitted")
    assert (first.job, first.by, first.topics) == ("j", "ann", ("job",))
    assert [change.state for change in first.jobs] == ["starting"]
    last = told.notices[-1]
    assert last.kind == "worker-exited" and last.rank == 0 and "incident" in last.topics
    assert [change.state for change in last.jobs] == [str(JobState.FAILED)]
    assert last.incidents[0].job == "j" and not last.incidents[0].open
    assert "exited with code 1" in last.text


def test_room_that_appears_is_told_of_the_job_that_waited() -> None:
    story = Story(a=1)
    story.run("first", workers=1)
    story.submit("second", workers=1)
    assert story.state("second") is JobState.WAITING
    story.stop("first", kill=True)
    story.end_rest(KILLED, "first")
    changes = [change for notice in Told(story).notices[-3:] for change in notice.jobs]
    assert ("second", "starting") in [(change.id, change.state) for change in changes]


def test_no_value_of_an_environment_can_be_in_a_notice() -> None:
    body: Event = JobSubmitted(job="j", spec=spec(1, env_names=("SECRET",)), by="ann")
    notice = apply_and_tell(Story(a=1).fleet, Envelope("x", "w", body), 99, START_NS)
    assert b"SECRET" not in codec.encode(notice)
