"""torchft with replicas on hosts of their own, whose network fails: never two quorums that commit.

Network namespaces are the hosts. Nothing is ended because it cannot be reached; whoever was cut off joins
again when it can, with the same process.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cut_nodes import CutNodes, cut_nodes
from nodes import PATIENCE_S
from replica_runs import EXAMPLES
from spread_replicas import Spread, lighthouses, plain, spread
from stack import wait_until

from torchloom.chaos.hosts import why_not

pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.long,
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]

STABLE = Path(sys.prefix) / "torchft-stable"
ALL = (0, 1, 2)


@pytest.fixture(scope="module")
def fleet() -> Iterator[CutNodes]:
    with cut_nodes("b", "c", "d") as nodes:
        nodes.near.env["PYTHONPATH"] = ""
        yield nodes


def untouched(job: Spread, pids: list[int]) -> None:
    assert job.pids() == pids, "nobody was ended because it could not be reached"


@pytest.mark.parametrize("fault", ["cut", "mute", "deafen"])
def test_a_node_that_relays_is_cut_off_and_comes_back(fleet: CutNodes, fault: str) -> None:
    """Both ways, or one way only. The others train without it, and it joins them again."""
    job = spread(fleet, f"ft-{fault}", 3, 1)
    places, pids = job.places(), job.pids()
    assert sorted(places) == ["b", "c", "d"], "each on a host of its own"
    getattr(fleet, fault)(places[1])
    job.wait_steps(5, 2, (0, 2))
    fleet.wait_silent(places[1])
    job.wait_steps(5, 2, (0, 2))
    made = len(job.steps(1))
    job.wait_steps(5, 2, (0, 2))
    assert len(job.steps(1)) == made, "who is cut off commits nothing"
    fleet.mend(places[1])
    job.wait_steps(3, 3, ALL)
    untouched(job, pids)
    last = job.end_together()
    job.one_history()
    assert [job.steps(index)[-1][0] for index in ALL] == [last] * 3
    assert len(job.weights()) == 1


def broken_links(job: Spread, *, open: bool) -> list[dict[str, Any]]:
    found = [one for name in job.jobs for one in job.stack.json("incidents", name)]
    return [one for one in found if one["kind"] == "link-broken" and one["open"] == open]


@pytest.mark.parametrize("release", ["nightly", "stable"])
def test_two_nodes_that_reach_the_lighthouse_and_not_each_other_do_not_stop_the_job(
    fleet: CutNodes, release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them is left out, with the link named, and joins again when the link works."""
    if release == "stable":
        monkeypatch.setitem(fleet.near.env, "PYTHONPATH", str(STABLE))
    job = spread(fleet, f"ft-apart-{release}", 3, 1)
    places, pids = job.places(), job.pids()
    for _ in range(2):
        fleet.part(places[1], places[2])
        job.wait_steps(5, 2, (0, 1))
        (incident,) = wait_until(lambda: broken_links(job, open=True), "the link is reported")
        assert incident["job"] == job.jobs[2]
        both = " and ".join(sorted(places[1:]))
        assert f"no connection between {both}" in incident["verdict"], incident
        assert "left out of the quorum" in incident["decision"], incident
        made = len(job.steps(2))
        job.wait_steps(5, 2, (0, 1))
        assert len(job.steps(2)) == made, "who is left out commits nothing"
        fleet.mend(places[1])
        job.wait_steps(3, 3, ALL)
        wait_until(lambda: not broken_links(job, open=True), "its incident is closed")
    assert len(broken_links(job, open=False)) == 2
    untouched(job, pids)
    last = job.end_together()
    job.one_history()
    assert [job.steps(index)[-1][0] for index in ALL] == [last] * 3
    assert len(job.weights()) == 1


def test_a_broken_link_of_a_training_that_waits_for_all_is_only_reported(fleet: CutNodes) -> None:
    job = spread(fleet, "ft-wait", 3, 3)
    places, pids = job.places(), job.pids()
    fleet.part(places[1], places[2])
    (incident,) = wait_until(lambda: broken_links(job, open=True), "the link is reported", PATIENCE_S)
    assert "reported only" in incident["decision"], incident
    fleet.mend(places[1])
    job.wait_steps(3, 3, ALL)
    wait_until(lambda: not broken_links(job, open=True), "its incident is closed")
    untouched(job, pids)
    last = job.end_together()
    assert job.one_history() == set(range(1, last + 1))
    assert job.weights() == spread(fleet, "ft-waited", 3, 3, steps=last).weights(), "as undisturbed"


def random_faults(fleet: CutNodes, places: list[str], rng: random.Random) -> str:
    """One after the other, until the last is mended; a sentence of what was done."""
    node, other = rng.sample(places, 2)
    fault = rng.choice(["cut", "mute", "deafen", "part", "slow", "short"])
    match fault:
        case "part":
            fleet.part(node, other)
        case "slow":
            fleet.slow(node, 50_000)
        case "short":
            fleet.cut(node)
            fleet.mend(node)
        case _:
            getattr(fleet, fault)(node)
    return f"{fault} {node}" + (f" {other}" if fault == "part" else "")


