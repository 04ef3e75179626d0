"""What the fleet's policy wants done about a device's health, within its budget. Does nothing itself."""

from __future__ import annotations

from torchloom.model.devices import DeviceAction, HealthClass
from torchloom.model.fleet import Fleet

DEFAULTS: dict[str, DeviceAction] = {"degraded": "report", "failing": "report", "failed": "fail"}
HOUR_NS = 3600 * 10**9
KEPT_ACTS = 256


def choose_action(fleet: Fleet, level: HealthClass, now_ns: int) -> tuple[DeviceAction, str]:
    """The action, and why it is only a report if the rule asked for more."""
    policy = fleet.device_policy
    action = policy.rules.get(level) or DEFAULTS.get(level, "report")
    if level == "ok" or action in ("ignore", "report"):
        return ("ignore" if level == "ok" else action), ""
    if policy.dry_run:
        return "report", f"dry run, would {action} it"
    spent = sum(act.at_ns > now_ns - HOUR_NS for act in fleet.device_acts)
    if spent >= policy.acts_per_hour:
        return "report", f"not acted on: {spent} devices were taken out of use within the last hour"
    return action, ""
