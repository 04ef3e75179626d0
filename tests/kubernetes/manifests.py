"""Renders the chart with the real helm, reads manifests, and checks them against the real schemas.

`schemas/` is made by scripts/make_kube_schemas.py: Kubernetes 1.30, 1.34 and 1.36, JobSet 0.12, Trainer 2.3
and Kueue 0.19.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CHART = ROOT / "deploy/helm/torchloom"
HELM = Path(sys.executable).parent / "helm"
VERSIONS = ("1.30.0", "1.34.0", "1.36.0")
CRDS = {
    "JobSet": "jobset.v1alpha2",
    "ClusterTrainingRuntime": "clustertrainingruntime.v1alpha1",
    "TrainJob": "trainjob.v1alpha1",
    "LocalQueue": "localqueue.v1beta2",
}
Object = dict[str, Any]


def render(*flags: str, name: str = "torchloom", namespace: str = "default") -> list[Object]:
    """What `helm install` would send to a cluster."""
    command = [str(HELM), "template", name, str(CHART), "--namespace", namespace, *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return read(done.stdout)


def read(text: str) -> list[Object]:
    return [one for one in yaml.safe_load_all(text) if one]


@cache
def _core(version: str) -> Object:
    found: Object = json.loads((HERE / f"schemas/kubernetes-{version}.json").read_text())
    return found


@cache
def _validator(version: str, kind: str, api: str) -> Any:
    if kind in CRDS:
        found = json.loads((HERE / f"schemas/{CRDS[kind]}.json").read_text())
        assert api == f"{found['group']}/{found['version']}", f"{kind} is {found['group']}/{found['version']}"
        return jsonschema_rs.validator_for(_strict(found["openAPIV3Schema"]))
    group = api.rpartition("/")[0].partition(".")[0]
    key = f"{kind.lower()}-{group}-v1" if group else f"{kind.lower()}-v1"
    core = _core(version)
    return jsonschema_rs.validator_for({**core["kinds"][key], "$defs": core["$defs"]})


def _strict(schema: Any) -> Any:
    """A structural schema of a CRD drops what it does not know, silently; here that is an error."""
    if isinstance(schema, list):
        return [_strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _strict(value) for key, value in schema.items() if not key.startswith("x-")}
    open_ended = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if "properties" in schema and isinstance(schema["properties"], dict) and not open_ended:
        found["additionalProperties"] = False
    if schema.get("x-kubernetes-int-or-string"):
        found.pop("type", None)
        found.pop("anyOf", None)
        found["type"] = ["integer", "string"]
    return found


def schema_errors(version: str, objects: list[Object]) -> list[str]:
    found = []
    for one in objects:
        where = f"{one['kind']} {one['metadata']['name']}"
        checked = copy.deepcopy(one)
        if one["kind"] in CRDS:
            checked["metadata"] = {}
        for error in _validator(version, one["kind"], one["apiVersion"]).iter_errors(checked):
            found.append(f"{where}: {'/'.join(map(str, error.instance_path))}: {error.message[:300]}")
        found += [f"{where}: {text}" for text in _templates_in(version, one)]
    return found


def trainer_status_errors(status: Object) -> list[str]:
    """What Trainer's schema of a TrainJob does not allow in its status."""
    found = json.loads((HERE / f"schemas/{CRDS['TrainJob']}.json").read_text())["openAPIV3Schema"]
    schema = _strict(found["properties"]["status"])
    return [error.message[:300] for error in jsonschema_rs.validator_for(schema).iter_errors(status)]


def _templates_in(version: str, one: Object) -> Iterator[str]:
    """CRDs know little of the pods inside them: those are checked as Kubernetes' own."""
    for spec in job_specs(one) if one["kind"] in CRDS else ():
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": spec}
        for error in _validator(version, "Job", "batch/v1").iter_errors(job):
            yield f"{'/'.join(map(str, error.instance_path))}: {error.message[:300]}"


def job_specs(one: Object) -> list[Object]:
    """The specs of the Jobs that an object leads to."""
    match one["kind"]:
        case "Job":
            return [one["spec"]]
        case "JobSet":
            replicated = one["spec"]["replicatedJobs"]
        case "ClusterTrainingRuntime":
            replicated = one["spec"]["template"]["spec"]["replicatedJobs"]
        case _:
            return []
    return [job["template"]["spec"] for job in replicated]


def pod_templates(one: Object) -> list[Object]:
    """The pod templates that an object leads to."""
    if one["kind"] in ("Deployment", "StatefulSet", "DaemonSet"):
        return [one["spec"]["template"]]
    return [spec["template"] for spec in job_specs(one)]


def containers(template: Object) -> list[Object]:
    spec = template["spec"]
    return [*spec.get("initContainers", []), *spec["containers"]]
