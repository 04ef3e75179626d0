"""What a policy may do besides restarting: go back and skip, move away, promote, drain; each in bounds."""

from __future__ import annotations

from pathlib import Path

import pytest
from core_story import KILLED
from finding_story import CERTAIN, NAN, SLOW, hang, made
from msgspec.structs import replace
from policy_story import answer, bring_to_act, eager, nan, save_first, saved, slow, stepping

from torchloom.cli.jobs.policy import read
from torchloom.core.policy.rollback import blamed_steps
from torchloom.core.transaction.packing import pack_answers
from torchloom.errors import UsageError
from torchloom.model.effects import PostMail, StopWorkers
from torchloom.model.events import FindingMade, NodeUnreachable, RanksAnswered
from torchloom.model.findings import Finding
from torchloom.model.fleet import JobState
from torchloom.model.policy import Action, Policy
from torchloom.model.quorum import LighthousePlace, ReplicaSeat
from torchloom.model.transaction.messages import Answer, AttemptId, Kind, Said

ROLLBACK: dict[str, dict[str, Action]] = {
    "not-a-number": {"certain": "rollback"},
    "spike": {"likely": "rollback"},
}


def going_back(finding: Finding, restore: int | None = 40, **more: object) -> FindingMade:
    name = "" if restore is None else f"step-{restore}.g1"
    return made(finding, restore_step=restore, restore_name=name, offset=0, step_s=0.1, **more)


# -- going back -----------------------------------------------------------------------------------
def test_the_batches_around_the_step_are_to_blame_and_all_since_the_last_good_value() -> None:
    policy = Policy()
    assert blamed_steps(policy, nan(50), 100) == (149, 151)
    assert blamed_steps(Policy(skip_batches=1), nan(50), 0) == (51, 51)
    late = hang(kind="spike", inputs={"step": 50, "good_step": 30})
    assert blamed_steps(policy, late, 0) == (31, 51)
    assert blamed_steps(policy, nan(1), 0) == (1, 2)
    assert blamed_steps(policy, nan(50), None) is None


def test_a_policy_rolls_back_before_the_nan_and_what_was_left_out_is_kept_for_good() -> None:
    story = stepping(Policy(rules=ROLLBACK))
    effects = story.tell(going_back(nan()))
    assert any(isinstance(e, PostMail) for e in effects) and story.state() is JobState.RUNNING
    (operation,) = story.job().operations.values()
    assert operation.kind is Kind.RESTORE and operation.by == "policy"
    assert operation.values == {"step": 40, "checkpoint": "step-40.g1", "skip": [49, 51]}
    assert "without the batches of steps 49 to 51" in story.incident().decision
    answer(story, Said.PREPARED)
    answer(story, Said.ARMED)
    answer(story, Said.APPLIED, changed=(("skipped_data", "", "0:392-416"),), offset=-10)
    assert operation.state == "applied"
    incident = story.incident()
    assert not incident.open and incident.resolution == "rolled back to the end of step 40"
    assert "left out from now on: 0:392-416" in incident.decision and story.job().findings == {}
    (entry,) = story.job().schedule
    assert entry.step == 0 and entry.values == {"skipped_data": "0:392-416"} and entry.by == "policy"
    assert incident.timeline.restored_ns == incident.ended_ns
    story.check_replay()


def test_many_runs_of_samples_are_told_in_short_and_kept_whole() -> None:
    story = stepping(Policy(rules=ROLLBACK))
    story.tell(going_back(nan()))
    text = ",".join(f"0:{n}-{n + 4}" for n in range(0, 1000, 10))
    for said in (Said.PREPARED, Said.ARMED):
        answer(story, said)
    answer(story, Said.APPLIED, changed=(("skipped_data", "", text),), offset=-10)
    told = story.incident().decision
    assert "0:70-74 and 92 runs more (setting skipped_data)" in told and "0:80-84" not in told
    assert story.job().schedule[0].values == {"skipped_data": text}


