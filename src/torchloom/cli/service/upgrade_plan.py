"""What stands between the parts that run and this version: unreadable schemas, and the order of the swap.

Pure: a description of what runs goes in, a report comes out. It replaces nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchloom.wire.schema_versions import Readable, compare

if TYPE_CHECKING:
    from torchloom.client.schema import Versions

UNSAID = "not reported"


@dataclass(frozen=True)
class Part:
    """A part that runs, or the workers of one version of a job."""

    kind: str
    """`control service`, `agent` or `workers`."""
    name: str
    version: str
    """Empty: it does not report it, so it is older than such reports."""
    note: str = ""

    @property
    def shown(self) -> str:
        return self.version or UNSAID


@dataclass(frozen=True)
class UpgradePlan:
    version: str
    parts: list[Part]
    schemas: list[Readable]
    steps: list[str]
    problems: list[str]

    @property
    def ok(self) -> bool:
        return not self.problems


def number(version: str) -> tuple[int, ...]:
    """For comparing versions; one that is not reported is the lowest."""
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def make_plan(found: Versions, version: str) -> UpgradePlan:
    """How to get from what runs to `version`, and what speaks against it."""
    parts = _parts(found)
    schemas = compare(found["schemas"])
    problems = [
        f"this version reads {one.schema} {_range(one)}, and what runs writes {one.theirs}"
        for one in schemas
        if not one.ok
    ]
    problems += [service["blocked"] for service in found["services"] if service["blocked"]]
    problems += [node["refused"] for node in found["nodes"] if node["refused"]]
    leading = max((number(s["version"]) for s in found["services"] if s["leads"]), default=())
    problems += [
        f"the agent of {part.name} ({part.shown}) is newer than the control service that leads: upgrade the "
        "control services first"
        for part in parts
        if part.kind == "agent" and leading and number(part.version) > leading
    ]
    return UpgradePlan(version, parts, schemas, _steps(parts, version), problems)


def _range(one: Readable) -> str:
    return f"{one.reads_from} to {one.reads_to}" if one.reads_from < one.reads_to else str(one.reads_to)


def _parts(found: Versions) -> list[Part]:
    services = [
        Part("control service", s["name"], s["version"], "leads" if s["leads"] else s["blocked"] or "follows")
        for s in sorted(found["services"], key=lambda s: (s["leads"], s["name"]))
    ]
    agents = [
        Part("agent", n["node"], n["version"], n["refused"] or n["state"])
        for n in sorted(found["nodes"], key=lambda n: n["node"])
        if n["state"] in ("ready", "unreachable")
    ]
    workers = [
        Part("workers", job["job"], version, f"{count} worker{'s' if count > 1 else ''}")
        for job in found["jobs"]
        for version, count in sorted(job["workers"].items())
    ]
    return services + agents + workers


def _steps(parts: list[Part], version: str) -> list[str]:
    """In which order to swap what is not of this version; an older version goes in the opposite order."""
    other = [part for part in parts if part.version != version]
    older = [part for part in other if number(part.version) > number(version)]
    steps = [_step(part) for part in (reversed(older) if older else other)]
    return list(dict.fromkeys(steps))


def _step(part: Part) -> str:
    match part.kind:
        case "control service":
            return f"replace the control service {part.name} ({part.shown}); another one leads meanwhile"
        case "agent":
            return f"replace the agent of {part.name} ({part.shown}); its workers continue"
        case _:
            return (
                f"workers of {part.name} ({part.shown}) change at the job's next start: `loom restart "
                f"{part.name}` when it suits you"
            )
