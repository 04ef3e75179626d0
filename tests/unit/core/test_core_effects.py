"""Effects that fail, stores that die, and events that are late, doubled or about something that is over."""

from __future__ import annotations

from core_story import FAILED, KILLED, NEVER_STARTED, OK, Story, kinds, limits, only

from torchloom.core.reducer import FORGOTTEN_TOGETHER, REMEMBERED_EVENTS, apply
from torchloom.model.effects import StartRendezvous, StartWorkers, StopRendezvous, StopWorkers
from torchloom.model.events import (
    Decided,
    EffectDone,
    EffectFailed,
    Envelope,
    FirstStep,
    JobDeleted,
    LeaseTaken,
    TimerFired,
    WorkerExited,
    WorkerRegistered,
)
from torchloom.model.fleet import Fleet, JobState
from torchloom.model.node import RendezvousRef
from torchloom.model.worker import DeviceUse, WorkerRef
from torchloom.wire import codec


def test_a_store_that_cannot_start_uses_the_budget() -> None:
    story = Story(a=8)
    store = only(StartRendezvous, story.submit())
    story.failed(store, "no port is free")
    assert story.state() is JobState.BACKOFF
    incident = story.incident()
    assert incident.kind == "start-failed"
    assert incident.verdict == "rank 0 on a could not be started: no port is free"
    assert not story.open(StopWorkers), "nothing exists that could be stopped"
    assert only(StartRendezvous, story.fire()).store == RendezvousRef("j", 2)
    story.check_replay()


def test_workers_that_cannot_start_end_in_failed_with_the_reason() -> None:
    story = Story(a=8)
    story.submit(workers=3, restarts=limits(max_fruitless=1))
    start = only(StartWorkers, story.store_up())
    effects = story.failed(start, "train.py does not exist")
    assert kinds(effects) == ["StopRendezvous"] and story.state() is JobState.BACKOFF
    story.fire()
    story.store_up()
    story.failed(story.open(StartWorkers)[0], "train.py does not exist")
    assert story.state() is JobState.FAILED
    assert "rank 0 on a could not be started: train.py does not exist; not restarted" in story.job().reason
    assert "followed" not in story.job().reason, "the others failed by themselves"
    assert len(story.incident().exits) == 3


def test_when_one_node_cannot_start_its_share_the_others_are_ended() -> None:
    story = Story(a=8, b=8)
    story.submit(workers=1, nodes=2)
    story.store_up()
    first, second = story.open(StartWorkers)
    story.started(first)
    stop = only(StopWorkers, story.failed(second, "no room for a black box"))
    assert stop.workers == (first.launches[0].ref,) and story.state() is JobState.RECOVERING
    assert story.incident().culprit == 1
    story.exit(0, KILLED)
    assert story.state() is JobState.BACKOFF


def test_the_early_store_of_the_next_generation_fails_and_is_asked_for_again() -> None:
    story = Story(a=8)
    story.run()
    story.exit(0, KILLED, steps=50)
    early = story.open(StartRendezvous)[0]
    story.failed(early)
    assert story.state() is JobState.RECOVERING
    again = only(StartRendezvous, story.exit(1, KILLED))
    assert again.store == early.store and again.id != early.id


def test_the_result_of_an_effect_that_is_not_open_has_no_effect() -> None:
    story = Story(a=8, b=8)
    story.submit()
    start = only(StartWorkers, story.store_up())
    assert story.tell(EffectFailed(node="b", effect=start.id, why="not mine")) == []
    story.started(start)
    assert story.failed(start) == [] and story.state() is JobState.RUNNING
    assert story.tell(EffectDone(node="a", effect="e99-0")) == []


def test_a_stop_of_a_store_that_failed_is_left_to_the_next_join() -> None:
    story = Story(a=8)
    story.run(workers=1)
    story.exit(0, OK)
    assert story.failed(story.open(StopRendezvous)[0]) == []
    assert only(StopRendezvous, story.join("a", stores=(RendezvousRef("j", 1),))).store == RendezvousRef(
        "j", 1
    )


