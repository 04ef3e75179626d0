"""Makes tests/kubernetes/schemas: what the tests of manifests check them against, without descriptions.

    python scripts/make_kube_schemas.py KUBERNETES_JSON_SCHEMA CRDS

The first is `kubernetes-json-schema` of the package kubernetes-validate (`pip download kubernetes-validate`),
from which only our kinds are taken; the second has one file per CRD, `<kind>.<version>.json` with its
openAPIV3Schema.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

VERSIONS = ("1.30.0", "1.34.0", "1.36.0")
"""The oldest that the chart accepts, one between, and the one it is tried on."""
KINDS = (
    *("configmap-v1", "secret-v1", "service-v1", "serviceaccount-v1", "pod-v1", "job-batch-v1"),
    *("deployment-apps-v1", "statefulset-apps-v1", "daemonset-apps-v1", "poddisruptionbudget-policy-v1"),
    *("networkpolicy-networking-v1", "role-rbac-v1", "rolebinding-rbac-v1"),
    *("clusterrole-rbac-v1", "clusterrolebinding-rbac-v1"),
)
CRDS = ("jobset.v1alpha2", "clustertrainingruntime.v1alpha1", "trainjob.v1alpha1", "localqueue.v1beta2")
OUT = Path(__file__).resolve().parents[1] / "tests/kubernetes/schemas"


def main(core: Path, crds: Path) -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    for version in VERSIONS:
        folder = core / f"v{version}-local-strict"
        known = json.loads((folder / "_definitions.json").read_text())["$defs"]
        kinds = {kind: _bare(json.loads((folder / f"{kind}.json").read_text())) for kind in KINDS}
        used: dict[str, Any] = {}
        _collect(kinds, known, used)
        text = json.dumps({"kinds": kinds, "$defs": used}, sort_keys=True, separators=(",", ":"))
        (OUT / f"kubernetes-{version}.json").write_text(text + "\n")
    for name in CRDS:
        found = _bare(json.loads((crds / f"{name}.json").read_text()))
        (OUT / f"{name}.json").write_text(json.dumps(found, sort_keys=True, separators=(",", ":")) + "\n")


def _bare(value: Any) -> Any:
    """Without descriptions, and with references into this file."""
    if isinstance(value, list):
        return [_bare(one) for one in value]
    if not isinstance(value, dict):
        return value
    kept = {k: v for k, v in value.items() if not (k == "description" and isinstance(v, str))}
    if isinstance(kept.get("$ref"), str):
        kept["$ref"] = "#/$defs/" + kept["$ref"].rpartition("/")[2]
    return {k: _bare(v) for k, v in kept.items()}


def _collect(value: Any, known: dict[str, Any], used: dict[str, Any]) -> None:
    if isinstance(value, list):
        for one in value:
            _collect(one, known, used)
    elif isinstance(value, dict):
        name = str(value.get("$ref", "")).rpartition("/")[2]
        if name and name not in used:
            used[name] = _bare(known[name])
            _collect(used[name], known, used)
        for one in value.values():
            _collect(one, known, used)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
