"""torchft under `loom run --replicas`: a replica dies, the others never leave their step loop."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest
from replica_runs import EXAMPLES, started
from stack import REFUSED, SCRIPTS, Stack, wait_until

STABLE = Path(sys.prefix) / "torchft-stable"
"""torchft 0.2.0, whose module has the same name as the nightly's; scripts/setup.sh puts it there."""


@pytest.mark.parametrize("release", ["nightly", "stable"])
def test_a_replica_is_killed_or_stopped_and_the_other_never_leaves_its_loop(
    stack: Stack, release: str
) -> None:
    stack.env["PYTHONPATH"] = str(STABLE) if release == "stable" else ""
    assert STABLE.is_dir(), "scripts/setup.sh installs it"
    job = started(stack, f"ft-{release}", steps=1_000_000)
    stays, lost = job.pid(0), job.pid(1)
    # On a busy machine torchft's own timeouts may end a replica while it starts.
    before = [stack.status(one)["restarts"] for one in job.jobs]
    os.kill(lost, signal.SIGKILL)
    job.wait_steps(3, 2, (0, 1))
    back = job.pid(1)
    assert (job.pid(0), back != lost) == (stays, True), "only the lost replica is a new process"
    os.kill(back, signal.SIGSTOP)
    job.wait_steps(3, 1, (0,))
    os.kill(back, signal.SIGCONT)
    job.wait_steps(3, 2, (0, 1))
    assert (job.pid(0), job.pid(1)) == (stays, back), "nobody was ended because of a stop that is over"
    assert [stack.status(one)["restarts"] for one in job.jobs] == [before[0], before[1] + 1]
    steps = [step for step, _ in job.steps(0)]
    assert steps == sorted(steps), "the survivor repeats no step"
    stack.loom("stop", "--kill", job.name)
    assert {stack.status(one)["state"] for one in job.jobs} == {"stopped"}


def test_replicas_that_were_disturbed_end_with_the_same_weights(stack: Stack) -> None:
    """And neither a killed lighthouse nor a killed agent disturbs them."""
    stack.env["PYTHONPATH"] = ""
    job = started(stack, "ft-same", steps=150)
    pids = [job.pid(0), job.pid(1)]
    (lighthouse,) = stack.lighthouses()
    os.kill(lighthouse, signal.SIGKILL)
    job.wait_steps(3, 2, (0, 1))
    agent = stack.kill_part("agent")
    stack.wait_part_back("agent", agent)
    job.wait_steps(3, 2, (0, 1))
    assert [job.pid(0), job.pid(1)] == pids
    os.kill(pids[1], signal.SIGKILL)
    assert len(job.weights()) == 1, [job.lines(0)[-3:], job.lines(1)[-3:]]
    assert job.steps(0)[-1][0] == job.steps(1)[-1][0] == 150
    assert job.pid(0) == pids[0]


def test_two_torchft_jobs_side_by_side_do_not_meet(stack: Stack, tmp_path: Path) -> None:
    """The same script, so the same replica ids, at the same time; one of them with torchloom's import."""
    stack.env["PYTHONPATH"] = ""
    script, text = tmp_path / "imports_ours.py", (EXAMPLES / "torchft_ddp.py").read_text()
    script.write_text(text.replace("from torchft import", "from torchloom.integrations.torchft import"))
    assert script.read_text() != text
    one = started(stack, "ft-one", size=1, steps=1_000_000)
    other = started(stack, "ft-other", size=1, steps=30, step_s=0.0, script=script)
    assert len(other.weights()) == 1
    one.wait_steps(2, 1, (0,))
    assert {count for _, count in one.steps(0) + other.steps(0)} == {1}


