"""A script has failed and its process is still ending: what is begun at once, and what waits for its exit."""

from __future__ import annotations

from core_story import FAILED, KILLED, S, Story, limits, only, raised

from torchloom.model.effects import Effect, StartRendezvous, StartWorkers, StopWorkers
from torchloom.model.events import ScriptFailed
from torchloom.model.fleet import JobState
from torchloom.model.worker import EndRecord, Exit

TERMINATED = Exit(None, 15, "spawner")


def fail(story: Story, rank: int, end: EndRecord | None = None, steps: int = 50) -> list[Effect]:
    worker = story.job().workers[rank]
    end = end or raised("ValueError", "bad batch", at_ns=story.now_ns)
    return story.tell(
        ScriptFailed(node=worker.node, ref=worker.ref, end=end, at_ns=story.now_ns + 1, steps=steps)
    )


def test_the_others_are_ended_at_once_and_the_failed_one_is_left_alone() -> None:
    story = Story(a=8)
    story.run(workers=3)
    failed_ns = story.now_ns
    effects = fail(story, 1)
    assert story.state() is JobState.RECOVERING
    stop, wait = [e for e in effects if isinstance(e, StopWorkers)]
    assert [r.rank for r in stop.workers] == [0, 2] and stop.grace_s == 3.0 and not stop.let_end
    assert [r.rank for r in wait.workers] == [1] and wait.let_end and wait.grace_s == 30.0
    assert not wait.kill_in_collective
    assert only(StartRendezvous, effects).store.generation == 2
    incident = story.incident()
    assert incident.verdict == "rank 1 on a exited with code 1 after 50 steps: ValueError: bad batch"
    assert incident.timeline.fault_ns == failed_ns and incident.timeline.detected_ns == failed_ns + 1

    story.store_up()
    story.exit(0, TERMINATED)
    story.exit(2, KILLED)
    assert story.state() is JobState.RECOVERING, "never two live incarnations of a rank"
    end = raised("ValueError", "bad batch", at_ns=failed_ns)
    start = only(StartWorkers, story.exit(1, FAILED, end=end, steps=50, log_tail=("Traceback",)))
    assert start.restart_count == 1 and story.job().restarts_by_rank == {1: 1}
    first, *others = incident.exits
    assert (first.rank, first.exit, first.log_tail) == (1, FAILED, ("Traceback",))
    assert sorted(r.rank for r in others) == [0, 2] and not any(r.secondary for r in incident.exits)
    assert incident.verdict == "rank 1 on a exited with code 1 after 50 steps: ValueError: bad batch"
    assert incident.timeline.fault_ns == failed_ns
    story.check_replay()


def test_a_code_without_an_exception_is_told_with_the_exit_too() -> None:
    story = Story(a=8)
    story.run(workers=2)
    fail(story, 0, EndRecord("exit", 3, at_ns=story.now_ns))
    assert story.incident().verdict == "rank 0 on a exited with code 3 after 50 steps"
    story.exit(1, KILLED)
    story.exit(0, Exit(7, None, "spawner"), end=EndRecord("exit", 3), steps=50, activity="ending for 0.6 s")
    first = story.incident().exits[0]
    assert first.rank == 0 and first.exit.code == 7 and not first.after_stop, "its own hook chose it"
    assert "exited with code 7" in story.incident().verdict
    assert story.job().restarts == 1


def test_one_that_did_not_end_by_itself_is_told_as_its_script_ended() -> None:
    for exit in (KILLED, Exit(0, None, "spawner"), Exit(None, None, "operator")):
        story = Story(a=8)
        story.run(workers=2)
        fail(story, 0)
        story.exit(1, KILLED)
        story.exit(0, exit, steps=50)
        incident = story.incident()
        assert incident.culprit == 0 and incident.exits[0].exit == Exit(1, None, "end-record")
        assert "exited with code 1 after 50 steps: ValueError" in incident.verdict
        assert story.job().restarts == 1 and len(incident.exits) == 2
        story.check_replay()


