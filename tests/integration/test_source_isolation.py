"""A source of health in a child process: what it starts and what it prints never disturb the agent."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import time
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from torchloom.agent.health.isolation import look_once, looks
from torchloom.agent.health.source_process import ChildLine

WITHIN_S = 120.0
"""For a child on a busy machine."""

PLUGIN = """
import os, sys, subprocess, time
from pathlib import Path
from torchloom.agent.health.health_source import SourceLook


class Plugin:
    name, every_s, deadline_s, isolated = "plugin", 3600.0, 5.0, True

    def __init__(self, node, home):
        self.home = Path(home)

    def why_not(self):
        return ""

    def close(self):
        pass

    def look(self):
        (self.home / "self.pid").write_text(f"{os.getpid()}\\n")
        how = (self.home / "how").read_text()
        if "forks" in how:
            pid = os.fork()
            if pid == 0:
                time.sleep(3600)
                os._exit(0)
            (self.home / "forked.pid").write_text(f"{pid}\\n")
        if "leaves" in how:
            pid = os.fork()
            if pid == 0:
                os.setsid()
                (self.home / "left.pid").write_text(f"{os.getpid()}\\n")
                time.sleep(3600)
                os._exit(0)
            while not (self.home / "left.pid").exists():
                time.sleep(0.01)
        if "starts" in how:
            program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
            (self.home / "started.pid").write_text(f"{program.pid}\\n")
        if "prints" in how:
            print("a library says hello", flush=True)
            os.write(1, b"and so does its C code\\n")
        if "hangs" in how:
            time.sleep(3600)
        if "fails" in how:
            raise RuntimeError("no such GPU")
        return SourceLook(complete=True)
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a source of its own, found by its entry point as any installed package is."""
    place = tmp_path / "site"
    info = place / "loomplugin-1.0.dist-info"
    info.mkdir(parents=True)
    (place / "loomplugin.py").write_text(PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: loomplugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[torchloom.health_sources]\nplugin = loomplugin:Plugin\n")
    monkeypatch.setenv("PYTHONPATH", str(place))
    return tmp_path


def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def runs(pid: int) -> bool:
    """A killed process that nobody has reaped yet does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def started(home: Path) -> list[int]:
    """Pids whose files are complete: one is seen as soon as it is created."""
    texts = [path.read_text() for path in home.glob("*.pid")]
    return [int(text) for text in texts if text.endswith("\n")]


@pytest.mark.parametrize("how", ["forks, starts", "forks, starts, fails", "forks, starts, hangs"])
def test_nothing_that_a_source_started_outlives_it(plugin: Path, how: str) -> None:
    (plugin / "how").write_text(how)

    async def follow() -> None:
        async with aclosing(looks("plugin", "n", plugin, WITHIN_S)) as lines:
            first = asyncio.ensure_future(anext(lines))
            while len(started(plugin)) < 3 or not (first.done() or "hangs" in how):
                await asyncio.sleep(0.02)
            if not first.done():
                first.cancel()
                await asyncio.gather(first, return_exceptions=True)

    asyncio.run(asyncio.wait_for(follow(), WITHIN_S))
    pids = started(plugin)
    assert len(pids) == 3
    until(lambda: not any(runs(pid) for pid in pids), "all of it has ended")


def test_one_look_ends_what_it_started_and_does_not_wait_for_it(plugin: Path) -> None:
    """A forked process holds the pipe to the agent open; the answer is complete without its end."""
    (plugin / "how").write_text("forks, starts")
    line = look_once("plugin", "n", plugin, WITHIN_S)
    assert line == ChildLine(look=line.look) and line.look is not None and line.look.complete
    until(lambda: not any(runs(pid) for pid in started(plugin)), "all of it has ended")


def test_one_look_that_hangs_ends_with_what_it_started(plugin: Path) -> None:
    (plugin / "how").write_text("forks, starts, hangs")
    line = look_once("plugin", "n", plugin, 3.0)
    assert line.hung and line.look is None
    until(lambda: not any(runs(pid) for pid in started(plugin)), "all of it has ended")


def test_what_a_source_prints_is_no_answer(plugin: Path) -> None:
    (plugin / "how").write_text("prints")
    line = look_once("plugin", "n", plugin, WITHIN_S)
    assert line.look is not None and line.look.complete, line.why

    async def follow() -> None:
        async with aclosing(looks("plugin", "n", plugin, WITHIN_S)) as lines:
            line = await anext(lines)
            assert line.look is not None and line.look.complete, line.why

    asyncio.run(follow())


def test_a_source_is_no_member_of_the_agent_s_session(plugin: Path) -> None:
    """Ctrl-C in the agent's terminal is the agent's to handle."""
    (plugin / "how").write_text("")

    async def follow() -> None:
        async with aclosing(looks("plugin", "n", plugin, WITHIN_S)) as lines:
            assert (await anext(lines)).look is not None
            (pid,) = started(plugin)
            assert os.getsid(pid) == pid

    asyncio.run(follow())


def test_a_process_that_left_the_session_holds_no_pipe_of_the_agent(plugin: Path) -> None:
    """It is not ours to end, and the agent does not wait for it."""
    (plugin / "how").write_text("leaves")

    async def follow() -> None:
        async with aclosing(looks("plugin", "n", plugin, WITHIN_S)) as lines:
            assert (await anext(lines)).look is not None

    try:
        asyncio.run(follow())
        gc.collect()  # an open pipe would be reported here as an error
    finally:
        until(lambda: len(started(plugin)) == 2, "it has written its pid")
        for pid in started(plugin):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