def test_without_a_checkpoint_from_before_it_is_only_told_and_why() -> None:
    story = stepping(Policy(rules=ROLLBACK))
    story.tell(going_back(nan(), None, restore_why="there is no checkpoint from before step 49"))
    assert not story.job().operations
    assert story.incident().decision == "not rolled back: there is no checkpoint from before step 49"


def test_what_the_ranks_refuse_is_not_replaced_by_a_restart() -> None:
    story = stepping(Policy(rules=ROLLBACK))
    story.tell(going_back(nan()))
    answer(story, Said.REFUSED, why="the script has no loom.Checkpoint")
    assert story.state() is JobState.RUNNING and not story.open(StopWorkers) and story.job().restore is None
    (operation,) = story.job().operations.values()
    assert operation.state == "not applied" and "restart" not in operation.reason
    assert story.incident().open and story.incident().decision.startswith("not rolled back: rank 0 refused")
    story.check_replay()


def test_rollbacks_have_a_budget_of_their_own() -> None:
    story = stepping(Policy(rules=ROLLBACK, rollbacks_per_hour=1, cooldown_s=0.0))
    story.tell(going_back(nan(50)))
    for said in (Said.PREPARED, Said.ARMED, Said.APPLIED):
        answer(story, said)
    story.tell(going_back(nan(90)), after_s=60)
    assert "budget of 1 rollbacks an hour is used up" in story.incident().decision
    story.tell(going_back(nan(95)), after_s=3600)
    assert len(story.job().operations) == 2


def test_two_rollbacks_are_not_under_way_at_once() -> None:
    story = stepping(Policy(rules=ROLLBACK, cooldown_s=0.0))
    story.tell(going_back(nan(50)))
    story.tell(going_back(nan(52)))
    assert len(story.job().operations) == 1 and "going back already" in story.incident().decision


@pytest.mark.parametrize(
    "action", ["pause", "restart", "restart-replica", "rollback", "evict", "promote", "drain"]
)
def test_a_dry_run_records_what_every_action_would_have_done(action: Action) -> None:
    kind = "divergence"
    policy = Policy(dry_run=True, rules={kind: {"certain": action}})
    story = stepping(policy, nodes={"a": 1, "b": 1, "c": 1}, standby=1)
    finding = hang(kind=kind, ranks=(1,), node="b", certain=True, certainty="sure", inputs={"step": 50})
    assert story.tell(going_back(finding)) == []
    assert story.incident().decision.startswith("dry run, would be")
    assert story.state() is JobState.RUNNING and not story.job().operations and not story.job().acts
    assert not story.job().avoid and not story.fleet.nodes["b"].drained


# -- moving away ----------------------------------------------------------------------------------


def test_slowness_is_acted_on_once_it_has_cost_more_than_a_restart() -> None:
    policy = Policy(rules={"compute-slow": {"likely": "evict"}}, restart_cost_s=20.0)
    story = stepping(policy, nodes={"a": 1, "b": 1, "c": 1})
    slow(story)
    assert "it has cost 0 ms of training so far, which is less than the" in story.incident().decision
    slow(story, after_s=30)
    assert "less than the 110 s that" in story.incident().decision, "all work since the start would be lost"
    saved(story)
    slow(story)
    assert story.job().acting is None and "less than the 20.0 s that" in story.incident().decision
    slow(story, after_s=15)
    save_first(story)
    assert story.state() is JobState.STOPPING and "away from b" in story.job().reason
    assert story.job().avoid == {"b": "rank 1 is slow"} and story.job().acts[-1].action == "evict"
    story.end_rest()
    assert [w.node for w in story.job().workers] == ["a", "c"] and story.job().generation == 2
    story.bring_up()
    assert story.state() is JobState.RUNNING
    assert story.job().restarts == 0, "it was no failure"
    story.check_replay()