def test_a_change_holds_for_all_replicas_from_the_same_step_on(stack: Stack) -> None:
    """Also for a replica that is lost at that moment, and heals later."""
    stack.env["PYTHONPATH"] = ""
    job = started(stack, "ft-set", steps=1_000_000)
    said = stack.loom("set", job.name, "lr=0.005", "--why", "smaller").stdout
    first = re.match(
        r"ft-set: version 1 applied on all ranks at step (\d+)\n  optimizer0.lr@0  0.01 → 0.005", said
    )
    assert first, said
    os.kill(job.pid(1), signal.SIGKILL)
    second = json.loads(stack.loom("set", job.jobs[1], "lr=0.001", "--json").stdout)
    job.wait_steps(3, 2, (0, 1))
    assert second["state"] == "applied" and second["version"] == 2, second
    rates = [job.rates(0), job.rates(1)]
    both = rates[0].keys() & rates[1].keys()
    assert {step: rates[0][step] for step in both} == {step: rates[1][step] for step in both}
    assert {"0.01", "0.005", "0.001"} == set(rates[0].values())
    for rate, step in (("0.005", int(first[1])), ("0.001", second["training_step"])):
        assert min(at for at, used in rates[0].items() if used == rate) == step
    stack.loom("stop", "--kill", job.name)


@pytest.mark.parametrize("kind", ["local_sgd", "diloco"])
def test_rounds_of_all_replicas_change_their_length_at_the_same_commit(stack: Stack, kind: str) -> None:
    stack.env["PYTHONPATH"] = ""
    script = EXAMPLES / f"torchft_{kind}.py"
    name = f"ft-{kind}".replace("_", "-")
    job = started(stack, name, steps=1_000_000, step_s=0.01, script=script)
    changed = json.loads(stack.loom("set", job.name, "sync_every=3", "optimizer0.lr=1e-3", "--json").stdout)
    assert changed["state"] == "applied", changed
    job.wait_steps(2, 2, (0, 1))
    os.kill(job.pid(1), signal.SIGKILL)
    job.wait_steps(2, 2, (0, 1))
    at = changed["training_step"]
    for index in range(2):
        rounds = job.rounds(index)
        assert {made for step, made in rounds.items() if step <= at} <= {8}, (at, rounds)
        assert {made for step, made in rounds.items() if step > at} == {3}, (at, rounds)
    assert {rate for step, rate in job.rates(0).items() if step > at} == {"0.001"}
    stack.loom("stop", "--kill", job.name)


def test_a_pause_and_a_save_are_of_all_replicas_at_one_commit(stack: Stack) -> None:
    stack.env["PYTHONPATH"] = ""
    script = SCRIPTS / "torchft_exact.py"
    flags = ("--min-replicas", "2", "--env", "SAVE_EVERY=1000000")
    job = started(stack, "ft-hold", steps=1_000_000, script=script, flags=flags)
    pids = [job.pid(0), job.pid(1)]

    said = stack.loom("pause", job.name, "--why", "look").stdout
    at = re.match(r"ft-hold is paused: all ranks wait before step (\d+)", said)
    assert at, said
    last = int(at[1]) - 1
    wait_until(lambda: [job.steps(i)[-1][0] for i in (0, 1)] == [last] * 2, "both made the step before it")
    assert [stack.status(one)["paused"] for one in job.jobs] == [True, True]
    refused = stack.loom("checkpoint", job.name, check=None)
    assert refused.returncode == REFUSED and "resume it first" in refused.stderr, refused

    stack.loom("resume", job.jobs[1])
    job.wait_steps(2, 2, (0, 1))
    assert [stack.status(one)["paused"] for one in job.jobs] == [False, False]

    stack.loom("checkpoint", job.name)
    (saved,) = {one["step"] for one in stack.json("checkpoints", job.jobs[0])["checkpoints"]}
    wait_until(
        lambda: saved in {one["step"] for one in stack.json("checkpoints", job.jobs[1])["checkpoints"]},
        "the other replica saved the same step",
    )
    kinds = [one["kind"] for one in stack.json("operations", job.jobs[0])]
    assert kinds == ["pause", "checkpoint", "resume", "checkpoint"]
    assert stack.loom("operations", job.name).stdout.count("applied") >= 3
    assert [job.pid(0), job.pid(1)] == pids
    stack.loom("stop", "--kill", job.name)
