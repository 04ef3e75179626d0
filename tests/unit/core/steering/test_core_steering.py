"""Operations on a running job, as the core keeps them: asked for, carried out by ranks, told."""

from __future__ import annotations

import json

import pytest
from core_story import FAILED, OK, Story
from notice_story import apply_and_tell
from steering_story import SteeringStory, running

from torchloom.api.views.steering import history
from torchloom.core.config.schedule import in_force, merge
from torchloom.core.transaction.packing import pack_answers, unpack_mail
from torchloom.model.effects import PostMail, StartWorkers
from torchloom.model.events import (
    ChangeCancelled,
    ChangeRequested,
    RanksAnswered,
    StepReached,
)
from torchloom.model.fleet import Fleet
from torchloom.model.transaction.messages import Answer, Kind, Phase, Said
from torchloom.wire import codec

CHANGED = (("optimizer0.lr@0", 0.001, 0.0003),)


def posts(story: Story) -> list[PostMail]:
    return [e for e in story.fleet.outbox.values() if isinstance(e, PostMail)]


def test_a_change_goes_through_its_phases_and_is_told_with_its_step() -> None:
    story = running()
    story.ask({"lr": 3e-4}, why="the loss is flat")
    assert story.record().state == "preparing" and story.mail().phase is Phase.PREPARE
    assert len(posts(story)) == 1 and len(posts(story)[0].workers) == 2
    step = story.carry(changed=CHANGED, offset=100)
    record = story.record()
    assert (record.state, record.at_step, record.training_step) == ("applied", step, step + 100)
    assert record.reason == f"applied at step {step + 100} on all ranks"
    assert record.changed == CHANGED and not record.differing and record.why == "the loss is flat"
    (entry,) = story.job().schedule
    assert (entry.version, entry.step, entry.by) == (1, step + 100, "ann")
    assert entry.before == {"optimizer0.lr@0": 0.001}
    assert not posts(story) and not story.fleet.timers, "nothing is left open"
    story.check_replay()


def test_nobody_is_asked_before_every_rank_has_stepped() -> None:
    story = SteeringStory(a=8)
    story.run()
    story.ask({"lr": 1.0})
    assert story.record().state == "waiting" and "first step" in story.record().reason
    story.first_step(0)
    assert not posts(story)
    story.first_step(1)
    assert story.mail().phase is Phase.PREPARE
    story.check_replay()


def test_mail_to_two_nodes_is_one_effect_each() -> None:
    story = running(workers=1, nodes=2)
    story.ask({"lr": 1.0})
    assert sorted(e.node for e in posts(story)) == ["a", "b"]
    story.carry()
    assert story.record().state == "applied"


def test_a_refusal_ends_it_and_withdraws_for_a_while() -> None:
    story = running()
    story.ask({"nope": 1.0})
    story.answer(Said.REFUSED, (1,), why="there is no setting 'nope'")
    assert story.record().state == "not applied" and "'nope'" in story.record().reason
    assert story.mail().phase is Phase.WITHDRAW
    story.fire()
    assert not posts(story) and not story.fleet.timers
    story.check_replay()


def test_ranks_that_do_not_answer_are_told_of_after_the_limit() -> None:
    story = running()
    story.ask({"lr": 1.0}, step_s=60.0)
    story.answer(Said.PREPARED, (0,))
    story.fire()
    assert story.record().state == "not applied" and "rank 1 did not answer" in story.record().reason


def test_the_limit_grows_with_the_steps_of_the_job() -> None:
    story = running()
    story.ask({"lr": 1.0}, step_s=60.0)
    (timer,) = story.fleet.timers.values()
    assert timer.at_ns - story.now_ns == 4 * 60 * 10**9


def test_a_worker_that_ends_before_the_decision_ends_the_change() -> None:
    story = running()
    story.ask({"lr": 1.0})
    story.answer(Said.PREPARED)
    story.exit(1, FAILED)
    assert story.record().state == "not applied" and "rank 1 ended" in story.record().reason
    story.end_rest()
    assert not posts(story)
    story.check_replay()


def test_what_a_dead_worker_had_answered_counts() -> None:
    story = running()
    story.ask({"lr": 1.0})
    story.answer(Said.PREPARED)
    step = story.mail().at_step
    story.answer(Said.ARMED)
    attempt = story.mail().proposal.attempt
    answers = pack_answers([Answer(attempt, 0, Said.APPLIED, step, changed=CHANGED, offset=0)]).decode()
    story.exit(0, FAILED, answers=answers)
    assert story.record().state == "confirmed"
    story.end_rest()
    record = story.record()
    assert record.state == "applied" and record.unheard == (1,)
    assert story.job().schedule[0].step == step
    start = json.loads(_next_start(story).schedule)
    assert start == [{"version": 1, "step": step, "values": {"lr": 1.0}}]


