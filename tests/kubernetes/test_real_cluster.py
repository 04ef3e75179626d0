"""On a real cluster: install, run a job of two pods, kill a pod, drain a node, upgrade, uninstall.

    KUBECONFIG=~/.kube/config LOOM_IMAGE=registry.example/torchloom:0.1.0 make test-kubernetes

Needs kubectl on PATH, an image with a tag that the cluster can pull or has already, rights to make a
namespace and cluster roles, and a default storage class. LOOM_RWX_CLASS names one for ReadWriteMany, where
the pods share their checkpoints; without it they are on a volume of one node, and both pods are bound to it.
Everything is in a namespace of its own, in which Kubernetes enforces the restricted Pod Security Standard and
which is deleted at the end. One node is cordoned and uncordoned; of its pods only ours are evicted. Skipped
without KUBECONFIG.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from manifests import CHART, HELM, Object

PATIENCE_S = 600.0
STEPS = 100_000
"""More than are ever made: the test ends the job."""
WHERE = "LOOM_HOME=/tmp/cli LOOM_CA=/etc/torchloom/tls/ca.crt LOOM_ADDRESS=https://localhost:8700"

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        not os.environ.get("KUBECONFIG") or not os.environ.get("LOOM_IMAGE"),
        reason="KUBECONFIG and LOOM_IMAGE name no cluster and no image; run by `make test-kubernetes`",
    ),
]


class Cluster:
    def __init__(self) -> None:
        self.namespace = f"loom-test-{secrets.token_hex(3)}"
        self.helm = shutil.which("helm") or str(HELM)
        self.image = os.environ.get("LOOM_IMAGE", "")
        self.cordoned: list[str] = []

    def run(self, *command: str, given: str | None = None, check: bool = True) -> str:
        done = subprocess.run(
            command, input=given, capture_output=True, text=True, timeout=PATIENCE_S + 60, check=False
        )
        if check and done.returncode:
            raise AssertionError(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}\n{self.facts()}")
        return done.stdout

    def kubectl(self, *words: str, given: str | None = None, check: bool = True) -> str:
        return self.run("kubectl", "-n", self.namespace, *words, given=given, check=check)

    def get(self, *words: str) -> Any:
        return json.loads(self.kubectl("get", *words, "-o", "json"))

    def facts(self) -> str:
        """What a person would look at first."""
        found = []
        logs = ["logs", "--all-containers", "--prefix", "--tail=40", "--ignore-errors"]
        for words in (
            ["get", "pods", "-o", "wide"],
            ["get", "events", "--sort-by=.lastTimestamp"],
            [*logs, "-l", "app.kubernetes.io/instance=torchloom"],
            [*logs, "-l", "torchloom.dev/agent=true"],
        ):
            done = subprocess.run(
                ["kubectl", "-n", self.namespace, *words],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            found.append(done.stdout[-6000:])
        return "\n".join(found)

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            found = condition()
            if found:
                return found
            time.sleep(2)
        raise AssertionError(f"not within {PATIENCE_S:g} s: {what}\n{self.facts()}")

    # -- torchloom --------------------------------------------------------------------------------------
    def install(self, *flags: str) -> None:
        repository, _, tag = self.image.rpartition(":")
        assert repository and "/" not in tag, f"LOOM_IMAGE is NAME:TAG, not {self.image!r}"
        self.run(
            *(self.helm, "upgrade", "--install", "torchloom", str(CHART), "--namespace", self.namespace),
            *("--set", f"image.repository={repository},image.tag={tag},nats.storage=1Gi", *flags),
            *("--wait", "--timeout", f"{PATIENCE_S:.0f}s"),
        )

    def loom(self, *args: str, check: bool = True) -> str:
        """A command inside a weaver's pod, which trusts itself."""
        words = ["sh", "-c", f'{WHERE} exec loom "$@"', "loom", *args]
        return self.kubectl("exec", "deploy/torchloom-weaver", "-c", "weaver", "--", *words, check=check)

    def nodes(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.loom("nodes", "--json", check=False) or "[]")
        return found

    def job(self) -> dict[str, Any]:
        """Asked again while nobody answers: `exec` fails while the weaver's pod is replaced."""
        found: dict[str, Any] = self.wait(self._job, "the control service knows the job")
        return found

    def _job(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.loom("status", "train", "--json", check=False) or "{}")
        return found

    def trains_on(self, least_step: int = 1) -> Any:
        """The pods that train, once both do and have reached that step."""
        job = self._job()
        on = [worker["node"] for worker in job.get("workers", [])]
        trains = job.get("state") == "running" and len(on) == 2 and (job["step"] or 0) >= least_step
        return on if trains else None

    def pods(self) -> list[Object]:
        """Of the job; not those that were replaced."""
        found = self.get("pods", "-l", "batch.kubernetes.io/job-name=train")["items"]
        return [one for one in found if "deletionTimestamp" not in one["metadata"]]

    def pod(self, name: str) -> Object:
        (found,) = [one for one in self.pods() if one["metadata"]["name"] == name]
        return found


