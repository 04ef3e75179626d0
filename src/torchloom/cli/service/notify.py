"""`loom notify`: delivers incidents to the webhooks of this home. `loom up` runs it where there are some."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from torchloom.home import Home


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="loom notify",
        description="Deliver incidents to the receivers in webhooks.toml of the home (docs/export.md).",
        epilog="example: loom notify --test    (one message to every receiver)",
    )
    parser.add_argument("--home", type=Path, help="directory of torchloom's state (LOOM_HOME)")
    parser.add_argument("--config", type=Path, metavar="FILE", help="other file than HOME/webhooks.toml")
    parser.add_argument("--test", action="store_true", help="send one message to every receiver and end")
    parser.add_argument("--part", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.home is not None:
        os.environ["LOOM_HOME"] = str(options.home.expanduser().absolute())
    home = Home.default()
    path = options.config or home.webhooks_file
    if options.test:
        return _test(path)

    from torchloom.cli.service.part_main import run_part

    return run_part("notify", options.part, lambda: _serve(home, path))


async def _serve(home: Home, path: Path) -> None:
    import asyncio
    import threading

    from torchloom.client import Client, Endpoint
    from torchloom.export.notify import Notifier, run
    from torchloom.export.webhooks import read_webhooks

    notifier = Notifier(read_webhooks(path), home.root / "notified.json")
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    await asyncio.to_thread(run, notifier, lambda: Client(Endpoint.find()), ended)
    print("notify: ended", file=sys.stderr)


def _test(path: Path) -> int:
    import time

    from torchloom.export.delivery import send
    from torchloom.export.webhooks import message, read_webhooks

    incident = {
        "id": "test.1",
        "job": "test",
        "kind": "crash",
        "open": True,
        "resolution": "",
        "decision": "",
    }
    incident |= {
        "verdict": "This is a test of `loom notify --test`. Nothing is wrong.",
        "action": "",
        "outcome": "",
    }
    failed = 0
    for hook in read_webhooks(path):
        result = send(hook, f"test.{time.time_ns()}", message(hook, "opened", incident), int(time.time()))
        print(f"{hook.name}: {result.why or 'delivered'}")
        failed += bool(result.why)
    return 1 if failed else 0
