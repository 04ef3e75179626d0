"""A slow link in a real job: noticed, measured by the ranks, told by name; and nothing is restarted."""

from __future__ import annotations

import json
from itertools import permutations
from typing import Any

from stack import Stack, wait_until


def steps(stack: Stack, job: str) -> int:
    return min(int(worker["steps"] or 0) for worker in stack.status(job)["workers"])


def test_a_slow_link_is_found_between_the_ranks_it_lies_between(stack: Stack) -> None:
    job = stack.submit("wide.py", workers=4)
    stack.wait_state(job, "running")
    wait_until(lambda: steps(stack, job) >= 80, "the usual pace is known")
    before = json.loads(stack.steer("probe", job, "--json").stdout)["links"]
    pairs = {(one["sender"], one["receiver"]) for one in before["delays"]}
    assert pairs == set(permutations(range(4), 2))
    # gloo's ring sends from each rank to the one before it.
    stack.loom("inject", job, "slow-link", "--rank", "0", "--peer", "3", "--amount", "4")

    def told() -> Any:
        found = [stack.json("incident", one["id"]) for one in stack.json("incidents", job)]
        return next((one for one in found if one["kind"] == "link-slow" and names_it(one)), None)

    def names_it(one: Any) -> bool:  # what a busy machine makes slow is told as well
        return bool(one["finding"]["ranks"] == [0, 3])

    incident = wait_until(told, f"the link is named: {stack.json('incidents', job)}")
    assert "rank 0" in incident["verdict"]
    slowest = max(incident["links"]["delays"], key=lambda one: one["transfer_s"])
    assert (slowest["sender"], slowest["receiver"]) == (0, 3)
    asked = [one for one in stack.json("operations", job) if one["by"] == "policy"]
    assert {one["kind"] for one in asked} == {"probe"} and "applied" in {one["state"] for one in asked}
    assert "rank 0" in stack.loom("incident", incident["id"]).stdout
    assert stack.status(job)["restarts"] == 0
