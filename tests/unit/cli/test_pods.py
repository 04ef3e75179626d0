"""What pods and Kubernetes nodes mean for nodes: only proof makes one gone. Also the progress for Trainer."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from torchloom.cli.cluster.node_files import JoinedNode
from torchloom.cli.places.pod import Pod
from torchloom.cli.places.pods import CORDONED, PodAction, PodMemory, pod_actions, unlisted
from torchloom.cli.places.trainer_status import TrainerStatus, status_of
from torchloom.errors import TimedOut
from torchloom.home import Home
from torchloom.model.ids import check_token, distinct_token


def pod(name: str, host: str = "h1", phase: str = "Running", reason: str = "") -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {"nodeName": host},
        "status": {"phase": phase, "reason": reason},
    }


def host(name: str = "h1", cordoned: bool = False) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"unschedulable": True} if cordoned else {}}


def node(name: str, state: str = "ready", drained: str = "") -> dict[str, Any]:
    return {"id": name, "state": state, "drained": drained}


def test_a_node_is_gone_only_when_its_pod_has_ended_or_was_deleted() -> None:
    memory = PodMemory()
    assert pod_actions(memory, [pod("a"), pod("b")], [host()], [node("a"), node("b"), node("bare")]) == []
    lost = [node("a", "unreachable"), node("b", "unreachable"), node("bare", "unreachable")]
    assert pod_actions(memory, [pod("a"), pod("b")], [host()], lost) == [], "its host may only be cut off"
    assert pod_actions(memory, [pod("a", phase="Failed", reason="Evicted")], [host()], lost) == [
        PodAction("gone", "a", "its pod has ended (Evicted)"),
        PodAction("gone", "b", "its pod was deleted"),
    ]


def test_a_controller_that_has_just_started_knows_nothing_of_nodes_that_are_no_pods() -> None:
    assert pod_actions(PodMemory(), [], [], [node("a", "unreachable")], ["ml"]) == []
    other = {**node("a", "unreachable"), "pod": "elsewhere/a"}
    assert pod_actions(PodMemory(), [], [], [other], ["ml"]) == [], "of a namespace that it does not list"


def test_a_pod_that_was_deleted_while_no_controller_looked_is_gone() -> None:
    """A drained host may take the controller along with the pods."""
    lost = {**node("a", "unreachable"), "pod": "ml/a"}
    assert unlisted(PodMemory(), [], [lost, node("b", "unreachable")]) == [("ml", "a")]
    assert pod_actions(PodMemory(), [], [], [lost], ["ml"]) == [PodAction("gone", "a", "its pod was deleted")]
    assert pod_actions(PodMemory(), [pod("a")], [], [lost], ["ml"]) == [], "it lacks the label, and lives"
    assert unlisted(PodMemory(), [pod("a")], [lost]) == unlisted(PodMemory({"a"}), [], [lost]) == []
    assert unlisted(PodMemory(), [], [{**lost, "state": "ready"}]) == []


def test_a_reachable_node_is_never_gone() -> None:
    memory = PodMemory({"a"})
    assert pod_actions(memory, [], [], [node("a")]) == []


def test_cordoned_hosts_take_no_workers_until_they_are_uncordoned() -> None:
    memory, pods = PodMemory(), [pod("a"), pod("b", host="h2")]
    hosts = [host("h1", cordoned=True), host("h2")]
    (drain,) = pod_actions(memory, pods, hosts, [node("a"), node("b")])
    assert drain == PodAction("drain", "a", f"h1 {CORDONED}")
    ours, persons = node("a", drained=f"root: {drain.why}"), node("b", drained="ann: fan broken")
    assert pod_actions(memory, pods, hosts, [ours, persons]) == [], "it is drained already"
    assert pod_actions(memory, pods, [host(), host("h2")], [ours, persons]) == [PodAction("open", "a")]


def test_names_of_pods_stay_different_as_names_of_nodes() -> None:
    long = "a-very-long-name-of-a-jobset-with-many-words-in-it-node-0-0-"
    names = ["char-gpt-node-0-0-x7k2p", f"{long}abcde", f"{long}abcdf", "ip-10-0-0-1.ec2.internal"]
    tokens = [distinct_token(name) for name in names]
    assert tokens[0] == names[0] and len(set(tokens)) == len(names)
    for token in tokens:
        check_token(token, "node name")


def view(**more: Any) -> Any:
    known: dict[str, Any] = {"state": "running", "step": 30, "total_steps": 120, "eta_s": 90.4, "restarts": 1}
    return cast(Any, known | more)


def test_the_progress_is_within_the_limits_of_trainers_schema() -> None:
    now = datetime(2026, 11, 17, 12, 0, tzinfo=UTC)
    found = status_of(view(), now)
    assert found["progressPercentage"] == 25 and found["estimatedRemainingSeconds"] == 90
    assert found["lastUpdatedTime"] == "2026-11-17T12:00:00Z"
    assert {"name": "step", "value": "30"} in found["metrics"]
    assert status_of(view(state="completed", eta_s=None), now)["progressPercentage"] == 100
    assert status_of(view(step=500), now)["progressPercentage"] == 99, "not before it has completed"
    assert "progressPercentage" not in status_of(view(total_steps=None, eta_s=float("inf")), now)


def test_nothing_is_sent_where_trainer_does_not_ask_for_it() -> None:
    assert TrainerStatus.of({}) is None


def test_the_main_container_uses_what_the_sidecar_got_when_it_joined(tmp_path: Path) -> None:
    agent = Home(tmp_path / "home")
    env = {"LOOM_POD_HOME": str(agent.root), "LOOM_ADDRESS": "https://loom:8700", "LOOM_HOME": "/nowhere"}
    with pytest.raises(TimedOut, match="has not joined yet"):
        Pod([], env)._token()
    agent.prepare()
    made = JoinedNode("p", "10.0.0.1", ("tls://bus:4222",), (), "seed", "claims", api_token="loompod1.p.x")
    made.write(agent, "ca")
    assert JoinedNode.read(agent) == made
    assert Pod([], env)._token() == "loompod1.p.x"
    assert Pod([], env | {"LOOM_TOKEN": "mine"})._token() == "", "one that a person gave is used instead"
