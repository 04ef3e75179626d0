"""What happens on a cluster in test_real_cluster.py, and what asks a cluster for it.

A module of its own: test_story.py checks it without a cluster, and tests/containers/test_pods_run.py plays it
with containers as pods.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable
from typing import Any

import yaml
from manifests import CHART, HELM, Object

PATIENCE_S = float(os.environ.get("LOOM_PATIENCE_S", "") or 900.0)
ANSWER_S = 60.0
"""For one short command."""
LEAST_VERSION = (1, 30)
"""As in Chart.yaml."""
SMALL = ",".join(
    f"{part}.resources.requests.{what}"
    for part in ("weaver", "nats", "controller")
    for what in ("cpu=50m", "memory=128Mi")
)
"""A cluster of one small node has room for all of it."""
STEPS = 100_000
"""More than are ever made: the test ends the job."""
NEEDED_RIGHTS = (
    ("create", "namespaces"),
    ("create", "clusterroles.rbac.authorization.k8s.io"),
    ("bind", "clusterroles.rbac.authorization.k8s.io"),
    ("create", "statefulsets.apps"),
    ("create", "pods"),
    ("patch", "nodes"),
)
WHERE = "LOOM_HOME=/tmp/cli LOOM_CA=/etc/torchloom/tls/ca.crt LOOM_ADDRESS=https://localhost:8700"


class Cluster:
    def __init__(self) -> None:
        self.namespace = f"loom-test-{secrets.token_hex(3)}"
        self.helm = str(HELM)  # the one with which the chart is tested
        self.image = os.environ.get("LOOM_IMAGE", "")
        self.storage_class = os.environ.get("LOOM_STORAGE_CLASS", "")
        self.cordoned: list[str] = []

    def run(
        self, *command: str, given: str | None = None, check: bool = True, limit_s: float = ANSWER_S
    ) -> str:
        """Its output; without `check` whatever there was of it, if it failed or did not end in time."""
        try:
            done = subprocess.run(
                command, input=given, capture_output=True, text=True, timeout=limit_s, check=False
            )
        except subprocess.TimeoutExpired:
            if check:
                raise AssertionError(
                    f"{' '.join(command)} takes longer than {limit_s:g} s\n{self.facts()}"
                ) from None
            return ""
        if check and done.returncode:
            raise AssertionError(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}\n{self.facts()}")
        return done.stdout

    def kubectl(self, *words: str, given: str | None = None, check: bool = True) -> str:
        return self.run("kubectl", "-n", self.namespace, *words, given=given, check=check)

    def get(self, *words: str) -> Any:
        return json.loads(self.kubectl("get", *words, "-o", "json"))

    def facts(self) -> str:
        """What a person would look at first. Never fails."""
        found = []
        logs = ["logs", "--all-containers", "--prefix", "--tail=40", "--ignore-errors"]
        ours, agents = "app.kubernetes.io/instance=torchloom", "torchloom.dev/agent=true"
        for words in (
            ["get", "pods,pvc", "-o", "wide"],
            ["get", "events", "--sort-by=.lastTimestamp"],
            ["describe", "pods"],
            *([*logs, "-l", which, *before] for which in (ours, agents) for before in ([], ["--previous"])),
        ):
            with contextlib.suppress(subprocess.TimeoutExpired, OSError):
                done = subprocess.run(
                    ["kubectl", "-n", self.namespace, *words],
                    capture_output=True,
                    text=True,
                    timeout=ANSWER_S,
                    check=False,
                )
                found.append(f"--- {' '.join(words)}\n{done.stdout[-6000:]}")
        return "\n".join(found)

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        print(f"{time.strftime('%H:%M:%S')} waiting until {what}", flush=True)
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            found = condition()
            if found:
                return found
            time.sleep(2)
        raise AssertionError(f"not within {PATIENCE_S:g} s: {what}\n{self.facts()}")

    # -- before and after -------------------------------------------------------------------------------
    def missing(self) -> list[str]:
        """What the cluster lacks for this test, each in a sentence."""
        if shutil.which("kubectl") is None:
            return ["kubectl is not on PATH"]
        repository, _, tag = self.image.rpartition(":")
        found = [] if repository and "/" not in tag else [f"LOOM_IMAGE is NAME:TAG, not {self.image!r}"]
        version = json.loads(self.run("kubectl", "version", "-o", "json", check=False) or "{}")
        if "serverVersion" not in version:
            return [*found, "no API server answers: `kubectl version` says why"]
        server = version["serverVersion"]
        if (int(server["major"]), int(server["minor"].rstrip("+"))) < LEAST_VERSION:
            found.append(f"the chart needs Kubernetes {LEAST_VERSION}, this is {server['gitVersion']}")
        for verb, what in NEEDED_RIGHTS:
            if self.run("kubectl", "auth", "can-i", verb, what, "-A", check=False).strip() != "yes":
                found.append(f"this user may not {verb} {what}")
        listed = json.loads(self.run("kubectl", "get", "nodes", "-o", "json", check=False) or '{"items": []}')
        if not any(takes_pods(node) for node in listed["items"]):
            found.append("no node is ready and takes pods without tolerations")
        classes = json.loads(
            self.run("kubectl", "get", "storageclasses", "-o", "json", check=False) or '{"items": []}'
        )["items"]
        names = {one["metadata"]["name"] for one in classes}
        wanted = {self.storage_class, os.environ.get("LOOM_RWX_CLASS", "")} - {""}
        found += [f"there is no storage class {name}" for name in sorted(wanted - names)]
        if not self.storage_class and not any(is_default(one) for one in classes):
            found.append(
                f"no storage class is the default; LOOM_STORAGE_CLASS names one of {sorted(names) or 'none'}"
            )
        return found

    def clean(self) -> None:
        """Nothing of it is left, whatever failed."""
        for node in self.cordoned:
            self.run("kubectl", "uncordon", node, check=False)
        if os.environ.get("LOOM_KEEP") == "1":
            print(f"kept: kubectl delete namespace {self.namespace}")
            return
        delete = ("kubectl", "delete", "--ignore-not-found", "--wait=false")
        self.run(*delete, "namespace", self.namespace, check=False)
        for part in ("controller", "weaver"):
            name = f"torchloom-{self.namespace}-{part}"
            self.run(*delete, "clusterrole,clusterrolebinding", name, check=False)

    # -- torchloom --------------------------------------------------------------------------------------
    def install(self, *flags: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} helm upgrade --install {' '.join(flags)}", flush=True)
        self.run(
            *(self.helm, "upgrade", "--install", "torchloom", str(CHART), "--namespace", self.namespace),
            *(*self.values(), *flags, "--wait", "--timeout", f"{PATIENCE_S:.0f}s"),
            limit_s=PATIENCE_S + 60,
        )

    def values(self) -> tuple[str, ...]:
        repository, _, tag = self.image.rpartition(":")
        image = ("--set-string", f"image.repository={repository},image.tag={tag}")
        return (*image, "--set", f"nats.storage=1Gi,nats.storageClass={self.storage_class},{SMALL}")

    def loom(self, *args: str, check: bool = True) -> str:
        """A command inside a weaver's pod, which trusts itself."""
        words = ["sh", "-c", f'{WHERE} exec loom "$@"', "loom", *args]
        return self.kubectl("exec", "deploy/torchloom-weaver", "-c", "weaver", "--", *words, check=check)

    def ask(self, *args: str) -> Any:
        """What a command that reads answers; None while nobody does: `exec` fails while the weaver's pod is
        replaced."""
        said = self.loom(*args, "--json", check=False)
        return json.loads(said) if said.strip() else None

    def nodes(self) -> list[dict[str, Any]]:
        return list(self.ask("nodes") or ())

    def job(self) -> dict[str, Any]:
        found: dict[str, Any] = self.wait(self._job, "the control service knows the job")
        return found

    def _job(self) -> dict[str, Any]:
        return dict(self.ask("status", "train") or {})

    def trains_on(self, least_step: int | None) -> Any:
        """The pods that train, once both do and have reached that step."""
        job = self._job()
        on = [worker["node"] for worker in job.get("workers", [])]
        trains = job.get("state") == "running" and len(on) == 2 and (job["step"] or 0) >= (least_step or 1)
        return on if trains else None

    def pods(self) -> list[Object]:
        """Of the job; not those that were replaced."""
        found = self.get("pods", "-l", "batch.kubernetes.io/job-name=train")["items"]
        return [one for one in found if "deletionTimestamp" not in one["metadata"]]

    def pod(self, name: str) -> Object:
        (found,) = [one for one in self.pods() if one["metadata"]["name"] == name]
        return found