@pytest.mark.parametrize("least", [1, 3])
def test_random_cuts_leave_one_history_and_all_processes(fleet: CutNodes, least: int) -> None:
    """Of hosts, of single links and directions, sometimes several at once; `LOOM_TEST_CUTS` for more."""
    seed = int(os.environ.get("LOOM_TEST_SEED", str(random.randrange(1_000_000))))
    print(f"LOOM_TEST_SEED={seed}")
    rng = random.Random(seed)
    job = spread(fleet, f"ft-random{least}", 3, least)
    places, pids = job.places(), job.pids()
    for number in range(int(os.environ.get("LOOM_TEST_CUTS", "6"))):
        done = [random_faults(fleet, places, rng) for _ in range(rng.choice([1, 1, 2]))]
        lasts_s = rng.choice([0.0, 1.0, 8.0, 25.0])
        print(f"cut {number}: {', '.join(done)} for {lasts_s:g} s", flush=True)
        time.sleep(lasts_s)
        for place in places:
            fleet.mend(place)
        job.wait_steps(2, 3, ALL)
    untouched(job, pids)
    last = job.end_together()
    made = job.one_history()
    assert [job.steps(index)[-1][0] for index in ALL] == [last] * 3
    assert len(job.weights()) == 1
    if least == 3:
        assert made == set(range(1, last + 1))
        assert job.weights() == spread(fleet, "ft-random-calm", 3, 3, steps=last).weights()


def test_cuts_change_no_bit_of_a_training_that_waits_for_all(fleet: CutNodes) -> None:
    """Short ones, long ones, and a link that is only slow; also of the lighthouse's own host."""
    job = spread(fleet, "ft-bits", 3, 3)
    places, pids = job.places(), job.pids()
    for node in places:
        fleet.slow(node, 100_000)
        job.wait_steps(2, 3, ALL)
        fleet.mend(node)
    for node in places:
        fleet.cut(node)
        fleet.wait_silent(node)
        fleet.mend(node)
        job.wait_steps(2, 3, ALL)
    for node in places:
        fleet.cut(node)
        fleet.mend(node)
        job.wait_steps(2, 3, ALL)
    untouched(job, pids)
    last = job.end_together()
    assert job.one_history() == set(range(1, last + 1))
    calm = spread(fleet, "ft-calm", 3, 3, steps=last)
    assert job.weights() == calm.weights(), "as in an undisturbed run"


def test_the_lighthouses_host_is_cut_off_and_only_its_side_may_continue(fleet: CutNodes) -> None:
    job = spread(fleet, "ft-light", 3, 1)
    places, pids = job.places(), job.pids()
    fleet.cut(places[0])
    job.wait_steps(5, 1, (0,))
    fleet.wait_silent(places[0])
    made = [len(job.steps(index)) for index in (1, 2)]
    job.wait_steps(50, 1, (0,))
    assert [len(job.steps(index)) for index in (1, 2)] == made, "the others must not commit, and wait"
    fleet.mend(places[0])
    job.wait_steps(3, 3, ALL)
    untouched(job, pids)
    job.end_together()
    job.one_history()
    assert len(job.weights()) == 1


@pytest.mark.parametrize("kind", ["local_sgd", "diloco", "hsdp"])
def test_rounds_and_shards_are_kept_apart_by_cuts_and_meet_again(fleet: CutNodes, kind: str) -> None:
    """LocalSGD and DiLoCo, where a commit is a round, and FSDP2 within replicas of two ranks."""
    flags = ("--nproc-per-node", "2") if kind == "hsdp" else ()
    script = EXAMPLES / f"torchft_{kind}.py"
    job = spread(fleet, f"ft-{kind}".replace("_", "-"), 3, 1, *flags, script=script)
    places, pids = job.places(), job.pids()
    fleet.cut(places[1])
    job.wait_steps(2, 2, (0, 2))
    fleet.mend(places[1])
    job.wait_steps(2, 3, ALL)
    fleet.part(places[1], places[2])
    job.wait_steps(2, 2, (0, 1))
    fleet.mend(places[1])
    job.wait_steps(2, 3, ALL)
    untouched(job, pids)
    steps = [step for step, _ in job.steps(0)]
    assert steps == sorted(steps), "nothing that was committed is lost"
    job.stack.loom("stop", "--kill", job.name)


def test_hosts_that_fence_themselves_are_replaced_and_nothing_of_them_joins_again(
    fleet: CutNodes, tmp_path: Path
) -> None:
    """A host that relays, then that of the lighthouse: their workers are ended there, and start elsewhere."""
    policy = tmp_path / "policy.toml"
    policy.write_text("self_fence_s = 5\n")
    job = spread(fleet, "ft-fence", 2, 1, "--policy", str(policy))
    for index in (1, 0):
        places, stays = job.places(), job.pid(1 - index)
        fleet.cut(places[index])
        wait_until(lambda: job.places()[index] not in places, "it starts on another host", PATIENCE_S)  # noqa: B023
        job.wait_steps(3, 2, (0, 1))
        assert job.pid(1 - index) == stays, "the other one kept its process"
        fleet.mend(places[index])
        fleet.wait_ready(places[index])
        job.wait_steps(2, 2, (0, 1))
    job.end_together()
    job.one_history()
    assert len(job.weights()) == 1
    wait_until(lambda: not any(lighthouses(fleet, node) for node in "bcd"), "all of it has ended", PATIENCE_S)


def test_a_host_that_is_cut_off_is_declared_gone_and_comes_back(fleet: CutNodes) -> None:
    """That of the lighthouse, while it is alive: the others continue elsewhere, and what it has is ended."""
    job = spread(fleet, "ft-gone", 2, 2)
    places, pids = job.places(), job.pids()
    fleet.cut(places[0])
    fleet.confirm_gone(places[0])
    job.wait_steps(3, 2, (1,))
    moved = job.places()
    assert moved[1] == places[1] and moved[0] not in places, "replaced on another node"
    assert job.pid(1) == pids[1], "the survivor kept its process"
    fleet.mend(places[0])
    fleet.wait_ready(places[0])
    wait_until(
        lambda: not lighthouses(fleet, places[0]), "what it had of the lighthouse is ended", PATIENCE_S
    )
    job.wait_steps(3, 2, (0, 1))
    last = job.end_together()
    assert job.one_history() == set(range(1, last + 1))
    assert job.weights() == plain(last, 2), "as in one process, without torchft"
