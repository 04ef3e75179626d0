"""The chart and the plain manifests against the real schemas, and against rules that schemas do not know."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kube_api_server import ApiServer
from manifests import (
    CHART,
    HELM,
    ROOT,
    VERSIONS,
    Object,
    containers,
    pod_templates,
    read,
    render,
    schema_errors,
)
from semantics import allowed_calls, secrets_used, secrets_used_by, semantic_errors

from torchloom.cli.places.kube_api import CONTROLLER_CALLS, SELECTOR, WEAVER_CALLS, KubeApi
from torchloom.cli.places.pod_review import AUDIENCE, NAMESPACES

ALL = ("--set", "daemonset.enabled=true,trainer.enabled=true,agentNamespaces={team-a,team-b}")
EXTERNAL = (
    *("--set", "nats.enabled=false,externalNats.url=tls://bus:4222,auth.existingSecret=mine"),
    *("--set", "tls.existingSecret=certs,controller.enabled=false,networkPolicy.enabled=false"),
)
PLAIN = sorted((ROOT / "deploy/kubernetes").glob("*.yaml"))


@pytest.fixture(scope="module")
def everything() -> list[Object]:
    return render(*ALL)


def _agents(objects: list[Object]) -> list[Object]:
    """Pod templates with an agent."""
    return [
        template
        for one in objects
        for template in pod_templates(one)
        if any(c["command"] in (["loom", "agent"], ["loom", "pod"]) for c in containers(template))
    ]


def of(objects: list[Object], kind: str, name: str = "") -> Object:
    (found,) = [one for one in objects if one["kind"] == kind and one["metadata"]["name"].endswith(name)]
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_what_the_chart_renders_is_valid(everything: list[Object], version: str) -> None:
    assert len(everything) > 20
    assert schema_errors(version, everything) == []


@pytest.mark.parametrize("path", PLAIN, ids=lambda path: path.name)
def test_plain_manifests_are_valid(path: Path) -> None:
    objects = read(path.read_text())
    for version in VERSIONS:
        assert schema_errors(version, objects) == []
    # Those made from the chart stand alone; the examples use its services and secrets.
    assert semantic_errors(objects) == []


COMBINATIONS = {
    "default": (),
    "all": ALL,
    "external": EXTERNAL,
    "one-server": ("--set", "nats.replicas=1,weaver.replicas=1,podDisruptionBudgets=false"),
    "five-servers": ("--set", "nats.replicas=5,nats.storageClass=fast,nats.storage=1Ti"),
    "own-secrets": ("--set", "auth.existingSecret=mine,tls.existingSecret=certs,trainer.enabled=true"),
    "placement": ("--set-json", 'weaver.placement={"priorityClassName": "high", "tolerations": []}',
                  "--set-json", 'nats.placement={"nodeSelector": {"disk": "ssd"}}',
                  "--set-json", 'controller.placement={"affinity": {"nodeAffinity": {}}}'),
    "no-controller": ("--set", "controller.enabled=false,agentNamespaces={a}"),
    "daemonset": ("--set", "daemonset.enabled=true,daemonset.slots=8,daemonset.nodeSelector.gpu=yes,"
                  "daemonset.resources.limits.nvidia\\.com/gpu=8,imagePullSecrets[0].name=pull"),
    "trainer": ("--set", "trainer.enabled=true,trainer.nodes=4,trainer.terminationGracePeriodSeconds=30"),
    "ingress": ("--set", "weaver.allowHosts={loom.example}", "--set-json", "networkPolicy.apiFrom=[]"),
    # As somebody has them from chart 0.1: values that are gone have no effect, the others keep their meaning.
    "values-of-0.1": ("--set", "auth.existingSecret=mine,externalNats.url=tls://bus:4222,nats.enabled=false,"
                      "externalNats.copies=1,daemonset.enabled=true,daemonset.shmSize=1Gi,tls.days=30"),
}  # fmt: skip


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_every_combination_of_values_is_right(combination: str) -> None:
    objects = render(*COMBINATIONS[combination], name="a-release", namespace="some-where")
    assert semantic_errors(objects) == []
    for version in VERSIONS:
        assert schema_errors(version, objects) == []


def _set(*path: Any, value: Any) -> Any:
    def change(one: Object) -> None:
        for key in path[:-1]:
            one = one[key]
        if value is None:
            del one[path[-1]]
        else:
            one[path[-1]] = value

    return change


POD = ("spec", "template", "spec")
RUNTIME = ("spec", "template", "spec", "replicatedJobs", 0, "template", "spec", "template", "spec")


@pytest.mark.parametrize(
    ("kind", "name", "change", "says"),
    [
        ("ClusterTrainingRuntime", "", _set(*RUNTIME, "restartPolicy", value="Always"), "Never or OnFailure"),
        ("Deployment", "weaver", _set("spec", "selector", "matchLabels", "a", value="b"), "does not match"),
        ("Service", "torchloom", _set("spec", "ports", 0, "targetPort", value="http"), "which no pod has"),
        ("StatefulSet", "nats", _set("spec", "serviceName", value="other"), "service does not exist"),
        ("StatefulSet", "nats", _set(*POD, "volumes", 0, "name", value="x"), "volume tmp does not exist"),
        ("DaemonSet", "", _set(*POD, "terminationGracePeriodSeconds", value=60), "not within the grace"),
        ("DaemonSet", "", _set(*POD, "securityContext", "runAsNonRoot", value=False), "may run as root"),
        ("ClusterRoleBinding", "weaver", _set("roleRef", "name", value="x"), "does not exist"),
        ("NetworkPolicy", "nats", _set("spec", "podSelector", "matchLabels", "a", value="b"), "selects no"),
    ],
)
def test_the_rules_see_what_is_wrong(
    everything: list[Object], kind: str, name: str, change: Any, says: str
) -> None:
    changed = copy.deepcopy(everything)
    change(of(changed, kind, name))
    assert any(says in text for text in semantic_errors(changed))


def test_the_schemas_see_what_is_wrong(everything: list[Object]) -> None:
    changed = copy.deepcopy(everything)
    of(changed, "Deployment", "weaver")["spec"]["replica"] = 2
    of(changed, "ClusterTrainingRuntime")["spec"]["mlPolicy"]["numNode"] = 2
    jobs = of(changed, "ClusterTrainingRuntime")["spec"]["template"]["spec"]["replicatedJobs"]
    jobs[0]["template"]["spec"]["template"]["spec"]["containers"][0]["imag"] = "x"
    assert len(schema_errors("1.36.0", changed)) >= 3


def test_roles_allow_exactly_the_calls_that_the_code_makes(everything: list[Object]) -> None:
    """What each account may do, by its roles, is what a server of our own receives from its code."""
    assert allowed_calls(everything, "torchloom-controller") == set(CONTROLLER_CALLS)
    assert allowed_calls(everything, "torchloom-weaver") == set(WEAVER_CALLS)
    source = (ROOT / "src/torchloom/cli/places/kube_api.py").read_text()
    calls = re.findall(r"self\._(?:list|call)\(f?\"", source)
    assert len(calls) == len(CONTROLLER_CALLS) + len(WEAVER_CALLS), "every call is in a list"
    with ApiServer() as server:
        api = KubeApi(server.url, server.account())
        api.pods("default")
        api.nodes()
        api.review("a.b.c", AUDIENCE)
    assert set(server.calls) == {*CONTROLLER_CALLS, *WEAVER_CALLS}
    everywhere = [path for path in (ROOT / "src").rglob("*.py") if "KubeApi(" in path.read_text()]
    assert {path.name for path in everywhere} <= {"kube_api.py"}, "nobody else calls Kubernetes"


def test_pods_that_the_controller_looks_for_have_its_label(everything: list[Object]) -> None:
    key, _, value = SELECTOR.partition("=")
    jobset = read((ROOT / "deploy/kubernetes/jobset.yaml").read_text())
    agents = _agents([*everything, *jobset])
    assert len(agents) == 3
    for template in agents:
        assert template["metadata"]["labels"][key] == value
        assert template["metadata"]["labels"]["torchloom.dev/bus-client"] == "true"


def test_every_secret_that_pods_use_is_made_with_its_keys(everything: list[Object]) -> None:
    made = {
        one["metadata"]["name"]: set(one["data"])
        for one in everything
        if one["kind"] == "Secret" and one["metadata"]["namespace"] == "default"
    }
    for name, keys in secrets_used(everything).items():
        assert keys <= made[name], name
    maps = {one["metadata"]["name"] for one in everything if one["kind"] == "ConfigMap"}
    templates = [template for one in everything for template in pod_templates(one)]
    for volume in (volume for template in templates for volume in template["spec"].get("volumes", [])):
        assert volume.get("configMap", {"name": "torchloom-ca"})["name"] in maps, volume


def test_agents_and_training_pods_have_no_secret_in_common(everything: list[Object]) -> None:
    """Each proves itself by its own pod's token, which is for torchloom alone; all else is public."""
    jobset = read((ROOT / "deploy/kubernetes/jobset.yaml").read_text())
    pods = _agents([*everything, *jobset])
    assert len(pods) == 3
    for template in pods:
        assert secrets_used_by([template]) == {}
        assert template["spec"]["automountServiceAccountToken"] is False
        (proof,) = [v["projected"]["sources"] for v in template["spec"]["volumes"] if v["name"] == "proof"]
        assert proof == [
            {"serviceAccountToken": {"audience": AUDIENCE, "expirationSeconds": 3600, "path": "token"}}
        ]
    secret = [one for one in everything if one["kind"] == "Secret"]
    assert {one["metadata"]["namespace"] for one in secret} == {"default"}, "none leaves its namespace"
    public = [one for one in everything if one["kind"] == "ConfigMap"]
    assert {one["metadata"]["namespace"] for one in public} == {"default", "team-a", "team-b"}
    for one in public:
        assert set(one["data"]) == {"ca.crt"} and "PRIVATE" not in one["data"]["ca.crt"]


def test_the_control_service_admits_the_pods_of_the_named_namespaces(everything: list[Object]) -> None:
    (weaver,) = containers(of(everything, "Deployment", "weaver")["spec"]["template"])
    env = {one["name"]: one.get("value", "") for one in weaver["env"]}
    assert env[NAMESPACES] == "default,team-a,team-b"


def test_only_the_container_that_writes_the_configuration_sees_the_secret(everything: list[Object]) -> None:
    spec = of(everything, "StatefulSet")["spec"]["template"]["spec"]
    keys = {"keys"}
    assert keys <= {mount["name"] for mount in spec["initContainers"][0]["volumeMounts"]}
    assert not keys & {mount["name"] for mount in spec["containers"][0]["volumeMounts"]}


def test_plain_manifests_are_made_from_the_chart() -> None:
    sys.path.append(str(ROOT / "scripts"))
    from make_manifests import OUT, rendered

    assert OUT.read_text() == rendered(), "run scripts/make_manifests.py"


def test_helm_finds_nothing_to_say() -> None:

    done = subprocess.run(
        [str(HELM), "lint", "--strict", str(CHART)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
