"""A finding becomes an incident; a certain one a recovery; one that ends by itself is closed."""

from __future__ import annotations

import pytest
from core_story import FAILED, KILLED, START_NS, S, Story, limits, only, raised
from finding_story import CERTAIN, LASTING, NAN, SLOW, hang, made

from torchloom.core.recovery.incidents import recovery_s
from torchloom.model.checkpoints import CheckpointPlace
from torchloom.model.effects import StopWorkers
from torchloom.model.events import CheckpointStoreOpened, FindingEnded
from torchloom.model.findings import Finding, RankEvidence
from torchloom.model.fleet import JobState
from torchloom.model.policy import Policy


def running(**more: object) -> Story:
    story = Story(a=8)
    story.run(workers=2, **more)
    story.now_ns += 60 * S
    return story


def test_an_uncertain_hang_is_told_and_nothing_else_happens() -> None:
    story = running()
    assert story.tell(made(hang())) == []
    assert story.state() is JobState.RUNNING
    incident = story.incident()
    assert (incident.kind, incident.culprit, incident.open) == ("hang", 1, True)
    assert incident.decision == (
        "reported only, because it is not certain: its process is at work; acted on after 600 s"
    )
    line = incident.timeline
    assert line.detected_ns == story.now_ns and line.first_sign_ns == story.now_ns - int(2.5 * S)
    assert line.decided_ns == 0
    story.check_replay()


def test_what_ends_by_itself_is_closed_with_how_long_it_lasted() -> None:
    story = running()
    story.tell(made(hang()))
    story.tell(FindingEnded(job="j", generation=1, key="stuck", lasted_s=4.2))
    incident = story.incident()
    assert not incident.open and incident.resolution == "rank 1 continued after 4.2 s"
    assert story.job().findings == {} and story.state() is JobState.RUNNING


def test_an_incident_that_ends_with_its_generation_names_the_incident_that_ended_it() -> None:
    story = running()
    story.tell(made(SLOW))
    slow = story.incident()
    story.exit(1, FAILED, steps=50)
    crash = story.incident()
    assert crash is not slow and not slow.open
    assert slow.resolution == f"generation 1 ended because of incident {crash.id}, crash of rank 1"
    assert slow.resolution.count("j.2") == 1


def test_a_certain_hang_ends_the_generation_and_the_next_one_closes_the_incident() -> None:
    story = running()
    effects = story.tell(made(CERTAIN))
    assert story.state() is JobState.RECOVERING
    stop = only(StopWorkers, effects)
    assert [r.rank for r in stop.workers] == [0, 1] and stop.kill_in_collective
    story.exit(0, KILLED, steps=50)
    story.exit(1, KILLED, steps=50)
    assert story.state() is JobState.STARTING and story.job().generation == 2
    story.bring_up()
    story.first_step(0)
    incident = story.incident()
    assert len(story.job().incidents) == 1 and not incident.open and incident.culprit == 1
    assert incident.verdict == "rank 1 has not entered"
    assert incident.decision.startswith("certain (its process is stopped); restart 1 of")
    line = incident.timeline
    assert START_NS < line.first_sign_ns < line.detected_ns == line.decided_ns < line.stopped_ns
    assert recovery_s(incident) is not None and incident.goodput_after is not None
    assert story.job().restarts == 1 and story.job().restarts_by_rank == {1: 1}
    story.check_replay()


def test_told_first_and_certain_later_is_one_incident() -> None:
    story = running()
    story.tell(made(hang()))
    story.tell(made(CERTAIN), after_s=1.0)
    assert len(story.job().incidents) == 1 and story.state() is JobState.RECOVERING
    line = story.incident().timeline
    assert line.detected_ns < line.decided_ns


def test_what_lasts_longer_than_the_limit_for_acting_is_acted_on() -> None:
    story = running()
    story.tell(made(LASTING))
    assert story.state() is JobState.RECOVERING
    assert "longer than the limit for acting" in story.incident().decision


@pytest.mark.parametrize("finding", [SLOW, NAN], ids=["slow", "nan"])
def test_slowness_and_numbers_are_only_reported(finding: Finding) -> None:
    story = running()
    assert story.tell(made(finding)) == []
    assert story.state() is JobState.RUNNING and story.incident().decision == "reported only"


def test_broken_numbers_of_a_job_that_saves_are_told_with_the_way_back() -> None:
    story = running()
    place = CheckpointPlace("/data", "j")
    story.tell(CheckpointStoreOpened(node="a", ref=story.ref(), place=place))
    story.tell(made(NAN))
    assert "`loom restore j --step …`" in story.incident().decision
    story.tell(made(SLOW))
    assert story.incident().decision == "reported only"


def test_slowness_that_comes_back_soon_is_the_same_incident() -> None:
    story = running()
    story.tell(made(SLOW))
    story.tell(FindingEnded(job="j", generation=1, key="slow 1", lasted_s=30.0))
    story.tell(made(SLOW), after_s=60)
    assert len(story.job().incidents) == 1 and story.incident().open
    assert story.incident().verdict.endswith("(2 times in 60.0 s)"), story.incident().verdict
    story.tell(FindingEnded(job="j", generation=1, key="slow 1", lasted_s=30.0))
    story.tell(made(SLOW), after_s=600)
    assert len(story.job().incidents) == 2