def test_a_running_job_does_not_need_its_store() -> None:
    story = Story(a=8)
    story.run()
    assert story.store_lost() == []
    assert story.state() is JobState.RUNNING
    incident = story.incident()
    assert incident.kind == "store-lost" and not incident.open and story.job().incident == ""
    assert "training continues" in incident.verdict
    assert incident.decision == "nothing is restarted, because the workers are healthy"
    story.exit(0, OK)
    assert story.exit(1, OK) == [], "there is no store left to stop"


def test_a_store_lost_before_the_workers_were_started() -> None:
    story = Story(a=8)
    story.submit()
    story.store_lost()
    assert story.state() is JobState.BACKOFF and not story.open(StartRendezvous)
    assert "could not be started: the c10d store on a was killed by signal 9" in story.incident().verdict


def test_a_store_lost_while_workers_may_exist_ends_them_before_anything_new_starts() -> None:
    story = Story(a=8)
    story.submit()
    start = only(StartWorkers, story.store_up())
    stop = only(StopWorkers, story.store_lost())
    assert story.state() is JobState.RECOVERING and len(stop.workers) == 2
    assert not story.open(StartWorkers) and not story.open(StartRendezvous)
    story.started(start)
    story.exit(0, FAILED)
    assert story.state() is JobState.RECOVERING, "rank 1 may live"
    story.exit(1, NEVER_STARTED)
    incident = story.incident()
    assert story.state() is JobState.BACKOFF and story.job().restarts == 1
    assert incident.culprit is None and incident.kind == "store-lost"
    assert incident.verdict == (
        "the c10d store on a was killed by signal 9 (SIGKILL) while generation 1 was starting"
    )
    assert story.job().restarts_by_rank == {}
    story.check_replay()


def test_the_early_store_dies_while_the_old_generation_ends() -> None:
    story = Story(a=8)
    story.run()
    story.exit(0, KILLED, steps=50)
    story.store_up()
    assert story.store_lost() == [] and story.state() is JobState.RECOVERING
    assert only(StartRendezvous, story.exit(1, KILLED)).store == RendezvousRef("j", 2)


def test_what_comes_from_an_older_incarnation_has_no_effect() -> None:
    story = Story(a=8)
    story.run()
    old = story.ref(0)
    story.exit(0, KILLED, steps=50)
    story.exit(1, KILLED, steps=50)
    story.bring_up()
    before = codec.encode(story.job())
    device = DeviceUse("GPU-9", "gpu")
    assert story.exit(ref=old) == []
    assert story.tell(FirstStep(node="a", ref=old, at_ns=1)) == []
    assert story.tell(WorkerRegistered(node="a", ref=old, devices=(device,))) == []
    future = WorkerRef("j", 0, 9, 99)
    assert story.exit(ref=future) == []
    assert story.exit(ref=WorkerRef("j", 77, 2, 3), job="nobody") == []
    assert codec.encode(story.job()) == before


def test_devices_are_kept_as_the_worker_tells_them() -> None:
    story = Story(a=8)
    story.run()
    device = DeviceUse("cpu-a-0-1", "cpu", "cores 0-1")
    story.tell(WorkerRegistered(node="a", ref=story.ref(1), devices=(device,)))
    assert story.job().workers[1].devices == (device,) and story.job().workers[0].devices == ()


def test_doubled_events_change_nothing_under_the_same_id_or_another() -> None:
    story = Story(a=8)
    story.run()
    crash = WorkerExited(node="a", ref=story.ref(0), exit=KILLED, at_ns=story.now_ns, steps=50)
    assert story.tell(crash, event_id="x") != []
    kept = codec.encode((story.fleet.jobs, story.fleet.outbox, story.fleet.incidents))
    assert story.tell(crash, event_id="x") == []
    assert story.tell(crash, event_id="y") == []
    assert codec.encode((story.fleet.jobs, story.fleet.outbox, story.fleet.incidents)) == kept


def test_an_event_already_applied_is_skipped_by_its_number() -> None:
    fleet = Fleet()
    lease = Envelope("x", "w", LeaseTaken(weaver="w", epoch=3))
    apply(fleet, lease, 5, 100)
    assert apply(fleet, Envelope("y", "w", LeaseTaken(weaver="v", epoch=4)), 5, 200) == []
    assert (fleet.epoch, fleet.leader, fleet.seq, fleet.now_ns) == (3, "w", 5, 100)


