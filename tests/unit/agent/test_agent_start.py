"""A start that failed is undone, also where a process does not end."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest
from agent_story import a_host, box

from torchloom.agent.host import LocalWorker
from torchloom.agent.processes.process import Process, start_ticks
from torchloom.agent.processes.start import _order, _undo
from torchloom.bus.memory import MemoryBus, MemoryHub
from torchloom.model.effects import Launch, StartWorkers
from torchloom.model.job import Program
from torchloom.model.node import RendezvousAddress
from torchloom.model.worker import WorkerRef


def worker(tmp_path: Path, child: subprocess.Popen[bytes], rank: int, *, mortal: bool) -> LocalWorker:
    """A worker that is killed, or one that nothing reaches: for us as if it hung in the kernel."""
    ticks = start_ticks(child.pid)
    assert ticks is not None
    return LocalWorker(
        ref=WorkerRef("j", rank, 1, rank + 1),
        order="o",
        pid=child.pid,
        start_ticks=ticks,
        process=Process.open(child.pid, ticks) if mortal else None,
        box=box(tmp_path / f"{rank}.box"),
        log=tmp_path / "log",
        spawner="",
    )


def test_a_job_that_brings_no_path_gets_the_agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job of the API has the variables of its request; without PATH a compiler does not find its parts."""
    monkeypatch.setenv("PATH", "/opt/bin:/usr/bin")
    ref = WorkerRef("j", 0, 1, 1)
    effect = StartWorkers(
        id="e1-0", cause=1, reason="r", node="n", job="j", generation=1, program=Program("script", "t.py"),
        cwd="/", interpreter="", spawn="warm", preload=(), launches=(Launch(ref, 0),), world_size=1,
        local_world_size=1, group_rank=0, group_world_size=1, replicas=1, restart_count=0, max_restarts=0,
        store=RendezvousAddress("h", 4711),
    )  # fmt: skip

    async def story() -> dict[str, str]:
        host = a_host(tmp_path, MemoryBus(MemoryHub()), box(tmp_path / "a.box"))
        given = {"none": {}, "its own": {"PATH": "/bin"}}
        asked = {name: _order(host, effect, "o", effect.launches[0], env) for name, env in given.items()}
        host.log_watch.close()
        return {name: one["env"]["PATH"] for name, one in asked.items()}

    assert asyncio.run(story()) == {"none": "/opt/bin:/usr/bin", "its own": "/bin"}


def test_a_process_that_does_not_end_holds_up_nobody_and_is_cleaned_up_after_when_it_has(
    tmp_path: Path,
) -> None:
    children = [subprocess.Popen(["sleep", "600"], start_new_session=True) for _ in range(2)]
    stuck, other = [worker(tmp_path, child, rank, mortal=rank == 1) for rank, child in enumerate(children)]
    assert stuck.box is not None and other.box is not None

    async def story() -> None:
        assert stuck.box is not None and other.box is not None
        host = a_host(tmp_path, MemoryBus(MemoryHub()), box(tmp_path / "third.box"))
        async with asyncio.timeout(60):
            await _undo(host, [stuck, other], within_s=0.2)
            assert children[1].wait(60) == -9 and not other.box.path.exists()
            assert children[0].poll() is None
            assert stuck.box.path.exists(), "a later agent finds it by its box"
            (task,) = host.lingering
            children[0].kill()
            await task
        assert not stuck.box.path.exists() and not host.lingering

    try:
        asyncio.run(story())
    finally:
        for child in children:
            child.kill()
            child.wait()