def claim(cluster: Cluster) -> Object:
    name = os.environ.get("LOOM_RWX_CLASS", "")
    spec: Object = {
        "accessModes": ["ReadWriteMany" if name else "ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    if name:
        spec["storageClassName"] = name
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "checkpoints"},
        "spec": spec,
    }


def training(cluster: Cluster) -> Object:
    """An Indexed Job of two pods: what a JobSet makes, without its controller."""
    rendered = cluster.run(
        *(cluster.helm, "template", "torchloom", str(CHART), "--namespace", cluster.namespace),
        *("--set", "trainer.enabled=true", "--show-only", "templates/trainer.yaml"),
    )
    runtime = yaml.safe_load(rendered)
    spec: Object = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    spec |= {"parallelism": 2, "completions": 2, "completionMode": "Indexed"}
    pod = spec["template"]["spec"]
    pod["terminationGracePeriodSeconds"] = 120
    (container,) = pod["containers"]
    container["image"] = cluster.image
    container["resources"] = {"requests": {"cpu": "250m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}}
    if not os.environ.get("LOOM_RWX_CLASS"):
        beside = {
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": {"matchLabels": {"shares": "train"}},
        }
        spec["template"]["metadata"]["labels"]["shares"] = "train"
        pod["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [beside]}}
    container["args"] = ["--nnodes=2", "--nproc-per-node=1", "-m", "torchloom.examples.char_gpt"]
    # A plain Job has no labels of a JobSet.
    env = [one for one in container["env"] if not one["name"].startswith("LOOM_POD_")]
    for one in env:
        if one["name"] == "LOOM_LEAVE_WITHIN_S":
            one["value"] = "110"
    settings = {
        "LOOM_POD_JOB": "train",
        "LOOM_SLOTS": "1",
        "CHECKPOINT_DIR": "/checkpoints",
        "CHECKPOINT_EVERY": "20",
        "MAX_STEPS": str(STEPS),
        "SLEEP_SEC": "0.2",
    }
    container["env"] = [*env, *({"name": name, "value": value} for name, value in settings.items())]
    container["volumeMounts"].append({"name": "checkpoints", "mountPath": "/checkpoints"})
    pod["volumes"].append({"name": "checkpoints", "persistentVolumeClaim": {"claimName": "checkpoints"}})
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": spec}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    made.run("kubectl", "create", "namespace", made.namespace)
    try:
        strict = "pod-security.kubernetes.io/enforce=restricted"
        made.run("kubectl", "label", "namespace", made.namespace, strict)
        yield made
    finally:
        for node in made.cordoned:
            made.run("kubectl", "uncordon", node, check=False)
        made.run("kubectl", "delete", "namespace", made.namespace, "--wait=false", check=False)
        for part in ("controller", "weaver"):
            name = f"torchloom-{made.namespace}-{part}"
            kinds = "clusterrole,clusterrolebinding"
            made.run("kubectl", "delete", kinds, name, "--ignore-not-found", check=False)


def test_install_train_lose_a_pod_drain_upgrade_uninstall(cluster: Cluster) -> None:
    """One story, in order: each part needs the one before."""
    cluster.install()
    for name in (
        "deployment/torchloom-weaver",
        "deployment/torchloom-controller",
        "statefulset/torchloom-nats",
    ):
        cluster.kubectl("rollout", "status", name, f"--timeout={PATIENCE_S:.0f}s")
    assert cluster.nodes() == []

    # -- a job of two pods ------------------------------------------------------------------------------
    for one in (claim(cluster), training(cluster)):
        cluster.kubectl("apply", "-f", "-", given=json.dumps(one))
    first = cluster.wait(
        lambda: (now := cluster.trains_on(40)) and cluster.job()["checkpoint_step"] and now,
        "two pods train and have saved: their agents joined by the tokens of their pods",
    )
    assert sorted(first) == sorted(pod["metadata"]["name"] for pod in cluster.pods()), "nodes are pods"

    # -- a pod is killed without notice -----------------------------------------------------------------
    before = cluster.job()
    cluster.kubectl("delete", "pod", first[1], "--grace-period=0", "--force")
    on = cluster.wait(
        lambda: (now := cluster.trains_on(before["step"])) and first[1] not in now and now,
        "it resumes elsewhere",
    )
    after = cluster.job()
    assert after["generation"] > before["generation"]
    assert after["step"] >= before["checkpoint_step"], "from a checkpoint"

    # -- a node is drained: its pod saves first ---------------------------------------------------------
    before = cluster.job()
    host = cluster.pod(on[0])["spec"]["nodeName"]
    cluster.cordoned.append(host)
    cluster.run("kubectl", "cordon", host)
    cluster.wait(
        lambda: any("cordoned" in (node["drained"] or "") for node in cluster.nodes() if node["id"] == on[0]),
        "the controller reports the cordoned node",
    )
    # As `kubectl drain` does, for our pod alone.
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": on[0], "namespace": cluster.namespace},
    }
    path = f"/api/v1/namespaces/{cluster.namespace}/pods/{on[0]}/eviction"
    cluster.run("kubectl", "create", "--raw", path, "-f", "-", given=json.dumps(eviction))
    saved = cluster.wait(
        lambda: [o for o in json.loads(cluster.loom("operations", "train", "--json", check=False) or "[]")
                 if "is leaving" in o["why"]],
        "it is saved because its pod leaves",
    )  # fmt: skip
    assert saved
    cluster.run("kubectl", "uncordon", host)
    cluster.cordoned.remove(host)
    on = cluster.wait(
        lambda: (now := cluster.trains_on(before["step"])) and on[0] not in now and now, "it resumes again"
    )
    assert cluster.job()["restarts"] <= before["restarts"] + 1

    # -- an upgrade does not disturb it -----------------------------------------------------------------
    before = cluster.job()
    cluster.install("--set", "weaver.keepHistory=30000")
    now = cluster.wait(lambda: cluster.trains_on(before["step"] + 10), "it trains on")
    assert now == on and cluster.job()["generation"] == before["generation"]

    # -- agents as a DaemonSet ----------------------------------------------------------------------------
    cluster.install("--set", "weaver.keepHistory=30000,daemonset.enabled=true,daemonset.slots=1")
    agents = cluster.get("daemonset", "torchloom-agent")["status"]["desiredNumberScheduled"]
    assert agents >= 1
    cluster.wait(
        lambda: (
            sum("torchloom-agent" in n["id"] and n["state"] == "ready" for n in cluster.nodes()) == agents
        ),
        "every node of Kubernetes has an agent",
    )

    # -- the end ----------------------------------------------------------------------------------------
    cluster.loom("stop", "train")
    cluster.wait(
        lambda: all(p["status"]["phase"] in ("Failed", "Succeeded") for p in cluster.pods()), "pods end"
    )
    cluster.run(cluster.helm, "uninstall", "torchloom", "--namespace", cluster.namespace, "--wait")
    left = cluster.get(
        "deployments,statefulsets,daemonsets,services,secrets,configmaps,serviceaccounts,"
        "networkpolicies,poddisruptionbudgets,roles,rolebindings"
    )["items"]
    ours = [one["metadata"]["name"] for one in left if one["metadata"]["name"].startswith("torchloom")]
    assert ours == []
    roles = cluster.run("kubectl", "get", "clusterroles,clusterrolebindings", "-o", "name").split()
    assert [one for one in roles if cluster.namespace in one] == []
