"""The top level of a part's process: its loop, its log, and the report of its end. Knows no part by name."""

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
COLLECT_AFTER = (50_000, 20, 20)
"""Python's own (700, 10, 10) is for programs that make cycles. Ours makes few, and a service of thousands of
ranks keeps so many records that looking through them again and again took a quarter of its time."""


def run_part(
    name: str,
    supervised: bool,
    serve: Callable[[], Awaitable[None]],
    settled: Callable[[], None] = lambda: None,
) -> int:
    """Run a service until it ends. A supervised service leaves its error for the supervisor. `settled` is
    called when its start is over."""
    gc.disable()  # while it imports and starts; `settle` ends this
    logging.basicConfig(
        level=os.environ.get("LOOM_LOG", "INFO").upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    for handler in logging.getLogger().handlers:
        handler.addFilter(Throttle())  # a neighbour who makes one line of ours a thousand times fills no disk
    home = Home.default()
    if supervised:
        parts.PartRecord.of(name, os.getpid()).write(home)

    async def main() -> None:
        asyncio.get_running_loop().call_later(SETTLED_AFTER_S, settle)
        asyncio.get_running_loop().call_later(SETTLED_AFTER_S, settled)
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


def settle() -> None:
    """Exempt everything loaded so far from garbage collection: scanning it again and again would block the
    loop, and any operation in progress, for tens of milliseconds each time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    gc.enable()


async def unless_stopped(work: asyncio.Task[Result], stop: asyncio.Event) -> Result | None:
    """The result of the work; None if the part must end first, and then the work is abandoned.

    A new part may be waiting for a bus that is not up yet; that wait must not delay its end.
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