def _next_start(story: Story) -> StartWorkers:
    for timer in list(story.fleet.timers):
        assert timer.startswith("backoff/")
        story.fire()
    story.store_up()
    return story.open(StartWorkers)[-1]


def test_a_change_before_the_start_is_in_the_schedule_of_the_workers() -> None:
    story = SteeringStory()
    story.submit()
    story.ask({"max_steps": 50})
    assert story.record().state == "applied" and "from the first step" in story.record().reason
    story.ask({"lr": 0.1}, "later", training_step=40)
    story.join("a")
    story.store_up()
    (start,) = story.open(StartWorkers)
    assert [(row["step"], row["values"]) for row in json.loads(start.schedule)] == [
        (0, {"max_steps": 50}),
        (40, {"lr": 0.1}),
    ]
    story.check_replay()


def test_pause_and_resume() -> None:
    story = running()
    story.ask(kind=Kind.PAUSE, operation="p")
    story.carry()
    assert story.job().paused
    story.ask(kind=Kind.RESUME, operation="r")
    story.answer(Said.PREPARED, step=14, held=True)
    assert story.mail().at_step == 14, "paused ranks stand at the boundary it is armed for"
    story.answer(Said.ARMED, step=14, held=True)
    story.answer(Said.APPLIED, step=14)
    assert not story.job().paused and story.record("r").state == "applied"
    story.check_replay()


def test_a_change_for_a_later_step_waits_until_it_is_near() -> None:
    story = running()
    story.ask({"lr": 1.0}, at_step=1000)
    assert story.record().state == "waiting" and "step 1000" in story.record().reason and not posts(story)
    story.tell(StepReached(job="j", generation=1, step=900, step_s=0.05))
    assert not posts(story)
    story.tell(StepReached(job="j", generation=1, step=970, step_s=0.05))
    assert story.carry(step=970) == 1000
    assert story.record().at_step == 1000
    story.check_replay()


def test_a_step_of_an_older_generation_is_refused() -> None:
    story = running()
    story.exit(0, FAILED)
    story.end_rest()
    if story.fleet.timers:
        story.fire()
    story.bring_up()
    story.step()
    story.tell(
        ChangeRequested(
            job="j", operation="old", kind=Kind.SET, values={"lr": 1.0}, at_step=30, generation=1, by="ann"
        )
    )
    assert story.record("old").state == "not applied" and "counts anew" in story.record("old").reason


def test_a_change_for_a_training_step_is_kept_when_a_generation_begins() -> None:
    story = running()
    story.ask({"lr": 1.0}, at_step=1000, training_step=1200)
    assert "step 1200, the job is at step 202" in story.record().reason
    story.exit(0, FAILED)
    story.end_rest()
    if story.fleet.timers:
        story.fire()
    story.bring_up()
    story.step()
    assert story.record().state == "waiting" and "step 1200" in story.record().reason
    story.tell(StepReached(job="j", generation=2, step=4, step_s=0.05, offset=1180))
    assert story.carry(step=5, offset=1180) == 20
    assert (story.record().state, story.record().training_step) == ("applied", 1200)
    assert story.job().schedule[0].step == 1200
    story.check_replay()


def test_a_change_made_later_supersedes_one_that_is_planned_for_a_later_step() -> None:
    story = running()
    story.ask({"lr": 1.0}, "plan", at_step=1000, training_step=1200)
    story.ask({"lr": 1.0, "momentum": 0.5}, "more", at_step=1010, training_step=1210)
    story.ask({"lr": 2.0}, "now")
    assert story.record("plan").state == "waiting", "nothing was applied yet"
    story.carry(step=40, offset=200)
    assert story.record("now").state == "applied"
    assert story.record("plan").state == "not applied"
    assert story.record("plan").reason == "superseded by operation 3, requested later"
    assert story.record("more").state == "waiting", "its momentum is still wanted"
    story.ask({"lr": 3.0}, "newer plan", at_step=1000, training_step=1200)
    story.tell(StepReached(job="j", generation=1, step=990, step_s=0.05, offset=200))
    assert story.carry(step=990, offset=200) == 1000
    story.carry(step=1003, offset=200)
    assert {story.record(n).state for n in ("newer plan", "more")} == {"applied"}
    values = merge(in_force(story.job().schedule, 1300))
    assert values == {"momentum": 0.5, "lr": 3.0}, "of the older plan only what nobody decided anew"
    story.check_replay()


def test_a_change_after_a_crash_holds_against_the_older_one_that_lies_ahead() -> None:
    story = running()
    story.ask({"lr": 0.1}, "first")
    first = story.carry(step=140, offset=0)
    story.exit(0, FAILED)
    story.end_rest()
    if story.fleet.timers:
        story.fire()
    story.bring_up()
    story.step()
    story.ask({"lr": 0.2}, "emergency")
    second = story.carry(step=10, offset=43) + 43
    assert second < first
    assert merge(in_force(story.job().schedule, first)) == {"lr": 0.2}
    assert {v.version: v.superseded_by for v in history(story.job())} == {1: 2, 2: None}
    story.check_replay()


