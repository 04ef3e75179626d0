"""One line of the report of `loom doctor`. Pure: what was found in, states and an exit code out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

State = Literal["ok", "note", "limited", "broken"]
"""`note`: worth knowing, nothing is lost. `limited`: torchloom will not see something. `broken`: jobs cannot
run, or cannot run under torchloom."""

ALL_WELL, SOMETHING_UNSEEN, CANNOT_RUN = 0, 1, 7


@dataclass(frozen=True)
class Check:
    """What was looked at, what was found, what that means, and how to mend it."""

    name: str
    state: State
    found: str
    unseen: str = ""
    """What torchloom will not see or do because of it, as a clause."""
    fix: str = ""
    """One sentence."""

    @property
    def sentence(self) -> str:
        """Everything about it, for the table."""
        found = f"{self.found}: {self.unseen}" if self.unseen else self.found
        return f"{found}. {self.fix}" if self.fix else found


def exit_code(checks: Iterable[Check]) -> int:
    states = {check.state for check in checks}
    return CANNOT_RUN if "broken" in states else SOMETHING_UNSEEN if "limited" in states else ALL_WELL


def summary(checks: Sequence[Check]) -> str:
    """The last line of the report."""
    broken = [check.name for check in checks if check.state == "broken"]
    limited = [check.name for check in checks if check.state == "limited"]
    if broken:
        return f"jobs will not run here as they are: {', '.join(broken)}"
    if limited:
        return f"jobs run here, but torchloom will not see everything: {', '.join(limited)}"
    return "torchloom sees everything it can see on such a host"


def as_json(checks: Sequence[Check], **more: object) -> dict[str, object]:
    return {
        **more,
        "exit_code": exit_code(checks),
        "summary": summary(checks),
        "checks": [asdict(check) for check in checks],
    }
