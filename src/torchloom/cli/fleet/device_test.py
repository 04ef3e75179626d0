"""Follows the test of a device to its end, and shows a result beside those of other devices."""

from __future__ import annotations

import math
import sys
import time
from typing import TYPE_CHECKING

from torchloom.errors import TimedOut

if TYPE_CHECKING:
    from torchloom.client import Client
    from torchloom.client.schema import DeviceDetail, TestView

ENDS_WITHIN_S = 600.0
"""A test ends itself after two minutes; another one of the same host may run before it."""
LOOK_EVERY_S = 0.3


def follow_test(client: Client, device: str, quiet: bool) -> DeviceDetail:
    """The device once no test runs on it."""
    from torchloom.cli.show.screen import Screen

    deadline = time.monotonic() + ENDS_WITHIN_S
    screen = Screen(live=not quiet and sys.stderr.isatty())
    try:
        while time.monotonic() < deadline:
            found = client.device(device)
            if found["state"] != "testing":
                return found
            screen.status(f"{device} · a test runs on it")
            time.sleep(LOOK_EVERY_S)
    finally:
        screen.close()
    raise TimedOut(f"The test of {device} has not ended yet", hint=f"see `loom device {device}`")


def show_risk(found: DeviceDetail) -> None:
    """The probability to fail within 24 h, and by how much each sign raises its odds."""
    if found["risk"] is None:
        print(f"risk     not predicted: {found['risk_why']}")
        return
    limit = "; at risk by the policy" if found["at_risk"] else ""
    print(f"risk     {100 * found['risk']:.1f} % to fail within 24 h{limit}")
    for one in found["drivers"]:
        print(f"         odds × {math.exp(min(one['weight'], 50.0)):.1f}: {one['says']}")
    if not found["drivers"]:
        print(f"         {found['risk_why']}")


def show_test(result: TestView | None) -> None:
    if result is None:
        return
    from torchloom.cli.show import output

    how = "passed" if result["passed"] else "failed"
    how += f": {result['why']}" if result["why"] else ""
    print(f"test     {result['source']}, {output.clock(result['at_ns'])}: {how}")
    if result["metrics"]:
        print()
        output.table(
            ("METRIC", "VALUE", "MEDIAN", "WORSE THAN MEDIAN BY", "DEVICES THAT ARE WORSE"),
            (
                (
                    one["name"],
                    f"{one['value']:g}",
                    "–" if one["median"] is None else f"{one['median']:g}",
                    f"{100 * one['shortfall']:.0f} %" if one["shortfall"] else "–",
                    "–" if one["worse"] is None else f"{100 * one['worse']:.0f} %",
                )
                for one in result["metrics"]
            ),
            nothing="",
        )
        more = result["measured"] - len(result["metrics"])
        if more > 0:
            print(f"and {more} metrics that are no worse")
