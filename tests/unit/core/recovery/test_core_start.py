"""From submission to the end of a job that never fails, where jobs are placed, and how they wait for room."""

from __future__ import annotations

from core_story import NEVER_STARTED, OK, Story, kinds, limits, only

from torchloom.model.effects import StartRendezvous, StartWorkers, StopRendezvous, StopWorkers
from torchloom.model.events import WorkersStarted
from torchloom.model.fleet import JobState, WorkerState
from torchloom.model.node import RendezvousAddress, RendezvousRef


def test_submit_store_workers_running_completed() -> None:
    story = Story(a=8)
    store = only(StartRendezvous, story.submit(workers=2))
    assert (store.store, store.node, store.host) == (RendezvousRef("j", 1), "a", "127.0.0.1")
    assert story.state() is JobState.STARTING and "submitted by ann" in store.reason

    start = only(StartWorkers, story.store_up(store, port=1234))
    assert [(x.ref.rank, x.ref.generation, x.local_rank) for x in start.launches] == [(0, 1, 0), (1, 1, 1)]
    assert (start.world_size, start.local_world_size, start.restart_count) == (2, 2, 0)
    assert start.store == RendezvousAddress("127.0.0.1", 1234)
    assert "store of generation 1 is up" in start.reason

    assert story.started(start) == []
    assert story.state() is JobState.RUNNING
    assert [w.pid for w in story.job().workers] == [4000, 4001]
    assert story.job().reason == "generation 1: all 2 workers run"

    assert story.exit(0, OK) == []
    assert story.state() is JobState.RUNNING, "one rank may finish before the other"
    stop = only(StopRendezvous, story.exit(1, OK))
    assert stop.store == RendezvousRef("j", 1)
    assert story.state() is JobState.COMPLETED
    assert story.job().reason == "all 2 workers exited with code 0"
    story.done(stop)
    assert not story.fleet.outbox and not story.fleet.incidents and not story.fleet.timers
    story.check_replay()


def test_a_job_over_two_nodes_gets_group_ranks_and_an_address_others_can_reach() -> None:
    story = Story(a=4, b=4)
    store = only(StartRendezvous, story.submit(workers=2, nodes=2, replicas=2))
    assert store.host == f"{store.node}.example"
    starts = [e for e in story.store_up() if isinstance(e, StartWorkers)]
    assert [(s.group_rank, s.group_world_size, s.world_size) for s in starts] == [(0, 2, 4), (1, 2, 4)]
    assert [[x.ref.rank for x in s.launches] for s in starts] == [[0, 1], [2, 3]]
    assert [[x.local_rank for x in s.launches] for s in starts] == [[0, 1], [0, 1]]
    assert [w.replica for w in story.job().workers] == [0, 0, 1, 1]
    assert starts[0].node == store.node != starts[1].node
    story.started(starts[0])
    assert story.state() is JobState.STARTING
    story.started(starts[1])
    assert story.state() is JobState.RUNNING
    story.check_replay()


def test_without_a_node_the_job_waits_and_says_what_to_do() -> None:
    story = Story()
    assert story.submit() == []
    assert story.state() is JobState.WAITING and "loom agent" in story.job().reason
    assert kinds(story.join("a")) == ["StartRendezvous"]
    assert story.state() is JobState.STARTING


def test_waiting_for_room_names_what_is_missing_and_goes_on_by_itself() -> None:
    story = Story(a=3)
    story.run("first", workers=2)
    assert story.submit("second", workers=2) == []
    reason = "needs 1 node with room for 2 more workers; 0 of 1 connected nodes have it"
    assert story.state("second") is JobState.WAITING and reason in story.job("second").reason
    story.exit(0, OK, "first")
    assert story.state("second") is JobState.STARTING, "two slots are free when one rank has finished"
    assert only(StartRendezvous, story.effects[-1:]).reason == "there is room now"