def test_an_earlier_failure_that_is_told_later_is_the_cause() -> None:
    story = Story(a=8)
    story.run(workers=2)
    early = story.now_ns - S
    fail(story, 0)
    assert fail(story, 1, raised("OSError", at_ns=early)) == []
    assert story.incident().culprit == 1 and "OSError" in story.incident().verdict
    story.exit(1, TERMINATED, end=raised("OSError", at_ns=early), steps=50)
    story.exit(0, FAILED, end=raised("ValueError", at_ns=early + S), steps=50)
    incident = story.incident()
    assert incident.culprit == 1 and [r.rank for r in incident.exits] == [1, 0]
    assert incident.exits[1].secondary and incident.timeline.fault_ns == early


def test_it_changes_nothing_in_a_generation_that_is_being_ended() -> None:
    story = Story(a=8)
    story.run(workers=2)
    story.exit(0, KILLED, steps=50)
    assert fail(story, 1, raised("OSError", at_ns=story.now_ns + S)) == []
    story.exit(1, TERMINATED, end=raised("OSError", at_ns=story.now_ns), steps=50)
    assert story.incident().culprit == 0 and story.job().generation == 2


def test_an_old_incarnation_or_a_good_end_is_no_failure() -> None:
    story = Story(a=8)
    story.run(workers=2)
    assert fail(story, 0, EndRecord("exit", 0)) == [] and story.state() is JobState.RUNNING
    old = story.ref(1)
    story.exit(1, KILLED, steps=50)
    story.exit(0, KILLED)
    story.bring_up()
    assert story.tell(ScriptFailed(node="a", ref=old, end=raised(), at_ns=story.now_ns)) == []
    assert story.state() is JobState.RUNNING


def test_what_a_person_stops_meanwhile_is_stopped() -> None:
    story = Story(a=8)
    story.run(workers=2)
    fail(story, 0)
    stop = only(StopWorkers, story.stop(kill=True))
    assert [r.rank for r in stop.workers] == [0, 1] and stop.grace_s == 0.0 and not stop.let_end
    story.end_rest(KILLED)
    assert story.state() is JobState.STOPPED
    story.check_replay()


def test_without_restarts_left_the_job_fails_when_all_are_gone() -> None:
    story = Story(a=8)
    story.run(workers=2, restarts=limits(max_restarts=0))
    fail(story, 0)
    story.exit(1, KILLED)
    assert story.state() is JobState.RECOVERING
    story.exit(0, FAILED, end=raised(at_ns=story.now_ns), steps=50)
    assert story.state() is JobState.FAILED and "ValueError" in story.job().reason


def test_an_error_that_names_a_variable_which_was_not_forwarded_says_how_to_forward_it() -> None:
    hint = "; MY_KEY was set where the job was submitted and was not forwarded: submit with --env MY_KEY"
    for exception, message, told in (
        ("KeyError", "'MY_KEY'", hint),
        ("RuntimeError", "set MY_KEY in the environment first", hint),
        ("KeyError", "'HOST'", hint.replace("MY_KEY", "HOST")),
        ("KeyError", "'OTHER'", ""),
        (
            "KeyError",
            "'TORCHFT_LIGHTHOUSE'",
            "; a script of torchft needs a lighthouse: `loom run --replicas N` gives it one",
        ),
        ("RuntimeError", "MY_KEYS and NOT_MY_KEY are missing", ""),
        ("RuntimeError", "the HOST is gone", ""),
    ):
        story = Story(a=8)
        story.run(workers=2, env_withheld=("MY_KEY", "HOST"))
        fail(story, 0, raised(exception, message, at_ns=story.now_ns))
        said = f"rank 0 on a exited with code 1 after 50 steps: {exception}: {message}"
        assert story.incident().verdict == said + told
        end = raised(exception, message, at_ns=story.now_ns)
        story.exit(1, KILLED)
        story.exit(0, FAILED, end=end, steps=50)
        assert story.incident().verdict == said + told, "also when its process is gone"
        story.check_replay()
