"""The versions of a job's config, as core.config.schedule orders them. Records only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Entry:
    """One version of the config."""

    version: int
    """The number of the operation that decided it. What people see is core.steering.versions' affair."""
    step: int
    """The first training step that uses it."""
    values: Mapping[str, object]
    """As the user wrote it: address → value."""
    before: Mapping[str, object] = field(default_factory=dict)
    """What every single place held until then, as the ranks reported it."""
    by: str = ""
    why: str = ""
    at_ns: int = 0


Schedule = tuple[Entry, ...]
"""In the order of application: by step, then by version."""
