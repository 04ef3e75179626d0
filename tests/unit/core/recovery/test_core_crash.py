"""A worker fails: who is to blame, what is said, what happens to the others, and the timeline."""

from __future__ import annotations

from core_story import FAILED, KILLED, OK, START_NS, S, Story, kinds, limits, lost_peer, only, raised

from torchloom.core.recovery.culprit import culprits
from torchloom.core.recovery.incidents import recovery_s
from torchloom.model.checkpoints import CheckpointPlace, SavedCheckpoint
from torchloom.model.effects import StartRendezvous, StartWorkers, StopRendezvous, StopWorkers
from torchloom.model.events import CheckpointSaved, CheckpointStoreOpened, WorkerExited
from torchloom.model.fleet import JobState, WorkerState
from torchloom.model.node import RendezvousRef
from torchloom.model.worker import DeviceUse, EndRecord, Exit


def test_survivors_are_ended_and_the_next_store_is_asked_for_meanwhile() -> None:
    story = Story(a=8)
    story.run(workers=3)
    effects = story.exit(1, KILLED, steps=50)
    assert story.state() is JobState.RECOVERING
    stop = only(StopWorkers, effects)
    assert [r.rank for r in stop.workers] == [0, 2]
    assert stop.kill_in_collective and stop.grace_s == 3.0 and stop.at_step is None
    assert stop.reason == "rank 1 is gone, so its generation 1 cannot continue"
    assert only(StopRendezvous, effects).store == RendezvousRef("j", 1)
    assert only(StartRendezvous, effects).store == RendezvousRef("j", 2)

    assert story.store_up() == [], "the old generation is not gone yet"
    story.exit(0, Exit(None, 9, "spawner"))
    start = only(StartWorkers, story.exit(2, Exit(None, 15, "spawner")))
    assert story.state() is JobState.STARTING
    assert [x.ref.generation for x in start.launches] == [2, 2, 2] and start.restart_count == 1
    assert {x.ref.incarnation for x in start.launches} == {4, 5, 6}
    assert story.incident().culprit == 1 and not any(r.secondary for r in story.incident().exits)
    story.check_replay()


def test_the_only_worker_of_a_job_fails() -> None:
    story = Story(a=8)
    story.run(workers=1)
    effects = story.exit(0, FAILED, steps=50)
    assert kinds(effects) == ["StopRendezvous", "StartRendezvous"]
    assert story.state() is JobState.STARTING and story.job().generation == 2
    story.bring_up()
    assert story.state() is JobState.RUNNING


def test_a_crash_before_the_start_was_reported_withdraws_the_start() -> None:
    """Sent again, it would bring an old generation to life beside the new one."""
    story = Story(a=8)
    story.submit(workers=1)
    story.store_up()
    story.exit(0, FAILED)
    assert story.state() is JobState.BACKOFF and not story.open(StartWorkers)


def test_ranks_with_the_same_mistake_did_not_follow_each_other() -> None:
    story = Story(a=8)
    story.run(workers=4)
    story.exit(0, FAILED, end=raised("ModuleNotFoundError"))
    story.exit(1, FAILED, end=raised("ModuleNotFoundError"))
    story.exit(2, FAILED, end=lost_peer())
    story.exit(3, FAILED, end=raised("ModuleNotFoundError"))
    said = story.incident().verdict
    assert said.endswith(
        "; ranks 1, 3 failed alike, independently; rank 2 followed because its peer was gone"
    ), said


def test_all_that_were_killed_at_once_are_to_blame_and_none_that_followed() -> None:
    story = Story(a=8)
    story.run(workers=4)
    story.exit(1, KILLED, at_s=5.0)
    story.exit(2, KILLED, at_s=5.0)
    story.exit(0, FAILED, end=lost_peer())
    story.exit(3, KILLED)
    incident = story.incident()
    assert incident.culprit == 1 and culprits(incident) == (1, 2), "rank 3 was killed by us"
    assert "rank 2 was killed by signal 9 (SIGKILL), too" in incident.verdict


def test_a_kill_that_was_seen_after_our_decision_counts_if_the_agent_had_sent_no_signal() -> None:
    """On a busy host the second of two kills is noticed when the first has been decided on."""
    story = Story(a=8)
    story.run(workers=4)
    story.exit(1, KILLED)
    story.exit(2, Exit(None, 9, "spawner", foreign=True))
    story.exit(0, KILLED, end=lost_peer())
    story.exit(3, KILLED)
    assert culprits(story.incident()) == (1, 2), "rank 0 had lost its peer, rank 3 was ended by us"
    story.check_replay()