def test_those_who_waited_longest_are_placed_first_and_small_ones_may_pass() -> None:
    story = Story(a=2)
    story.run("first", workers=2)
    for job, workers in [("big", 4), ("second", 2), ("third", 2)]:
        story.submit(job, workers=workers)
    story.exit(0, OK, "first")
    assert {story.state(j) for j in ("big", "second", "third")} == {JobState.WAITING}
    story.exit(1, OK, "first")
    assert story.state("second") is JobState.STARTING
    assert story.state("third") is story.state("big") is JobState.WAITING
    story.check_replay()


def test_room_freed_by_a_start_that_failed_is_used() -> None:
    story = Story(a=2)
    story.submit("first", workers=2, restarts=limits(max_restarts=0))
    story.submit("second", workers=2)
    assert story.state("second") is JobState.WAITING
    story.failed(story.open(StartRendezvous)[0], "no port is free")
    assert story.state("first") is JobState.FAILED
    assert story.state("second") is JobState.STARTING


def test_several_jobs_share_a_node_and_do_not_disturb_each_other() -> None:
    story = Story(a=8, b=8)
    for job in ("x", "y", "z"):
        story.run(job, workers=3)
    assert len({w.ref for job in ("x", "y", "z") for w in story.job(job).workers}) == 9
    story.exit(1, job="y")
    assert [story.state(j) for j in ("x", "y", "z")] == [
        JobState.RUNNING,
        JobState.RECOVERING,
        JobState.RUNNING,
    ]
    story.exit(0, OK, "x")
    assert all(w.state is WorkerState.RUNNING for w in story.job("z").workers)
    story.check_replay()


def test_the_emptiest_node_is_taken_and_the_one_that_held_the_job_before_is_preferred() -> None:
    story = Story(a=4, b=8)
    story.run("j", workers=2)
    assert story.job().workers[0].node == "b"
    story.run("k", workers=4)
    assert story.job("k").workers[0].node == "b", "6 free are more than 4"
    story.exit(0, steps=100)
    story.end_rest()
    assert {w.node for w in story.job().workers} == {"b"}, "its spawner is warm there"


def test_ranks_may_finish_before_the_last_one_has_started() -> None:
    story = Story(a=4, b=4)
    story.submit(workers=1, nodes=2)
    story.store_up()
    first, second = story.open(StartWorkers)
    story.started(first)
    story.exit(0, OK)
    assert story.state() is JobState.STARTING
    story.started(second)
    assert story.state() is JobState.RUNNING
    story.exit(1, OK)
    assert story.state() is JobState.COMPLETED


def test_an_exit_that_overtakes_the_report_of_the_start_closes_the_start() -> None:
    """Else the start would be sent again for ever, and a worker of a job that is over begin to run."""
    story = Story(a=4)
    story.submit(workers=1)
    start = only(StartWorkers, story.store_up())
    story.exit(0, OK)
    assert story.state() is JobState.COMPLETED
    assert not story.open(StartWorkers)
    assert not [e for e in story.started(start) if isinstance(e, StopWorkers)], "it was seen to end"


def test_a_start_that_tells_of_some_ranks_only_stays_open() -> None:
    story = Story(a=4)
    story.submit(workers=2)
    start = only(StartWorkers, story.store_up())
    story.tell(WorkersStarted(node="a", effect=start.id, workers=()))
    assert story.open(StartWorkers) == [start] and story.state() is JobState.STARTING
    story.started(start)
    assert story.state() is JobState.RUNNING and not story.open(StartWorkers)


def test_a_process_that_nobody_wants_any_more_is_ended() -> None:
    story = Story(a=4)
    story.submit(workers=1)
    start = only(StartWorkers, story.store_up())
    story.stop()
    story.exit(0, exit=NEVER_STARTED)
    assert story.state() is JobState.STOPPED
    stop = only(StopWorkers, story.started(start))
    assert stop.workers == (start.launches[0].ref,) and "generation that is over" in stop.reason
