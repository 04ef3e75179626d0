"""What the state of pods and Kubernetes nodes means for torchloom's nodes. Pure.

A node of ours is named after its pod. It is gone only by proof: its pod's containers have all ended, or the
pod was there and was deleted. A pod on a host that Kubernetes cannot reach proves nothing: it stays listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torchloom.model.ids import distinct_token

CORDONED = "is cordoned in Kubernetes"
"""Marks drains of ours, which end when the node is uncordoned."""


@dataclass(frozen=True)
class PodAction:
    """What the control service is told about one node."""

    what: Literal["gone", "drain", "open"]
    node: str
    why: str = ""


@dataclass
class PodMemory:
    """Pods that were seen alive, by the name of their node."""

    seen: set[str] = field(default_factory=set)


def pod_actions(
    memory: PodMemory,
    pods: Sequence[Mapping[str, Any]],
    hosts: Sequence[Mapping[str, Any]],
    nodes: Iterable[Mapping[str, Any]],
    namespaces: Iterable[str] = (),
) -> list[PodAction]:
    """Compare what Kubernetes says (`pods` of these namespaces, `hosts`) with the nodes that the control
    service knows. A node that joined as a pod and is not listed was deleted, whether or not it was ever seen
    here."""
    listed = frozenset(namespaces)
    by_node = {distinct_token(str(pod["metadata"]["name"])): pod for pod in pods}
    cordoned = {host["metadata"]["name"] for host in hosts if host.get("spec", {}).get("unschedulable")}
    found: list[PodAction] = []
    known: set[str] = set()
    for node in nodes:
        name = str(node["id"])
        known.add(name)
        pod = by_node.get(name)
        was_pod = name in memory.seen or str(node.get("pod", "")).partition("/")[0] in listed
        if pod is None and not was_pod:
            continue  # no pod of ours
        if node["state"] in ("unreachable", "left"):
            if why := _why_gone(pod):
                found.append(PodAction("gone", name, why))
            continue
        host = pod.get("spec", {}).get("nodeName", "") if pod is not None else ""
        drained = str(node["drained"] or "")
        if host in cordoned and not drained:
            found.append(PodAction("drain", name, f"{host} {CORDONED}"))
        elif CORDONED in drained and host and host not in cordoned:
            found.append(PodAction("open", name))
    memory.seen = (memory.seen & known) | by_node.keys()
    return found


def unlisted(
    memory: PodMemory, pods: Sequence[Mapping[str, Any]], nodes: Iterable[Mapping[str, Any]]
) -> list[tuple[str, str]]:
    """Namespace and name of pods that joined, are silent now and are not listed: they were deleted, or lack
    the label by which pods are listed, and have to be asked for by name. Those seen before had it."""
    known = {distinct_token(str(pod["metadata"]["name"])) for pod in pods} | memory.seen
    silent = (n for n in nodes if n["state"] in ("unreachable", "left") and str(n["id"]) not in known)
    found = (str(n.get("pod", "")).partition("/") for n in silent)
    return [(namespace, name) for namespace, _, name in found if name]


def _why_gone(pod: Mapping[str, Any] | None) -> str:
    """Proof that nothing of a pod runs any more; empty if there is none."""
    if pod is None:
        return "its pod was deleted"
    status = pod.get("status", {})
    if status.get("phase") in ("Succeeded", "Failed"):
        return f"its pod has ended ({status.get('reason') or status['phase']})"
    return ""
