"""`loom devices`: which worker runs on which device, and which device each worker uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchloom.cli.options import JsonOption, api

if TYPE_CHECKING:
    from torchloom.client.schema import DeviceEntry

EXAMPLES = (("loom devices", "device ↔ replica ↔ worker, both ways"),)


MOST_REMARKS = 20


def brief_risk(device: DeviceEntry) -> str:
    """The probability to fail within 24 h; nothing is counted on CPU cores."""
    if device["risk"] is None:
        return "–" if device["kind"] == "cpu" else "not enough data"
    return f"{100 * device['risk']:.1f} %" + (", at risk" if device["at_risk"] else "")


def remarks_on(device: DeviceEntry) -> list[str]:
    found = []
    if device["at_risk"] and device["risk"] is not None:
        percent = f"{100 * device['risk']:.0f} %"
        found.append(f"{device['device']} is at risk, {percent} to fail within 24 h: {device['risk_why']}")
    if device["testing"]:
        found.append(f"{device['device']} is being tested, requested by {device['testing']}")
    elif device["wants_test"]:
        found.append(f"{device['device']} will be tested when no worker uses it: {device['wants_test']}")
    return found


def command(as_json: JsonOption = False) -> None:
    """Show which workers and replicas each device runs, and which devices each worker uses.

    RISK is the probability that a device fails within 24 h. Below the table stands what raises the risk of
    devices that are at risk by the policy, and who has a device tested.
    """
    from torchloom.cli.show import output

    found = api().devices()
    if as_json:
        output.show_json(found)
        return
    output.table(
        ("DEVICE", "KIND", "NODE", "STATE", "HEALTH", "RISK", "REPLICAS", "WORKERS"),
        (
            (
                device["device"],
                device["kind"],
                device["node"],
                device["state"],
                device["health"],
                brief_risk(device),
                ", ".join(device["replicas"]) or "–",
                ", ".join(user["worker"] for user in device["workers"]) or "–",
            )
            for device in found["devices"]
        ),
        nothing="no devices; is an agent running?",
        spare=("KIND", "REPLICAS"),
    )
    remarks = [line for device in found["devices"] for line in remarks_on(device)]
    if remarks:
        print()
    for line in remarks[:MOST_REMARKS]:
        print(line)
    if len(remarks) > MOST_REMARKS:
        print(f"and {len(remarks) - MOST_REMARKS} more; `loom devices --json` has all")
    if found["workers"]:
        print()
        output.table(
            ("WORKER", "REPLICA", "NODE", "DEVICES"),
            (
                (w["worker"], w["replica"], w["node"], ", ".join(w["devices"]) or "not reported yet")
                for w in found["workers"]
            ),
            nothing="",
        )
