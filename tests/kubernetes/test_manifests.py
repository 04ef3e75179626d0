"""The chart and the plain manifests against the real schemas, and against rules that schemas do not know."""

from __future__ import annotations

import base64
import copy
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
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
from semantics import allowed_calls, secrets_used, semantic_errors

from torchloom.bus import nats_config
from torchloom.bus.protocol import MAX_MESSAGE_BYTES
from torchloom.cli.places.kube_api import CALLS, SELECTOR

ALL = ("--set", "daemonset.enabled=true,trainer.enabled=true,agentNamespaces={team-a,team-b}")
EXTERNAL = (
    *("--set", "nats.enabled=false,externalNats.url=tls://bus:4222,auth.existingSecret=mine"),
    *("--set", "tls.existingSecret=certs,controller.enabled=false,networkPolicy.enabled=false"),
)
PLAIN = sorted((ROOT / "deploy/kubernetes").glob("*.yaml"))


@pytest.fixture(scope="module")
def everything() -> list[Object]:
    return render(*ALL)


def of(objects: list[Object], kind: str, name: str = "") -> Object:
    (found,) = [one for one in objects if one["kind"] == kind and one["metadata"]["name"].endswith(name)]
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_what_the_chart_renders_is_valid(everything: list[Object], version: str) -> None:
    assert len(everything) > 20
    assert schema_errors(version, everything) == []
    assert schema_errors(version, render()) == []
    assert schema_errors(version, render(*EXTERNAL)) == []


@pytest.mark.parametrize("path", PLAIN, ids=lambda path: path.name)
def test_plain_manifests_are_valid(path: Path) -> None:
    objects = read(path.read_text())
    for version in VERSIONS:
        assert schema_errors(version, objects) == []
    # Those made from the chart stand alone; the examples use its services and secrets.
    assert semantic_errors(objects) == []


@pytest.mark.parametrize("flags", [(), ALL, EXTERNAL], ids=["default", "all", "external"])
def test_what_schemas_do_not_know(flags: tuple[str, ...]) -> None:
    assert semantic_errors(render(*flags)) == []


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
        ("ClusterRoleBinding", "", _set("roleRef", "name", value="x"), "does not exist"),
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
    assert allowed_calls(everything) == set(CALLS)
    source = (ROOT / "src/torchloom/cli/places/kube_api.py").read_text()
    assert len(re.findall(r"self\._list\(", source)) == len(CALLS), "every call stands in CALLS"


def test_pods_that_the_controller_looks_for_have_its_label(everything: list[Object]) -> None:
    key, _, value = SELECTOR.partition("=")
    jobset = read((ROOT / "deploy/kubernetes/jobset.yaml").read_text())
    agents = [
        template
        for one in (*everything, *jobset)
        for template in pod_templates(one)
        if any(c["command"] in (["loom", "agent"], ["loom", "pod"]) for c in containers(template))
    ]
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
    assert {"team-a", "team-b"} <= {o["metadata"]["namespace"] for o in everything if o["kind"] == "Secret"}


def test_passwords_are_words_for_nats(everything: list[Object]) -> None:
    """The server reads a variable as configuration: a value that begins with a digit would be a number."""
    data = of(everything, "Secret", "-auth")["data"]
    for key in ("weaver-password", "agent-password", "route-password"):
        assert re.fullmatch(r"[A-Za-z][A-Za-z0-9]{30,}", base64.b64decode(data[key]).decode())


def test_the_bus_gives_the_rights_that_the_code_knows() -> None:
    text = (CHART / "files/accounts.conf").read_text()
    for permissions in (nats_config.weaver_permissions(), nats_config.agent_permissions("*")):
        for subject in (*permissions["publish"], *permissions["subscribe"]):  # type: ignore[misc]
            assert f'"{subject}"' in text or subject == "_INBOX_*.>", subject
    assert f'"{nats_config.LEASE_READ}"' in text and f'"{nats_config.LEADER}"' in text
    config = of(render(), "ConfigMap")["data"]["nats.conf"]
    assert f"max_payload: {MAX_MESSAGE_BYTES}" in config
    assert f"max_buffered_msgs: {nats_config.BUFFERED_EVENTS}" in config


def test_plain_manifests_are_made_from_the_chart() -> None:
    sys.path.append(str(ROOT / "scripts"))
    from make_manifests import OUT, rendered

    assert OUT.read_text() == rendered(), "run scripts/make_manifests.py"


def test_helm_finds_nothing_to_say() -> None:

    done = subprocess.run(
        [str(HELM), "lint", "--strict", str(CHART)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