def test_where_there_is_no_other_place_the_job_shrinks_if_it_may() -> None:
    story = stepping(eager("evict"), nodes={"a": 1, "b": 1})
    bring_to_act(story)
    assert "may not shrink" in story.incident().decision and story.state() is JobState.RUNNING
    story = stepping(eager("evict"), nodes={"a": 1, "b": 1}, min_workers=1)
    bring_to_act(story)
    assert story.state() is JobState.STOPPING and "with 1 workers" in story.job().reason
    story.end_rest()
    story.fire()
    assert [w.node for w in story.job().workers] == ["a"]
    story.check_replay()


def test_a_standby_is_promoted_only_if_there_is_one() -> None:
    story = stepping(eager("promote"), nodes={"a": 1, "b": 1})
    bring_to_act(story)
    assert "no standby place on another node" in story.incident().decision
    story = stepping(eager("promote"), nodes={"a": 1, "b": 1, "c": 1}, standby=1)
    assert story.job().spares == ["c"]
    bring_to_act(story)
    story.end_rest()
    assert [w.node for w in story.job().workers] == ["a", "c"] and "b" not in story.job().spares


def test_a_drained_node_takes_no_worker_of_any_job() -> None:
    story = stepping(eager("drain"), nodes={"a": 1, "b": 1, "c": 1})
    bring_to_act(story)
    story.end_rest()
    drained = story.fleet.nodes["b"].drained
    assert drained is not None and drained.policy_of == "j" and drained.why.startswith("rank 1 is slow")
    story.submit("other", workers=1)
    assert story.state("other") is JobState.WAITING
    story.join("b", 1)
    assert story.fleet.nodes["b"].drained and story.state("other") is JobState.WAITING


def test_a_node_that_was_left_is_used_again_rather_than_none() -> None:
    story = stepping(eager("evict"), nodes={"a": 1, "b": 1, "c": 1})
    bring_to_act(story)
    story.end_rest()
    story.bring_up()
    story.join("c", 0, live=(story.ref(1),))
    story.exit(0, KILLED, steps=50)
    story.end_rest()
    assert story.state() is JobState.STARTING and {w.node for w in story.job().workers} == {"a", "b"}
    assert not story.job().avoid


def test_a_hang_may_be_moved_away_from_too() -> None:
    story = stepping(eager("evict"), nodes={"a": 1, "b": 1, "c": 1})
    story.tell(made(hang(node="b", certain=True, may_act=True, certainty="stopped")))
    assert story.state() is JobState.RECOVERING and "away from b" in story.incident().decision
    story.end_rest(KILLED)
    assert [w.node for w in story.job().workers] == ["a", "c"]


def test_most_of_the_ranks_are_no_nodes_fault() -> None:
    story = stepping(eager("evict"), nodes={"a": 1, "b": 1, "c": 1})
    story.tell(made(hang(ranks=(0, 1), node="b", certain=True, may_act=True, certainty="stopped")))
    assert "which is no node's fault" in story.incident().decision and story.state() is JobState.RUNNING
    story.tell(made(hang(ranks=(), node="", certain=True, may_act=True, certainty="stopped")))
    assert "names no single node" in story.incident().decision


def test_moves_and_restarts_share_a_budget_and_a_cooldown() -> None:
    story = stepping(eager("evict", cooldown_s=120.0), nodes={"a": 1, "b": 1, "c": 1, "d": 1})
    bring_to_act(story)
    story.end_rest()
    story.bring_up()
    story.tell(made(hang(certain=True, may_act=True, node="c", certainty="x"), generation=2), after_s=5)
    assert "less than 120 s ago" in story.incident().decision