def takes_pods(node: Object) -> bool:
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in node["status"]["conditions"])
    closed = [one for one in node["spec"].get("taints", []) if one["effect"] != "PreferNoSchedule"]
    return ready and not node["spec"].get("unschedulable") and not closed


def is_default(storage: Object) -> bool:
    marks = storage["metadata"].get("annotations") or {}
    return marks.get("storageclass.kubernetes.io/is-default-class") == "true"


def claim(cluster: Cluster) -> Object:
    shared = os.environ.get("LOOM_RWX_CLASS", "")
    spec: Object = {
        "accessModes": ["ReadWriteMany" if shared else "ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    if shared or cluster.storage_class:
        spec["storageClassName"] = shared or cluster.storage_class
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
        *(*cluster.values(), "--set", "trainer.enabled=true", "--show-only", "templates/trainer.yaml"),
    )
    runtime = yaml.safe_load(rendered)
    spec: Object = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    spec |= {"parallelism": 2, "completions": 2, "completionMode": "Indexed"}
    pod = spec["template"]["spec"]
    pod["terminationGracePeriodSeconds"] = 120
    (container,) = pod["containers"]
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


def play(cluster: Cluster) -> None:
    """One story, in order: each part needs the one before."""
    cluster.install()
    for name in (
        "deployment/torchloom-weaver",
        "deployment/torchloom-controller",
        "statefulset/torchloom-nats",
    ):
        cluster.kubectl("rollout", "status", name, "--timeout=30s")  # helm has waited for it
    cluster.wait(lambda: cluster.ask("nodes") == [], "the control service answers and knows no node")

    # -- a job of two pods ------------------------------------------------------------------------------
    for one in (claim(cluster), training(cluster)):
        cluster.kubectl("apply", "-f", "-", given=json.dumps(one))
    first = cluster.wait(
        lambda: (now := cluster.trains_on(40)) and cluster.job()["checkpoint_step"] and now,
        "two pods train and have saved: their agents joined by the tokens of their pods",
    )
    assert sorted(first) == sorted(pod["metadata"]["name"] for pod in cluster.pods()), "nodes are pods"
    recorders = {worker["recorder"] for worker in cluster.job()["workers"]}
    assert recorders == {"native"}, "the library that was compiled for the image is used"

    # -- a pod is killed without notice -----------------------------------------------------------------
    before = cluster.job()
    cluster.kubectl("delete", "pod", first[1], "--grace-period=0", "--force", "--wait=false")
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
    cluster.wait(
        lambda: any(f"{on[0]} is leaving" in o["why"] for o in cluster.ask("operations", "train") or ()),
        "it is saved because its pod leaves",
    )
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

    def all_joined() -> bool:
        wanted = cluster.get("daemonset", "torchloom-agent")["status"].get("desiredNumberScheduled", 0)
        joined = [n for n in cluster.nodes() if "torchloom-agent" in n["id"] and n["state"] == "ready"]
        return 0 < wanted == len(joined)

    cluster.wait(all_joined, "every node of Kubernetes that takes pods has an agent")

    # -- the end ----------------------------------------------------------------------------------------
    cluster.loom("stop", "train")
    cluster.wait(lambda: cluster.job()["ended"], "the job has ended")
    cluster.wait(
        lambda: (
            cluster.get("job", "train")["status"].get("succeeded") == 2
            and all(p["status"]["phase"] in ("Failed", "Succeeded") for p in cluster.pods())
        ),
        "its pods have ended well",
    )
    cluster.run(
        *(cluster.helm, "uninstall", "torchloom", "--namespace", cluster.namespace, "--wait"),
        limit_s=PATIENCE_S,
    )
    left = cluster.get(
        "deployments,statefulsets,daemonsets,services,secrets,configmaps,serviceaccounts,"
        "networkpolicies,poddisruptionbudgets,roles,rolebindings"
    )["items"]
    ours = [one["metadata"]["name"] for one in left if one["metadata"]["name"].startswith("torchloom")]
    assert ours == []
    roles = cluster.run("kubectl", "get", "clusterroles,clusterrolebindings", "-o", "name").split()
    assert [one for one in roles if cluster.namespace in one] == []