def test_ranks_of_one_mistake_are_all_to_blame_and_an_error_of_another_kind_is_only_mentioned() -> None:
    story = Story(a=8)
    story.run(workers=4)
    for rank in (0, 2):
        story.exit(rank, FAILED, end=raised("ModuleNotFoundError"))
    story.exit(1, FAILED, end=raised("TimeoutError"))
    story.exit(3, FAILED, end=lost_peer())
    assert culprits(story.incident()) == (0, 2)
    assert "rank 1 exited with code 1, too (TimeoutError)" in story.incident().verdict


def test_the_same_error_about_other_devices_is_the_same_mistake() -> None:
    story = Story(a=8)
    story.run(workers=3)
    for rank in range(2):
        message = f"device_ids [{rank}], output_device {rank} at 0x7f{rank}a"
        story.exit(rank, FAILED, end=raised("ValueError", message))
    story.exit(2, FAILED, end=raised("KeyError", "x"))
    said = story.incident().verdict
    assert said.endswith("; rank 1 failed alike, independently; rank 2 exited with code 1, too (KeyError)"), (
        said
    )


def test_the_same_error_at_the_same_line_is_the_same_mistake() -> None:
    story = Story(a=8)
    story.run(workers=2)
    place = 'Traceback …\n  File "/job/train.py", line 12, in <module>\nValueError: '
    for rank, message in ((0, "no batch for the first rank"), (1, "nothing left")):
        story.exit(rank, FAILED, end=EndRecord("exception", 1, "ValueError", message, place + message))
    assert story.incident().verdict.endswith("; rank 1 failed alike, independently")


def left(at_ns: int) -> EndRecord:
    return EndRecord("exit", 0, at_ns=at_ns)


def test_a_rank_that_leaves_with_code_0_is_why_its_peers_lose_it() -> None:
    """Whichever of the two is reported first."""
    for first in (True, False):
        story = Story(a=8)
        story.run(workers=3)
        ended = left(story.now_ns - S)
        if first:
            story.exit(1, OK, end=ended, steps=40)
        story.exit(0, FAILED, end=lost_peer(), steps=41)
        if not first:
            story.exit(1, OK, end=ended, steps=40)
        story.exit(2, FAILED, end=lost_peer(), steps=41)
        story.end_rest()
        incident = story.fleet.incidents["j.1"]
        assert incident.culprit == 1, first
        assert incident.verdict == (
            "rank 1 on a exited with code 0 after 40 steps while other ranks were still at work; "
            "ranks 0, 2 followed because their peer was gone"
        ), first
        story.check_replay()


def test_whoever_failed_by_itself_is_blamed_before_one_that_left_with_code_0() -> None:
    story = Story(a=8)
    story.run(workers=4)
    story.exit(1, OK, end=left(story.now_ns - S), steps=40)
    story.exit(0, FAILED, end=lost_peer(), steps=41)
    assert story.incident().culprit == 1
    story.exit(2, KILLED, at_s=1.0, steps=41)
    assert story.incident().culprit == 2


def test_a_rank_that_ended_well_because_it_was_told_to_is_not_blamed() -> None:
    story = Story(a=8)
    story.run(workers=3)
    story.exit(0, FAILED, end=lost_peer(), steps=41)
    story.exit(1, OK, end=left(story.now_ns + S), steps=41)
    assert story.incident().culprit == 0


def test_who_lost_the_connection_is_secondary_even_when_gone_first() -> None:
    story = Story(a=8)
    story.run(workers=3)
    story.exit(0, FAILED, end=lost_peer(), steps=30)
    assert story.incident().culprit == 0, "nobody else is known yet"
    story.exit(2, FAILED, end=lost_peer(), steps=30)
    story.exit(1, FAILED, end=raised("ValueError", "bad batch\nmore"), steps=30)
    incident = story.incident()
    assert incident.culprit == 1 and incident.exits[0].rank == 1
    assert {r.rank for r in incident.exits if r.secondary} == {0, 2}
    assert incident.verdict == (
        "rank 1 on a exited with code 1 after 30 steps: ValueError: bad batch; "
        "ranks 0, 2 followed because their peer was gone"
    )
    assert story.job().restarts_by_rank == {1: 1}


def test_the_time_of_the_exception_decides_before_the_time_of_the_exit() -> None:
    story = Story(a=8)
    story.run(workers=2)
    early = story.now_ns - 5 * S
    story.exit(0, FAILED, end=raised("KeyError", at_ns=early + S), at_s=3.0)
    story.exit(1, FAILED, end=raised("OSError", at_ns=early), at_s=1.0)
    incident = story.incident()
    assert incident.culprit == 1 and incident.timeline.fault_ns == early