# -- files ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "dry_run = true\nrestart_per_hour = 3\n",
            "line 2: A policy has no 'restart_per_hour'; did you mean",
        ),
        ("\n[rules.hangs]\ncertain = 'report'\n", "line 2: The policy names 'hangs'"),
        (
            "[rules.hang]\ncertain = 'report'\nlikly = 'report'\n",
            "line 3: The policy names the level 'likly'",
        ),
        (
            "[rules.spike]\nlikely = 'rolback'\n",
            "line 2: The policy names the action 'rolback'; did you mean r",
        ),
        ("cooldown_s = 'x'\n", "line 1: cooldown_s of the policy"),
        ("[rules.hang]\ncertain = 'pause'\n", "line 2: The policy cannot pause on hang"),
        ("rules = {hang = {sure = 'report'}}\n", "policy.toml: The policy names the level"),
    ],
)
def test_a_mistake_in_a_file_is_told_with_its_line_and_what_is_near(
    tmp_path: Path, text: str, says: str
) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as told:
        read(path)
    assert says in told.value.message


def test_a_replica_that_cannot_be_restarted_alone_is_restarted_with_the_others_and_that_is_said() -> None:
    story = stepping(Policy(rules={"hang": {"certain": "restart-replica"}}))
    story.tell(made(hang(certain=True, may_act=True, certainty="stopped")))
    assert story.state() is JobState.RECOVERING and story.job().acts[-1].action == "restart-replica"
    assert "the whole job, because its replicas share a process group" in story.incident().decision
    story.check_replay()


def test_a_replica_of_a_torchft_job_is_restarted_alone() -> None:
    story = stepping(Policy(rules={"hang": {"certain": "restart-replica"}}))
    seat = ReplicaSeat(set="ft", index=1, size=3)
    story.job().spec = replace(story.job().spec, replica=seat)
    story.tell(made(hang(certain=True, may_act=True, certainty="stopped")))
    assert story.state() is JobState.RECOVERING
    assert "only this replica; the other 2 of ft continue" in story.incident().decision


def test_a_replica_that_waits_for_an_unreachable_lighthouse_is_not_restarted() -> None:
    story = stepping(Policy(rules={"hang": {"certain": "restart"}}))
    story.join("far")
    story.job().spec = replace(story.job().spec, replica=ReplicaSeat(set="ft", index=1, size=3))
    story.fleet.lighthouses["ft"] = LighthousePlace("far")
    story.tell(NodeUnreachable(node="far", silent_s=3.5))
    story.tell(made(hang(certain=True, may_act=True, certainty="stopped")))
    assert story.state() is JobState.RUNNING, "only that replica has its weights"
    assert "waits for the lighthouse on far, which is unreachable" in story.incident().decision


def test_data_without_places_is_rolled_back_and_told_that_nothing_was_left_out() -> None:
    story = stepping(Policy(rules=ROLLBACK))
    story.tell(going_back(nan()))
    for said in (Said.PREPARED, Said.ARMED, Said.APPLIED):
        answer(story, said)
    assert "but the batches to blame could not be left out" in story.incident().decision
    assert story.incident().resolution == "rolled back to the end of step 40" and not story.job().schedule


def test_ranks_that_went_apart_are_restarted_and_it_is_told_that_nothing_was_left_out() -> None:
    story = stepping(Policy(rules=ROLLBACK))
    story.tell(going_back(nan()))
    for said in (Said.PREPARED, Said.ARMED):
        answer(story, said)
    attempt = story.job().control.attempt_id
    for rank, said in ((0, Said.APPLIED), (1, Said.NOT_APPLIED)):
        told = pack_answers([Answer(attempt, rank, said, 60)]).decode()
        story.tell(RanksAnswered(node=story.job().workers[rank].node, job="j", generation=1, answers=told))
    assert story.state() is JobState.STOPPING
    decision = story.incident().decision
    assert decision.startswith("restarted at the end of step 40") and "no batch was left out" in decision


def test_defaults_still_only_report_slowness_and_numbers() -> None:
    story = stepping(Policy())
    for finding in (SLOW, NAN):
        story.tell(made(finding))
        assert story.incident().decision == "reported only"
    story.tell(made(CERTAIN))
    assert story.state() is JobState.RECOVERING
    assert AttemptId(1, 1, 1) < AttemptId(1, 1, 2)
