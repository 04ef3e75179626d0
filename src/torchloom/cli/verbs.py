"""All verbs in the order of `loom --help`, and the module of each. Imports none of them."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

FAMILIES = {
    "up": "service",
    "down": "service",
    "open": "access",
    "run": "jobs",
    "submit": "jobs",
    "sbatch": "places",
    "ps": "jobs",
    "top": "top",
    "status": "jobs",
    "logs": "jobs",
    "wait": "jobs",
    "stop": "jobs",
    "restart": "jobs",
    "scale": "jobs",
    "delete": "jobs",
    "purge": "jobs",
    "set": "steer",
    "config": "steer",
    "revert": "steer",
    "pause": "steer",
    "resume": "steer",
    "operations": "steer",
    "checkpoint": "steer",
    "checkpoints": "steer",
    "restore": "steer",
    "incidents": "fleet",
    "incident": "fleet",
    "replay": "fleet",
    "analyze": "fleet",
    "stragglers": "fleet",
    "trace": "fleet",
    "report": "fleet",
    "tensorboard": "fleet",
    "otlp": "fleet",
    "probe": "fleet",
    "events": "fleet",
    "devices": "fleet",
    "device": "fleet",
    "superbench": "fleet",
    "nodes": "fleet",
    "node": "fleet",
    "inject": "fleet",
    "cluster": "cluster",
    "join": "cluster",
    "ca": "cluster",
    "shell": "shell",
    "demo": "service",
    "doctor": "doctor",
    "upgrade": "service",
    "context": "access",
    "token": "access",
    "completion": "shell",
    "pod": "places",
    "kubernetes": "places",
    "weaver": "service",
    "agent": "service",
    "notify": "service",
}
"""The shelf of every verb. A new verb is one line here and one file on that shelf."""

VERBS = tuple(FAMILIES)
LOCAL_VERBS = frozenset(
    {"up", "down", "demo", "doctor", "context", "completion", "analyze", "cluster", "join", "ca"}
)
"""Verbs that act on this host only and take no --context."""


def module_of(verb: str) -> ModuleType:
    return import_module(f"torchloom.cli.{FAMILIES[verb]}.{verb}")
