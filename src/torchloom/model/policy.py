"""What a job's owner wants done about findings: by class and by how sure they are. A record, no behaviour."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Action = Literal["ignore", "report", "pause", "restart"]
"""`ignore`: no incident. `report`: an incident and nothing else. `pause`: hold all ranks at the next step
until a person resumes them. `restart`: end the generation and begin the next one at the newest checkpoint."""

Level = Literal["certain", "lasting", "likely", "suspected"]
"""`certain`: nothing benign looks like this. `lasting`: not certain, but longer than the limit for acting.
`likely`: a confidence of at least 0.8. `suspected`: anything else."""


class Policy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rules that a job's owner set; what they do not name follows the defaults of core/policy.py."""

    dry_run: bool = False
    """Only note what would have been done."""
    restarts_per_hour: int = 6
    """Restarts because of findings; those after a crash have the job's own budget only."""
    cooldown_s: float = 30.0
    """Least time between two restarts because of findings."""
    probe_links: bool = True
    """Measure the links between the ranks at a step when transfers have become slow."""
    probe_every_s: float = 600.0
    """At most once in so long."""
    rules: dict[str, dict[str, Action]] = {}
    """Kind of finding → level → action."""
