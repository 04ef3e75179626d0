"""What test_real_cluster.py asks a cluster for, as far as it can be checked without one: its objects against
the real schemas and the restricted Pod Security Standard, what it finds missing, and what it leaves."""

from __future__ import annotations

import json
from typing import Any

import cluster_story as story
import pytest
from manifests import VERSIONS, Object, pod_templates, render, schema_errors
from semantics import restricted_errors, semantic_errors

from torchloom.cli.places.kube_api import SELECTOR

ALL = ("--set", "daemonset.enabled=true,trainer.enabled=true")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> story.Cluster:
    for name in ("LOOM_RWX_CLASS", "LOOM_STORAGE_CLASS", "LOOM_KEEP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOOM_IMAGE", "localhost:5000/torchloom:20261118")
    return story.Cluster()


@pytest.mark.parametrize("shared", ["", "nfs"])
@pytest.mark.parametrize("storage", ["", "local-path"])
def test_its_objects_are_what_kubernetes_takes(
    cluster: story.Cluster, monkeypatch: pytest.MonkeyPatch, shared: str, storage: str
) -> None:
    monkeypatch.setenv("LOOM_RWX_CLASS", shared)
    cluster.storage_class = storage
    job, claim = story.training(cluster), story.claim(cluster)
    (holder,) = [one for one in render() if one["kind"] == "StatefulSet"]
    holder["spec"]["volumeClaimTemplates"] = [claim]
    for version in VERSIONS:
        assert schema_errors(version, [job, holder]) == []
    assert semantic_errors([job]) == [] and restricted_errors([job]) == []
    (template,) = pod_templates(job)
    (container,) = template["spec"]["containers"]
    assert container["image"] == "localhost:5000/torchloom:20261118"
    env = {one["name"]: one.get("value", "") for one in container["env"]}
    assert env["LOOM_POD_JOB"] == "train" and "LOOM_POD_ATTEMPT" not in env, "a Job has no labels of a JobSet"
    grace = template["spec"]["terminationGracePeriodSeconds"]
    assert 0 < float(env["LOOM_LEAVE_WITHIN_S"]) < grace
    key, _, value = SELECTOR.partition("=")
    assert template["metadata"]["labels"][key] == value, "the controller looks for it"
    assert claim["spec"].get("storageClassName", "") == (shared or storage)


def test_its_values_reach_every_part(cluster: story.Cluster) -> None:
    cluster.storage_class = "fast"
    objects = render(*cluster.values(), *ALL, namespace=cluster.namespace)
    images = {c["image"] for o in objects for t in pod_templates(o) for c in t["spec"]["containers"]}
    assert images == {"localhost:5000/torchloom:20261118"}, "a number is a tag, too"
    (claim,) = [o["spec"]["volumeClaimTemplates"][0] for o in objects if o["kind"] == "StatefulSet"]
    assert claim["spec"]["storageClassName"] == "fast"
    milli = 0
    for one in objects:
        if one["kind"] in ("Deployment", "StatefulSet"):
            (container,) = one["spec"]["template"]["spec"]["containers"]
            asked = container["resources"]["requests"]["cpu"]
            milli += one["spec"]["replicas"] * int(asked.removesuffix("m"))
    assert milli <= 400, "a small node has room for it"


def test_all_pods_of_the_chart_are_restricted() -> None:
    """The namespace of the test enforces it."""
    assert restricted_errors(render(*ALL)) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hostNetwork": True}, "hostNetwork"),
        ({"securityContext": {"runAsUser": 0}}, "runs as root"),
        ({"volumes": [{"name": "x", "hostPath": {"path": "/"}}]}, "hostPath"),
        ({"securityContext": {"runAsNonRoot": True}}, "seccomp"),
    ],
)
def test_the_rules_of_the_standard_are_checked(change: Object, says: str) -> None:
    objects = render()
    (one,) = [o for o in objects if o["kind"] == "StatefulSet"]
    one["spec"]["template"]["spec"] |= change
    assert any(says in text for text in restricted_errors(objects)), restricted_errors(objects)


READY = {"type": "Ready", "status": "True"}
NODE = {"metadata": {"name": "n"}, "spec": {}, "status": {"conditions": [READY]}}
MARK = {"storageclass.kubernetes.io/is-default-class": "true"}
SOUND: dict[str, Any] = {
    "version": {"serverVersion": {"major": "1", "minor": "36", "gitVersion": "v1.36.0"}},
    "auth": "yes",
    "nodes": {"items": [NODE]},
    "storageclasses": {"items": [{"metadata": {"name": "standard", "annotations": MARK}}]},
}
CONTROL_PLANE = {**NODE, "spec": {"taints": [{"key": "control-plane", "effect": "NoSchedule"}]}}


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ({}, ""),
        ({"version": {}}, "no API server answers"),
        ({"version": {"serverVersion": {"major": "1", "minor": "29+", "gitVersion": "v1.29"}}}, "v1.29"),
        ({"auth": "no"}, "may not create namespaces"),
        ({"nodes": {"items": [CONTROL_PLANE]}}, "no node is ready"),
        ({"nodes": {"items": [{**NODE, "spec": {"unschedulable": True}}]}}, "no node is ready"),
        ({"storageclasses": {"items": [{"metadata": {"name": "slow"}}]}}, "LOOM_STORAGE_CLASS names one of"),
        ({"storageclasses": {"items": []}}, "no storage class is the default"),
    ],
)
def test_what_a_cluster_lacks_is_reported_before_anything_is_made(
    cluster: story.Cluster, monkeypatch: pytest.MonkeyPatch, answers: dict[str, Any], says: str
) -> None:
    known = SOUND | answers

    def run(*command: str, **_: Any) -> str:
        words = command[2] if command[1] == "get" else command[1]
        return known[words] if isinstance(known[words], str) else json.dumps(known[words])

    monkeypatch.setattr(cluster, "run", run)
    monkeypatch.setattr(story.shutil, "which", lambda _: "/usr/bin/kubectl")
    found = cluster.missing()
    assert bool(found) == bool(says) and says in "; ".join(found)


def test_after_a_failure_nothing_is_left(cluster: story.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command is tried, although the ones before it failed or did not end."""
    ran: list[str] = []
    monkeypatch.setattr(story, "ANSWER_S", 0.2)
    monkeypatch.setattr(cluster, "cordoned", ["n1"])
    real = cluster.run

    def run(*command: str, **more: Any) -> str:
        ran.append(" ".join(command[1:]))
        return real("sleep", "60", limit_s=0.1, check=more["check"])

    monkeypatch.setattr(cluster, "run", run)
    cluster.clean()
    assert "uncordon n1" in ran
    assert any(one.endswith(f"namespace {cluster.namespace}") for one in ran)
    for part in ("controller", "weaver"):
        assert any(one.endswith(f"torchloom-{cluster.namespace}-{part}") for one in ran)
    roles = {o["metadata"]["name"] for o in render(namespace=cluster.namespace) if o["kind"] == "ClusterRole"}
    assert all(any(one.endswith(role) for one in ran) for role in roles), "those that the chart makes"
