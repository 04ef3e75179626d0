"""What is done about a lost, hanging, drained or missing node, with real agents and real training."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from nodes import PATIENCE_S, Nodes, freeze, several
from runs import Run, compare
from stack import lines_of, wait_until

from torchloom.agent.neighbour.slot_transfer import copied_slots
from torchloom.agent.processes.process import is_alive, start_ticks
from torchloom.checkpoint.memory import tier

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def fleet() -> Iterator[Nodes]:
    with several("b", "c") as nodes:
        yield nodes


class Training:
    """A job of one worker on each of two nodes, which saves every fifth step; and what its ranks noted."""

    def __init__(self, nodes: Nodes, work: Path, *flags: str, policy: str = "") -> None:
        self.nodes, self.notes = nodes, work / "notes"
        (work / "policy.toml").write_text(policy)
        flags = ("--nnodes", "2", "--policy", str(work / "policy.toml"), *flags)
        self.job = nodes.near.submit(
            "saves.py", str(self.notes), str(work / "store"), workers=1, flags=flags
        )  # fmt: skip

    def steps(self, generation: int) -> list[int]:
        """What rank 0 of a generation has trained."""
        rows = [line.split() for line in lines_of(self.notes)]
        return [int(step) for of, rank, step in rows if int(of) == generation and rank == "0"]

    def wait_trained(self, generation: int, count: int) -> int:
        """Until a generation has made so many steps; its first one."""
        wait_until(lambda: len(self.steps(generation)) >= count, f"{count} steps of {generation}", PATIENCE_S)
        return self.steps(generation)[0]

    def goes_on(self, generation: int) -> int:
        """The first step of a generation, which is one after what the one before it had saved."""
        first = self.wait_trained(generation, 3)
        before = self.steps(generation - 1)
        assert before[0] < first <= before[-1] + 1, "from a checkpoint of the generation before"
        return first

    def end(self) -> None:
        self.nodes.near.loom("stop", self.job)
        self.nodes.near.wait_state(self.job, "stopped")


def test_a_lost_node_is_replaced_by_the_standby_and_is_the_next_standby_when_it_returns(
    fleet: Nodes, tmp_path: Path
) -> None:
    training = Training(fleet, tmp_path, "--standby", "1")
    before = fleet.wait_on(training.job, ["a", "b"])
    assert before["spares"] == ["c"]
    training.wait_trained(1, 12)
    fleet.lose("b")
    fleet.confirm_gone("b")
    after = fleet.wait_on(training.job, ["a", "c"], generation=2)
    assert after["restarts"] == 1 and not after["spares"]
    training.goes_on(2)
    lost = fleet.incidents(training.job, "node-lost")
    (incident,) = [one for one in lost if "confirmed that b is gone; rank 1" in one["verdict"]]
    beside = {one["kind"] for one in fleet.near.faults(training.job)}
    assert beside <= {"checkpoint-failed"}, "one fault, one incident; it may have been saving just then"
    assert "rank 0 followed because its peer was gone" in incident["verdict"], "whom nobody blames"
    assert not incident["open"] and incident["timeline"]["first_step_ns"]
    fleet.begin("b")
    fleet.wait_ready("b")
    wait_until(lambda: fleet.status(training.job)["spares"] == ["b"], "who returned is the spare", PATIENCE_S)
    assert fleet.status(training.job)["generation"] == 2, "a node that returns disturbs nobody"
    training.end()


def test_a_drained_node_is_left_at_a_saved_step_and_that_costs_no_restart(
    fleet: Nodes, tmp_path: Path
) -> None:
    training = Training(fleet, tmp_path)
    fleet.wait_on(training.job, ["a", "b"])
    training.wait_trained(1, 12)
    told = fleet.near.loom("node", "drain", "b", "--why", "fan broken")
    assert "b is drained; nothing runs there" in told.stdout and fleet.view("b")["workers"] == 0
    after = fleet.wait_on(training.job, ["a", "c"], generation=2)
    assert after["restarts"] == 0 and not fleet.near.faults(training.job)
    (saved,) = [one for one in fleet.near.json("operations", training.job) if one["kind"] == "checkpoint"]
    assert saved["state"] == "applied" and "drains b: fan broken" in saved["why"]
    assert training.goes_on(2) >= saved["training_step"], "from what was saved for it, or later"
    refused = fleet.near.loom("node", "drain", "c", check=5)
    assert f"{training.job} stays there: other nodes have room for 1 of its 2 workers" in refused.stderr
    fleet.near.loom("node", "open", "b")
    fleet.wait_on(training.job, ["a", "b"], generation=3)
    training.goes_on(3)
    assert fleet.status(training.job)["restarts"] == 0
    training.end()
    fleet.near.loom("node", "open", "c")


def test_a_host_that_is_taken_away_saves_its_jobs_first_and_they_continue_elsewhere(
    fleet: Nodes, tmp_path: Path
) -> None:
    """What happens when a pod is evicted: SIGTERM to an agent whose host ends with it."""
    fleet.agents["b"].terminate()
    fleet.agents["b"].wait(PATIENCE_S)
    fleet.stacks["b"].env["LOOM_LEAVE_WITHIN_S"] = "240"
    fleet.begin("b")
    fleet.wait_ready("b")
    job = Training(fleet, tmp_path)
    fleet.wait_on(job.job, ["a", "b"])
    job.wait_trained(1, 12)
    fleet.agents["b"].terminate()
    assert fleet.agents["b"].wait(PATIENCE_S) == 0
    fleet.wait_on(job.job, ["a", "c"], generation=2)
    job.goes_on(2)
    saved = next(one for one in fleet.near.json("operations", job.job) if one["kind"] == "checkpoint")
    assert saved["state"] == "applied" and "b is leaving" in saved["why"]
    assert fleet.status(job.job)["restarts"] == 0 and not fleet.near.faults(job.job)
    job.end()
    del fleet.stacks["b"].env["LOOM_LEAVE_WITHIN_S"]
    fleet.begin("b")
    fleet.wait_ready("b")
    assert fleet.view("b")["drained"] == "", "the next agent of that name takes workers"


def test_a_hang_is_left_behind_with_its_node_and_the_node_is_used_again_when_it_is_opened(
    fleet: Nodes, tmp_path: Path
) -> None:
    fleet.near.loom("node", "drain", "c")
    policy = '[rules.hang]\ncertain = "evict"\n'
    training = Training(fleet, tmp_path, "--min-workers", "1", policy=policy)
    fleet.wait_on(training.job, ["a", "b"])
    training.wait_trained(1, 25)
    freeze(fleet.worker_pid(training.job, "b"))
    fleet.wait_on(training.job, ["a"], generation=2)
    training.goes_on(2)
    left = [one for one in fleet.incidents(training.job, "hang") if "away from b" in one["decision"]]
    assert [one["culprit"] for one in left] == [1] and "with 1 workers" in left[0]["decision"], left
    fleet.near.loom("node", "open", "b")
    fleet.near.loom("scale", training.job, "2")
    fleet.wait_on(training.job, ["a", "b"], generation=3)
    training.goes_on(3)
    training.end()
    fleet.near.loom("node", "open", "c")


def test_without_enough_nodes_a_job_waits_and_says_why_and_goes_on_when_one_returns(
    fleet: Nodes, tmp_path: Path
) -> None:
    fleet.near.loom("node", "drain", "c")
    training = Training(fleet, tmp_path)
    fleet.wait_on(training.job, ["a", "b"])
    training.wait_trained(1, 12)
    fleet.lose("b")
    fleet.confirm_gone("b")
    waiting = fleet.near.wait_state(training.job, "waiting", timeout_s=PATIENCE_S)
    assert re.search(r"needs 2 nodes .*; 1 of 2 connected nodes has it", waiting["reason"]), waiting
    assert "c is drained" in waiting["reason"]
    fleet.begin("b")
    fleet.wait_on(training.job, ["a", "b"], generation=2)
    training.goes_on(2)
    training.end()
    fleet.near.loom("node", "open", "c")


FENCE = "self_fence_s = 5\n"


def test_a_host_that_dies_with_all_on_it_is_replaced_without_a_persons_word_if_the_job_allows_it(
    fleet: Nodes, tmp_path: Path
) -> None:
    """Agent, spawner and worker are killed at once: nobody is left who could say so."""
    training = Training(fleet, tmp_path, "--standby", "1", policy=FENCE)
    fleet.wait_on(training.job, ["a", "b"])
    training.wait_trained(1, 12)
    fleet.lose("b")
    after = fleet.wait_on(training.job, ["a", "c"], generation=2)
    assert after["restarts"] == 1
    training.goes_on(2)
    (incident,) = fleet.incidents(training.job, "node-lost")
    assert "self_fence_s" in incident["verdict"] and "rank 1" in incident["verdict"], incident
    wait_until(lambda: not fleet.incidents(training.job, "node-lost")[0]["open"], "it is over", PATIENCE_S)
    fleet.begin("b")
    fleet.wait_ready("b")
    assert fleet.status(training.job)["generation"] == 2, "a node that returns disturbs nobody"
    training.end()


def test_an_agent_that_stands_still_costs_the_training_nothing(fleet: Nodes, tmp_path: Path) -> None:
    """Longer than every limit of the control plane; the workers of its node train on meanwhile."""
    training = Training(fleet, tmp_path)
    before = fleet.wait_on(training.job, ["a", "b"])
    training.wait_trained(1, 12)
    agent = fleet.agents["b"].pid
    freeze(agent)
    try:
        wait_until(lambda: fleet.view("b")["state"] == "unreachable", "b is silent", PATIENCE_S)
        at = len(training.steps(1))
        training.wait_trained(1, at + 60)
    finally:
        os.kill(agent, signal.SIGCONT)
    fleet.wait_ready("b")
    after = fleet.status(training.job)
    assert (after["generation"], after["restarts"], after["state"]) == (1, 0, "running")
    assert [w["pid"] for w in after["workers"]] == [w["pid"] for w in before["workers"]]
    silence = fleet.incidents(training.job, "node-lost")
    assert silence and not any(one["open"] for one in silence), silence
    training.wait_trained(1, len(training.steps(1)) + 5)
    training.end()


def test_workers_of_an_agent_that_stands_still_end_themselves_where_the_job_wants_it(
    fleet: Nodes, tmp_path: Path
) -> None:
    """Their spawner and they themselves keep the deadline; the agent, once it goes on, finds them gone."""
    training = Training(fleet, tmp_path, "--standby", "1", policy=FENCE)
    fleet.wait_on(training.job, ["a", "b"])
    training.wait_trained(1, 12)
    agent, old = fleet.agents["b"].pid, fleet.worker_pid(training.job, "b")
    ticks = start_ticks(old)
    freeze(agent)
    try:
        fleet.wait_on(training.job, ["a", "c"], generation=2)
        assert not is_alive(old, ticks), "never two of one rank"
        training.goes_on(2)
    finally:
        os.kill(agent, signal.SIGCONT)
    fleet.wait_ready("b")
    after = fleet.status(training.job)
    assert (after["generation"], after["restarts"]) == (2, 1)
    training.end()


def copied_step(fleet: Nodes, node: str, job: str, rank: int) -> int:
    """The newest step of a rank of another node that this node keeps in memory; 0: none."""
    folder = tier.directory(fleet.stacks[node].home.boxes, job)
    return max((slot.header.name.step for slot in copied_slots(folder, rank)), default=0)


def test_a_sharded_training_whose_host_is_lost_resumes_from_its_neighbours_memory_and_ends_the_same(
    fleet: Nodes, tmp_path: Path
) -> None:
    """Nothing is ever saved to the store: without the copies it would begin from scratch."""
    fleet.wait_ready("a", "b", "c")

    def train(name: str) -> Run:
        store = ("--dir", str(tmp_path / f"store-{name}"), "--fsdp", "--every", "100000", "--step-ms", "20")
        flags = ("--nnodes", "2", "--standby", "1")
        return Run(fleet.near, tmp_path / name, 2, 60, *store, until=8, per_node=1, flags=flags)

    disturbed = train("disturbed")
    before = fleet.wait_on(disturbed.job, ["a", "b"])
    disturbed.creep(lambda: copied_step(fleet, "a", disturbed.job, 1), "a keeps a state of rank 1")
    fleet.lose("b")
    fleet.confirm_gone("b")
    fleet.wait_on(disturbed.job, ["a", "c"], generation=before["generation"] + 1)
    disturbed.wait_next(1, before["generation"])
    fleet.begin("b")
    assert disturbed.finish(PATIENCE_S)["restarts"] == 1
    assert disturbed.restored_from("memory") == 1
    assert not list((tmp_path / "store-disturbed").rglob("manifest.json")), "the store had nothing to read"
    plain = train("plain")
    plain.finish(PATIENCE_S)
    compare(plain, disturbed)
    for node in ("a", "c"):
        boxes = fleet.stacks[node].home.boxes
        wait_until(lambda boxes=boxes: not list(tier.found_in(boxes)), f"{node} has freed it", PATIENCE_S)


def test_a_sharded_training_that_continues_with_fewer_ranks_takes_all_shards_from_memory(
    fleet: Nodes, tmp_path: Path
) -> None:
    """It ends as one that reads the same step from a store with the same ranks. Its own store has nothing."""
    fleet.wait_ready("a", "b", "c")

    def train(name: str, world: int, steps: int, *more: str, nodes: str = "", until: int = 0) -> Run:
        args = ("--dir", str(tmp_path / f"store-{name}"), "--fsdp", "--every", "100000", "--step-ms", "20")
        flags = ("--nnodes", nodes or str(world))
        out = tmp_path / f"{name}-{world}"
        return Run(fleet.near, out, world, steps, *args, *more, until=until, per_node=1, flags=flags)

    resized = train("resized", 3, 60, nodes="2:3", until=8)
    before = fleet.wait_on(resized.job, ["a", "b", "c"])
    keeper = {"b": "c", "c": "a"}  # of what is lost with b
    resized.creep(lambda: copied_step(fleet, keeper["b"], resized.job, 1), "c keeps a state of rank 1")
    fleet.lose("b")
    fleet.confirm_gone("b")
    fleet.wait_on(resized.job, ["a", "c"], generation=before["generation"] + 1)
    resized.wait_next(1, before["generation"])
    resized.finish(PATIENCE_S)
    fleet.begin("b")
    log = fleet.near.loom("logs", resized.job).stdout
    (step,) = set(re.findall(r"resumed after step (\d+) from memory", log))
    assert not list((tmp_path / "store-resized").rglob("manifest.json")), "the store had nothing to read"
    fleet.wait_ready("b")
    train("plain", 3, int(step), "--name", "plain", "--save-last").finish(PATIENCE_S)
    plain = train("plain", 2, 60, "--name", "plain")
    plain.finish(PATIENCE_S)
    assert plain.restored_from("the store") == 1
    resized.world = 2
    assert resized.final() == plain.final()
    assert {key: seen for key, seen in resized.samples().items() if key[1] > int(step)} == plain.samples()
