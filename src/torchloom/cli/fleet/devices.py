"""`loom devices`: which worker runs on which device, and which device each worker uses."""

from __future__ import annotations

from torchloom.cli.options import JsonOption, api

EXAMPLES = (("loom devices", "device ↔ replica ↔ worker, both ways"),)


def command(as_json: JsonOption = False) -> None:
    """Show which workers and replicas each device runs, and which devices each worker uses."""
    from torchloom.cli.show import output

    found = api().devices()
    if as_json:
        output.show_json(found)
        return
    output.table(
        ("DEVICE", "KIND", "NODE", "STATE", "HEALTH", "REPLICAS", "WORKERS"),
        (
            (
                device["device"],
                device["kind"],
                device["node"],
                device["state"],
                device["health"],
                ", ".join(device["replicas"]) or "–",
                ", ".join(user["worker"] for user in device["workers"]) or "–",
            )
            for device in found["devices"]
        ),
        nothing="no devices; is an agent running?",
    )
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