def test_changes_on_both_sides_of_a_planned_one_are_not_carried_out_together() -> None:
    """Ranks give what goes together one version: the planned change, decided in between, would lose to it."""
    story = running()
    story.ask({"momentum": 0.1}, "busy")
    story.ask({"lr": 1.0}, "older")
    story.ask({"lr": 5.0}, "plan", at_step=1000, training_step=1000)
    story.ask({"momentum": 0.5}, "newer")
    story.carry(step=20, offset=0)
    assert story.mail().proposal.attempt.version == 2
    assert dict(story.mail().proposal.values) == {"lr": 1.0}


def test_changes_that_wait_are_carried_out_together_and_told_each() -> None:
    story = running()
    story.ask({"lr": 1.0}, "one")
    for number, name in enumerate(("two", "three", "four")):
        story.ask({"lr": float(number)} if number else {"momentum": 0.5}, name)
    story.carry()
    assert story.record("one").state == "applied" and story.record("two").state == "preparing"
    assert dict(story.mail().proposal.values) == {"momentum": 0.5, "lr": 2.0}
    changed = (("optimizer0.lr@0", 1.0, 2.0), ("optimizer0.momentum@0", 0.9, 0.5))
    step = story.carry(step=40, changed=changed, offset=0)
    assert {story.record(n).state for n in ("two", "three", "four")} == {"applied"}
    assert story.record("two").changed == (changed[1],) and story.record("four").changed == (changed[0],)
    assert [(e.version, e.step) for e in story.job().schedule[-3:]] == [(2, step), (3, step), (4, step)]
    story.check_replay()


def test_one_bad_change_among_several_does_not_spoil_the_others() -> None:
    story = running()
    story.ask({"lr": 1.0}, "first")
    story.ask({"momentum": 0.5}, "good")
    story.ask({"nope": 1.0}, "bad")
    story.carry()
    assert set(story.mail().proposal.values) == {"momentum", "nope"}
    story.answer(Said.REFUSED, (0,), why="there is no setting 'nope'")
    assert set(story.mail().proposal.values) == {"momentum"}
    story.carry(step=30)
    assert story.record("good").state == "applied"
    story.answer(Said.REFUSED, (0,), why="there is no setting 'nope'")
    assert story.record("bad").state == "not applied"
    story.check_replay()


def test_a_cancelled_change_is_told_so() -> None:
    story = running()
    story.ask({"lr": 1.0}, "one")
    story.ask({"lr": 2.0}, "two")
    story.tell(ChangeCancelled(job="j", operation="two", by="bob"))
    story.tell(ChangeCancelled(job="j", operation="one", by="bob"))
    assert {story.record(n).reason for n in ("one", "two")} == {"cancelled by bob"}


def test_a_mailbox_that_cannot_be_reached_ends_the_change() -> None:
    story = running()
    story.ask({"lr": 1.0})
    (effect,) = posts(story)
    story.failed(effect, "rank 1 has no black box")
    assert story.record().state == "not applied" and "no black box" in story.record().reason


def test_what_waits_is_told_when_the_job_ends() -> None:
    story = running()
    story.ask({"lr": 1.0}, at_step=9000)
    story.exit(0, OK)
    story.exit(1, OK)
    assert story.record().state == "not applied" and "the job ended" in story.record().reason
    assert not story.fleet.timers
    story.check_replay()


@pytest.mark.parametrize("garbage", ["", "no json", "[1]", '[{"attempt": [1, 1]}]'])
def test_answers_that_cannot_be_read_were_not_said(garbage: str) -> None:
    story = running()
    story.ask({"lr": 1.0})
    story.tell(RanksAnswered(node="a", job="j", generation=1, answers=garbage))
    assert story.record().state == "preparing"


def test_the_outcome_is_a_notice() -> None:
    story = running()
    story.ask({"lr": 3e-4})
    step = story.carry(changed=CHANGED)
    fleet, texts = Fleet(), []
    for data, seq, now_ns in story.stream:
        notice = apply_and_tell(fleet, codec.decode_envelope(data), seq, now_ns)
        assert notice is not None
        texts.append((notice.topics, notice.text))
    assert (("config",), "ann asked j to set lr=0.0003") in texts
    told = f"set lr=0.0003 (version 1) of j by ann: applied at step {step} on all ranks"
    assert (("config",), f"{told}: optimizer0.lr@0 0.001 → 0.0003") in texts


def test_mail_carries_what_older_mail_said() -> None:
    """A withdrawal that did not arrive yet travels with the next proposal."""
    story = running()
    story.ask({"nope": 1.0}, "bad")
    story.answer(Said.REFUSED, (0,), why="no")
    story.ask({"lr": 1.0}, "good")
    (effect,) = posts(story)
    assert [m.phase for m in unpack_mail(effect.mail.encode())] == [Phase.WITHDRAW, Phase.PREPARE]
