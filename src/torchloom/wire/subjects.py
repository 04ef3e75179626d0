"""Every NATS subject of torchloom is built and parsed here, and nowhere else."""

from __future__ import annotations

ROOT = "loom.v1"
EVENTS = f"{ROOT}.event.>"
TELEMETRY = f"{ROOT}.telemetry.*"
WINDOWS = f"{ROOT}.window.*"
HEALTH = f"{ROOT}.health.*"
"""Where monitors may report the health of devices; the last part names the monitor."""
LEASES = f"{ROOT}.lease.*"
NODE_EVENTS = f"{ROOT}.event.node.*.report"
DECISIONS = f"{ROOT}.event.weaver.decision"
"""Appended to only by the weaver that holds the lease, each time with the expected last sequence."""


PRESENCES = f"{ROOT}.weaver.*"
"""Where weavers announce themselves to each other."""


def presence(weaver: str) -> str:
    return f"{ROOT}.weaver.{weaver}"


def echo(weaver: str) -> str:
    """What a weaver sends to itself, to learn how late it hears."""
    return f"{ROOT}.echo.{weaver}"


def node_event(node: str) -> str:
    """Where the agent of `node` appends its events; it may append nowhere else."""
    return f"{ROOT}.event.node.{node}.report"


def weaver_event(kind: str) -> str:
    """Where a weaver appends requests, timers and findings."""
    return f"{ROOT}.event.weaver.{kind}"


def telemetry(node: str) -> str:
    return f"{ROOT}.telemetry.{node}"


def windows(node: str) -> str:
    """Where the agent of `node` sends windows for the detectors."""
    return f"{ROOT}.window.{node}"


def lease(node: str) -> str:
    """Where the agent of `node` asks whether it is reachable and owns its name (agent/{fencing,name}.py)."""
    return f"{ROOT}.lease.{node}"


def command(node: str) -> str:
    return f"{ROOT}.command.{node}"


def query(node: str) -> str:
    return f"{ROOT}.query.{node}"


def node_of(subject: str) -> str | None:
    """The node an event or a telemetry message came from: it is in the subject, which the server enforces."""
    parts = subject.split(".")
    if parts[:4] == ["loom", "v1", "event", "node"] and len(parts) > 5:
        return parts[4]
    if parts[:2] == ["loom", "v1"] and parts[2] in ("telemetry", "window", "lease") and len(parts) == 4:
        return parts[3]
    return None
