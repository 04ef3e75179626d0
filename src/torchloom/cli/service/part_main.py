"""The top level of a part's process: its loop, its log, and how its end is told. Knows no part by name."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

from torchloom.cli.service import parts
from torchloom.cli.service.own_logs import Throttle
from torchloom.errors import LoomError
from torchloom.home import Home

Result = TypeVar("Result")

CANCEL_WITHIN_S = 1.0
SETTLED_AFTER_S = 3.0


def run_part(name: str, supervised: bool, serve: Callable[[], Awaitable[None]]) -> int:
    """Run a service until it ends. A supervised one leaves its last sentence for the supervisor."""
    logging.basicConfig(
        level=os.environ.get("LOOM_LOG", "INFO").upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    for handler in logging.getLogger().handlers:
        handler.addFilter(Throttle())  # a neighbour who makes one line of ours a thousand times fills no disk
    home = Home.default()
    if supervised:
        parts.Record.of(name, os.getpid()).write(home)

    async def main() -> None:
        asyncio.get_running_loop().call_later(SETTLED_AFTER_S, _settle)
        await serve()

    try:
        asyncio.run(main())
        return 0
    except LoomError as error:
        if not supervised:
            raise
        print(f"loom: {error}", file=sys.stderr)
        parts.write_failure(home, name, str(error), error.exit_code)
        return error.exit_code


def _settle() -> None:
    """What has been loaded by now stays: to look through it for garbage again and again would hold up the
    loop for tens of milliseconds at a time, and with it whatever change is under way."""
    gc.collect()
    gc.freeze()


async def unless_stopped(work: asyncio.Task[Result], stop: asyncio.Event) -> Result | None:
    """What the work gives; None if the part is told to end first, and then nobody waits for the work.

    A part that has just been started may wait for a bus that is not there yet, and must not wait so to end.
    """
    stopping = asyncio.create_task(stop.wait(), name="stop")
    try:
        await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        work.cancel()
        await asyncio.wait({work}, timeout=CANCEL_WITHIN_S)
        return None
    finally:
        stopping.cancel()