@pytest.mark.parametrize("generation", [0, 2])
def test_findings_about_another_generation_have_no_effect(generation: int) -> None:
    story = running()
    assert story.tell(made(CERTAIN, generation=generation)) == []
    assert story.job().incidents == []


def test_a_finding_that_comes_while_the_job_is_ended_has_no_effect() -> None:
    story = running()
    story.exit(0, KILLED, steps=50)
    before = story.incident().verdict
    assert story.tell(made(CERTAIN)) == []
    assert len(story.job().incidents) == 1 and story.incident().verdict == before


def test_a_crash_of_the_rank_that_was_named_is_the_same_incident() -> None:
    story = running()
    story.tell(made(hang()))
    story.exit(1, FAILED, steps=50, end=raised())
    assert len(story.job().incidents) == 1
    incident = story.incident()
    assert incident.kind == "crash" and incident.culprit == 1 and incident.open
    assert incident.verdict.endswith("; before that, rank 1 has not entered")
    story.exit(0, KILLED)
    story.bring_up()
    story.first_step(0)
    assert not story.incident().open
    story.check_replay()


def test_peers_that_give_up_waiting_do_not_become_the_culprit() -> None:
    story = running()
    story.tell(made(hang()))
    story.exit(0, FAILED, steps=50, end=raised())
    incident = story.incident()
    assert incident.kind == "hang" and incident.culprit == 1
    assert incident.verdict.startswith("rank 1 has not entered; then rank 0 on a exited with code 1")
    story.exit(1, KILLED)
    assert story.incident().culprit == 1 and story.state() is JobState.STARTING
    story.check_replay()


def test_a_dry_run_only_notes_what_it_would_have_done() -> None:
    story = running(policy=Policy(dry_run=True))
    assert story.tell(made(CERTAIN)) == []
    assert story.state() is JobState.RUNNING
    assert story.incident().decision.startswith("dry run, would be restarted: certain")


def test_where_restarts_are_off_a_hang_is_told_and_the_job_is_let_be() -> None:
    story = running(restarts=limits(max_restarts=0))
    assert story.tell(made(CERTAIN)) == []
    assert story.state() is JobState.RUNNING
    assert story.incident().decision == "not restarted: restarts are off for this job"


def test_budgets_of_the_policy() -> None:
    story = running(policy=Policy(restarts_per_hour=1, cooldown_s=0.0))
    for generation in (1, 2):
        story.tell(made(CERTAIN, generation=generation))
        if generation == 1:
            story.exit(0, KILLED, steps=50)
            story.exit(1, KILLED, steps=50)
            story.bring_up()
            story.first_step(0)
    assert story.state() is JobState.RUNNING
    assert "budget of 1 restarts an hour is used up" in story.incident().decision
    story.tell(made(CERTAIN, generation=2), after_s=3601)
    assert story.state() is JobState.RECOVERING


def test_the_policy_may_act_on_less_or_ignore() -> None:
    story = running(
        policy=Policy(rules={"hang": {"likely": "restart"}, "compute-slow": {"likely": "ignore"}})
    )
    story.tell(made(SLOW))
    assert story.job().incidents == []
    story.tell(made(hang()))
    assert story.state() is JobState.RECOVERING


def test_a_policy_may_pause_the_job_and_asks_once() -> None:
    story = running(policy=Policy(rules={"not-a-number": {"certain": "pause"}}))
    story.tell(made(NAN))
    story.tell(made(NAN))
    assert [o.kind.value for o in story.job().operations.values()] == ["pause"]
    assert story.state() is JobState.RUNNING and story.incident().timeline.decided_ns
    story.check_replay()


def test_a_dry_run_pauses_nothing() -> None:
    story = running(policy=Policy(dry_run=True, rules={"not-a-number": {"certain": "pause"}}))
    assert story.tell(made(NAN)) == [] and not story.job().operations
    assert story.incident().decision.startswith("dry run, would be paused")


def test_the_end_of_a_job_closes_what_was_said() -> None:
    story = running()
    story.tell(made(SLOW))
    story.tell(made(hang()))
    story.stop(kill=True)
    story.exit(0, KILLED)
    story.exit(1, KILLED)
    assert story.state() is JobState.STOPPED
    assert not any(i.open for i in story.fleet.incidents.values()) and story.job().findings == {}


def test_evidence_is_kept_by_rank_and_only_with_the_newest_incidents() -> None:
    story = running()
    first = RankEvidence(rank=1, node="a", location="f() at x.py:1")
    story.tell(made(hang(), evidence=(first,)))
    story.tell(made(hang(lasting_s=6.0), evidence=(RankEvidence(rank=0, node="a"),)))
    assert [e.rank for e in story.incident().evidence] == [0, 1]
    for _ in range(9):
        story.tell(FindingEnded(job="j", generation=1, key="stuck", lasted_s=4.2))
        story.tell(made(hang(), evidence=(first,)))
    assert story.incident(index=0).evidence == () and story.incident().evidence