def test_when_all_lost_their_connection_the_first_is_named() -> None:
    story = Story(a=8)
    story.run(workers=2)
    story.exit(1, FAILED, end=lost_peer(), at_s=0.0)
    story.exit(0, FAILED, end=lost_peer(), at_s=2.0)
    assert story.incident().culprit == 0


def test_an_exit_that_crossed_our_stop_may_be_the_culprit_one_that_followed_it_not() -> None:
    story = Story(a=8)
    story.run(workers=3)
    story.exit(0, FAILED, end=lost_peer(), steps=30)
    decided = story.incident().timeline.decided_ns
    assert story.job().workers[1].state is WorkerState.STOPPING
    story.tell(WorkerExited(node="a", ref=story.ref(1), exit=KILLED, at_ns=decided - S, steps=30))
    story.exit(2, Exit(None, 15, "spawner"), log_tail=("terminated",))
    incident = story.incident()
    assert incident.culprit == 1
    after = next(r for r in incident.exits if r.rank == 2)
    assert after.after_stop and not after.secondary and after.log_tail == ()


def test_workers_that_were_never_started_are_not_to_blame() -> None:
    story = Story(a=8, b=8)
    story.submit(workers=1, nodes=2)
    story.store_up()
    first, _second = story.open(StartWorkers)
    story.started(first)
    story.exit(0, FAILED, end=lost_peer())
    never = Exit(None, None, "inventory")
    story.tell(WorkerExited(node=story.job().workers[1].node, ref=story.ref(1), exit=never, at_ns=0))
    assert story.incident().culprit == 0 and story.incident().timeline.fault_ns > START_NS


def test_survivors_that_exit_well_are_neither_culprit_nor_secondary() -> None:
    story = Story(a=8)
    story.run(workers=2)
    story.exit(0, KILLED)
    story.exit(1, OK)
    assert story.incident().culprit == 0 and "followed" not in story.incident().verdict


def test_a_rank_that_fails_after_all_others_finished_restarts_the_job() -> None:
    story = Story(a=8)
    story.run(workers=2)
    story.exit(0, OK)
    effects = story.exit(1, FAILED, steps=99)
    assert kinds(effects) == ["StopRendezvous", "StartRendezvous"] and story.state() is JobState.STARTING


def test_the_timeline_is_complete_and_ordered_and_the_first_step_closes_the_incident() -> None:
    story = Story(a=8)
    story.run(workers=2)
    story.first_step(0)
    fault = story.now_ns
    story.exit(0, KILLED, steps=120, training_step=1120)
    story.exit(1, KILLED, steps=120, training_step=1119)
    story.bring_up()
    incident = story.incident()
    assert incident.open and story.job().incident == incident.id
    story.first_step(1, training_step=1101)
    line = incident.timeline
    times = [
        line.fault_ns,
        line.detected_ns,
        line.decided_ns,
        line.stopped_ns,
        line.spawned_ns,
        line.first_step_ns,
    ]
    assert times[0] > 0 and times == sorted(times) and line.fault_ns == fault
    assert not incident.open and story.job().incident == ""
    assert incident.lost_steps == 20, "1101 to 1120 are done again"
    assert story.job().down_ns == line.first_step_ns - fault
    assert recovery_s(incident) == (line.first_step_ns - fault) / 1e9
    story.first_step(0)
    assert incident.timeline.first_step_ns == times[-1], "only the first of the first steps counts"
    story.check_replay()


def test_a_generation_that_dies_before_its_first_step_opens_the_next_incident() -> None:
    story = Story(a=8)
    story.run(workers=1)
    story.exit(0, KILLED, steps=50)
    story.bring_up()
    first = story.incident()
    story.exit(0, FAILED)
    second = story.incident()
    assert first.id == "j.1" and second.id == "j.2" and not first.open and second.open
    assert story.job().down_ns == second.timeline.fault_ns - first.timeline.fault_ns
    story.fire()
    story.bring_up()
    story.first_step()
    assert not second.open and second.generation == 2
    assert (first.lost_steps, second.lost_steps) == (50, 0)


def test_a_first_step_of_the_failed_generation_does_not_close_its_incident() -> None:
    story = Story(a=8)
    story.run(workers=2)
    story.exit(0, KILLED)
    story.first_step(1)
    assert story.incident().open