def test_memory_of_event_ids_is_bounded_and_time_never_runs_backwards() -> None:
    fleet = Fleet()
    for seq in range(1, 3 * REMEMBERED_EVENTS):
        apply(fleet, Envelope(f"e{seq}", "w", TimerFired(timer="none")), seq, 1000 - seq)
        assert len(fleet.seen) < REMEMBERED_EVENTS + FORGOTTEN_TOGETHER
    assert len(fleet.seen) >= REMEMBERED_EVENTS and "e1" not in fleet.seen
    assert fleet.now_ns == 999


def test_the_epoch_only_grows() -> None:
    story = Story()
    story.tell(LeaseTaken(weaver="new", epoch=7))
    story.tell(LeaseTaken(weaver="old", epoch=5))
    assert (story.fleet.epoch, story.fleet.leader) == (7, "new")


def test_a_recorded_decision_changes_nothing() -> None:
    story = Story(a=8)
    effects = tuple(story.submit())
    kept = codec.encode(story.fleet.jobs)
    assert story.tell(Decided(epoch=1, effects=effects)) == []
    assert codec.encode(story.fleet.jobs) == kept


def test_a_timer_that_is_not_set_or_comes_too_late_does_nothing() -> None:
    story = Story(a=8)
    story.run(workers=1)
    story.exit(0, KILLED)
    timer = next(iter(story.fleet.timers))
    story.fire()
    assert story.tell(TimerFired(timer=timer)) == [] and story.job().generation == 2
    assert story.tell(TimerFired(timer="backoff/nobody/1")) == []


def test_a_timer_that_fires_early_stays_set_and_nothing_happens() -> None:
    story = Story(a=8)
    story.run(workers=1)
    story.exit(0, KILLED)
    (timer,) = story.fleet.timers.values()
    story.now_ns = timer.at_ns - 1
    assert story.tell(TimerFired(timer=timer.id), after_s=0) == []
    assert story.state() is JobState.BACKOFF and story.fleet.timers == {timer.id: timer}
    story.now_ns = timer.at_ns
    assert only(StartRendezvous, story.tell(TimerFired(timer=timer.id))).store == RendezvousRef("j", 2)
    assert not story.fleet.timers
    story.check_replay()


def test_a_job_is_submitted_once() -> None:
    story = Story(a=8)
    story.submit()
    assert story.submit() == [] and story.job().generation == 1


def test_only_an_ended_job_is_deleted_and_its_incidents_go_with_it() -> None:
    story = Story(a=8)
    story.run(workers=1, restarts=limits(max_restarts=0))
    story.tell(JobDeleted(job="j", by="ann"))
    assert "j" in story.fleet.jobs
    story.exit(0, FAILED)
    assert story.fleet.incidents
    assert story.tell(JobDeleted(job="j", by="ann")) == []
    assert not story.fleet.jobs and not story.fleet.incidents
    assert story.tell(JobDeleted(job="j", by="ann")) == []
    assert story.open(StopRendezvous), "what is still to be ended is not forgotten"


def test_a_name_used_again_is_not_mistaken_for_the_job_that_had_it() -> None:
    story = Story(a=8)
    story.run(workers=2)
    old = story.ref(0)
    story.stop(kill=True)
    story.end_rest()
    story.tell(JobDeleted(job="j", by="ann"))
    store = only(StartRendezvous, story.submit())
    assert store.store == RendezvousRef("j", 2)
    story.bring_up()
    assert story.ref(0) != old and story.ref(0).incarnation == 3
    assert story.exit(ref=old) == [] and story.state() is JobState.RUNNING
    assert story.job().restarts == 0
    story.check_replay()


def test_every_effect_says_why_in_words() -> None:
    story = Story(a=8)
    story.run()
    story.exit(0, KILLED, steps=50)
    story.end_rest()
    story.bring_up()
    story.stop()
    story.end_rest()
    assert {type(e) for e in story.effects} == {StartRendezvous, StopRendezvous, StartWorkers, StopWorkers}
    for effect in story.effects:
        assert len(effect.reason.split()) >= 3, effect
    assert len({e.id for e in story.effects}) == len(story.effects)
