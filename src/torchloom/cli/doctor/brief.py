"""What `loom up` says about this host, from the checks that cost next to nothing."""

from __future__ import annotations

from torchloom.cli.doctor import host, sight
from torchloom.cli.doctor.check import Check
from torchloom.home import Home

_SEEN = {
    "recorder": "collectives and their ends",
    "stacks": "stacks",
    "process counters": "CPU and I/O",
    "cgroups": "quotas and OOM",
}


def look(home: Home) -> list[Check]:
    return [*host.checks(home), *sight.checks()]


def lines(checks: list[Check]) -> list[str]:
    """One line for what is seen, one for each thing that is not."""
    seen = [_SEEN[check.name] for check in checks if check.state == "ok" and check.name in _SEEN]
    devices = next((check for check in checks if check.name == "GPUs"), None)
    if devices is not None and devices.state == "ok":
        seen.append(devices.found.split(",")[0].replace(" by NVML", " GPUs"))
    elif devices is not None and devices.state == "note":
        seen.append("no GPU")
    wrong = [check for check in checks if check.state in ("limited", "broken")]
    made = [f"sees   {' · '.join(seen)}"]
    made += [f"warn   {check.name}: {check.sentence}" for check in wrong]
    return made