def test_verdicts_read_as_sentences() -> None:
    story = Story(a=8)
    story.run(workers=1, restarts=limits(max_restarts=0))
    gpu = DeviceUse("GPU-1f", "gpu", "H100")
    story.job().workers[0].devices = (gpu,)
    story.exit(0, Exit(None, 11, "spawner"), steps=1, activity="in all_reduce #412 of group default")
    assert story.incident().verdict == (
        "rank 0 on a (GPU-1f) was killed by signal 11 (SIGSEGV) after 1 step; "
        "it was in all_reduce #412 of group default"
    )
    assert story.state() is JobState.FAILED
    assert story.job().reason.endswith("; not restarted: restarts are off for this job")


def test_the_training_step_is_shown_where_it_is_known() -> None:
    story = Story(a=8)
    story.run(workers=1)
    story.exit(0, FAILED, steps=7, training_step=1007, end=raised("RuntimeError", "NaN loss"))
    expected = "rank 0 on a exited with code 1 at step 1007: RuntimeError: NaN loss"
    assert story.incident().verdict == expected


def test_an_exit_nobody_saw_says_so() -> None:
    story = Story(a=8)
    story.run(workers=1)
    story.exit(0, Exit(None, None, "unknown"))
    assert "rank 0 on a ended, nobody saw how after 0 steps" in story.incident().verdict


def test_evidence_is_kept_with_the_incident() -> None:
    story = Story(a=8)
    story.run(workers=2)
    end = EndRecord("exception", 1, "ValueError", "no", "Traceback …")
    story.exit(1, FAILED, end=end, log_tail=("a", "b"), activity="training")
    report = story.incident().exits[0]
    assert (report.log_tail, report.activity, report.end) == (("a", "b"), "training", end)


def test_many_ranks_that_fail_together_are_told_in_one_short_sentence() -> None:
    story = Story(a=200)
    story.run(workers=200)
    story.exit(100, KILLED, steps=30)
    for rank in [r for r in range(200) if r != 100]:
        if rank < 20:
            story.exit(rank, FAILED, end=lost_peer())
        else:
            story.exit(rank, KILLED)
    assert story.job().generation == 2
    assert story.incident().culprit == 100
    assert "ranks 0, 1, 2, 3, 4, 5, 6, 7 … followed" in story.incident().verdict
    assert len(story.incident().verdict) < 200


def test_an_exit_tells_how_far_the_training_came() -> None:
    story = Story(a=4)
    story.run()
    story.exit(0, OK, steps=20, training_step=420)
    worker = story.job().workers[0]
    assert (worker.steps, worker.training_step) == (20, 420)


def test_work_that_no_checkpoint_kept_is_lost_and_goodput_counts_it() -> None:
    """A script that tells neither its step nor saves anything begins anew."""
    story = Story(a=8)
    story.run(workers=2)
    story.now_ns += 100 * S
    story.exit(0, KILLED, steps=90, ran_s=90.0)
    story.exit(1, Exit(None, 15, "spawner"), steps=90, ran_s=90.0)
    story.bring_up()
    for rank in range(2):
        story.first_step(rank)
    incident = story.fleet.incidents["j.1"]
    assert incident.lost_steps == 90 and story.job().lost_ns == 90 * S
    assert incident.goodput_after is not None and incident.goodput_after < 0.2
    story.check_replay()


def test_a_script_that_counts_no_steps_has_lost_those_since_its_save() -> None:
    story = Story(a=8)
    story.run(workers=1)
    place = CheckpointPlace("/data", "j")
    story.tell(CheckpointStoreOpened(node="a", ref=story.ref(), place=place))
    story.now_ns += 60 * S
    saved = SavedCheckpoint(name="auto-1", step=0, at_ns=story.now_ns)
    story.tell(CheckpointSaved(node="a", ref=story.ref(), saved=saved))
    story.now_ns += 30 * S
    story.exit(0, KILLED, steps=90, ran_s=90.0)
    story.bring_up()
    story.tell(CheckpointStoreOpened(node="a", ref=story.ref(), place=place, restored="auto-1"))
    story.first_step()
    incident = story.fleet.incidents["j.1"]
    assert incident.lost_steps is not None and 25 <= incident.lost_steps <= 35
    assert story.job().lost_ns == incident.lost_steps * S
    story.check_replay()


def test_the_words_of_sys_exit_are_in_the_verdict() -> None:
    story = Story(a=8)
    story.run(workers=1)
    story.exit(0, FAILED, steps=3, end=EndRecord("exit", 1, message="cannot open the tokenizer\nsee above"))
    assert story.incident().verdict.endswith("exited with code 1 after 3 steps: cannot open the tokenizer")
