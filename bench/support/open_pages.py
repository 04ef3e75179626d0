"""What an open page costs the control service: CPU time of a real weaver with and without pages on it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from playwright.sync_api import Browser

from support.launchers import BIN
from support.player import Player
from support.table import progress
from torchloom.bus.embedded import EmbeddedNats
from torchloom.bus.nats import NatsBus
from torchloom.cli.service.plan import node_name
from torchloom.home import Home

JOB = "wide"
PAGES = (0, 1, 4)
SECONDS = 20


def weaver_rows(browser: Browser, ranks: int) -> list[dict[str, object]]:
    """CPU time of the weaver a second, with so many pages of one job of so many ranks open."""
    rows: list[dict[str, object]] = []
    with (
        tempfile.TemporaryDirectory(prefix="loom-bench-") as root,
        _job(Home(Path(root) / "home"), ranks) as env,
    ):
        home = Home(Path(env["LOOM_HOME"]))
        weaver = psutil.Process(json.loads((home.parts_dir / "weaver.json").read_bytes())["pid"])
        alone = 0.0
        for pages in PAGES:
            progress(f"weaver with {pages} pages of {ranks} ranks…")
            contexts = [browser.new_context(viewport={"width": 1280, "height": 900}) for _ in range(pages)]
            for context in contexts:
                page = context.new_page()
                page.goto(json.loads(_loom(env, "open", JOB, "--json"))["link"])
                page.locator("#ranks canvas").wait_for(timeout=120_000)
            time.sleep(3)  # what a page asks for once is not what it costs
            before, began = weaver.cpu_times(), time.monotonic()
            time.sleep(SECONDS)
            after, took = weaver.cpu_times(), time.monotonic() - began
            share = (after.user + after.system - before.user - before.system) / took
            alone = share if not pages else alone
            each = round(100 * (share - alone) / pages, 1) if pages else "–"
            rows.append(
                {"pages": pages, "weaver_core_percent": round(100 * share, 1), "percent_per_page": each}
            )
            for context in contexts:
                context.close()
    return rows


def _loom(env: dict[str, str], *args: str) -> str:
    return subprocess.run(
        [BIN / "loom", *args], env=env, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


@contextmanager
def _job(home: Home, ranks: int) -> Iterator[dict[str, str]]:
    """A real `loom up` with one job whose ranks are played; the environment for commands."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("LOOM_")}
    env |= {"LOOM_HOME": str(home.root), "LOOM_PREWARM": "0", "LOOM_SLOTS": "1"}
    _loom(env, "up", "--port", "0")
    started, over = threading.Event(), threading.Event()
    playing = threading.Thread(target=lambda: asyncio.run(_play(home, ranks, started, over)))
    playing.start()
    try:
        assert started.wait(60)
        _loom(env, "submit", "--name", JOB, "--nproc-per-node", str(ranks), "--no-python", "true")
        yield env
    finally:
        subprocess.run([BIN / "loom", "stop", JOB, "--kill"], env=env, check=False, stdout=subprocess.DEVNULL)
        over.set()
        playing.join()
        subprocess.run([BIN / "loom", "down", "--stop-jobs"], env=env, check=False, stdout=subprocess.DEVNULL)


async def _play(home: Home, ranks: int, started: threading.Event, over: threading.Event) -> None:
    bus = await NatsBus.connect(EmbeddedNats(home.nats_dir, node_name()).address("weaver"), name="bench")
    player = Player(bus)
    beating = asyncio.create_task(player.beat())
    await player.join()
    started.set()
    while not over.is_set():
        await asyncio.sleep(0.2)
    beating.cancel()
    await bus.close()
