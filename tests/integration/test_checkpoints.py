"""Checkpoints from the weaver's side: a real agent, real workers without torch, a real directory."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_stage import SOURCES, until
from fastapi import Request
from fastapi.routing import APIRoute
from s3 import S3Server

from torchloom.agent.checkpoints.catalogue import answer
from torchloom.agent.main import serve
from torchloom.api.routes.checkpoints import RestoreRequest, routes
from torchloom.api.schemas.bodies import Identity
from torchloom.bus.memory import MemoryHub
from torchloom.checkpoint.store.commit import PartWriter, Target, commit
from torchloom.checkpoint.store.manifest import Facts
from torchloom.checkpoint.store.names import CheckpointName
from torchloom.checkpoint.store.storage import open_storage
from torchloom.errors import Conflict, NotFound, StorageFailed, UsageError
from torchloom.home import Home
from torchloom.model.checkpoints import CheckpointPlace
from torchloom.model.events import ChangeRequested
from torchloom.model.faults import Fault
from torchloom.model.fleet import Fleet, Job, JobCheckpoints, JobState
from torchloom.model.job import JobSpec, Program
from torchloom.model.messages import AskCheckpoints
from torchloom.model.transaction.config import Entry
from torchloom.model.transaction.messages import Kind
from torchloom.weaver.environments import Environments
from torchloom.weaver.requests.checkpoints import Catalogues
from torchloom.weaver.service import Weaver


@pytest.fixture
def server(tmp_path: Path) -> Iterator[S3Server]:
    made = S3Server(tmp_path / "s3")
    made.start()
    yield made
    made.kill()


class Scene:
    """One weaver, one agent, one job that saves."""

    def __init__(self, weaver: Weaver, store: Path) -> None:
        self.weaver, self.store = weaver, store

    @property
    def job(self) -> Job:
        return self.weaver.fleet.jobs["saver"]

    @property
    def known(self) -> JobCheckpoints:
        assert self.job.checkpoints is not None
        return self.job.checkpoints

    async def submit(self) -> None:
        script = str(Path(__file__).with_name("saving_worker.py"))
        program = Program("command", sys.executable, (script, str(self.store)))
        spec = JobSpec(program=program, cwd=str(self.store), interpreter=sys.executable, spawn="cold")
        await self.weaver.submit("saver", spec, {**os.environ, "PYTHONPATH": SOURCES}, "ann")

    async def saved(self, step: int) -> None:
        await until(
            lambda: (known := self.job.checkpoints) and known.saved and known.saved.step == step and known,
            timeout_s=120,
        )

    async def ask_to_save(self, step: int) -> None:
        (self.store / f"save-{step}").touch()

    async def steps(self) -> list[int]:
        return [entry.step for entry in (await self.weaver.checkpoints("saver", "list")).entries]

    def shard(self, name: str) -> Path:
        return next(path for path in (self.store / "saver" / name).iterdir() if "own" in path.name)


@contextlib.asynccontextmanager
async def playing(tmp_path: Path) -> AsyncIterator[Scene]:
    hub, stop, ready = MemoryHub(), asyncio.Event(), asyncio.Event()
    store = tmp_path / "store"
    store.mkdir()
    weaver = Weaver(hub.bus(), "w1")
    home = Home(tmp_path / uuid.uuid4().hex[:8])
    tasks = [
        asyncio.create_task(weaver.run(stop)),
        asyncio.create_task(serve(home, "here", hub.bus(), stop=stop, ready=ready, prewarm=False)),
    ]
    scene = Scene(weaver, store)
    try:
        await until(lambda: weaver.active and weaver.fleet.nodes)
        yield scene
    finally:
        for job in list(weaver.fleet.jobs):
            await weaver.stop(job, "test", kill=True)
            await until(lambda job=job: weaver.fleet.jobs[job].ended)
        stop.set()
        await asyncio.gather(*tasks)


def play(tmp_path: Path, act: Callable[[Scene], Awaitable[None]]) -> None:
    async def run() -> None:
        async with playing(tmp_path) as scene:
            await act(scene)

    asyncio.run(run())


def test_a_catalogue_is_listed_verified_pinned_and_thinned_out(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await scene.submit()
        with pytest.raises(NotFound, match="reported no checkpoints"):
            await scene.weaver.checkpoints("saver", "list")
        await scene.saved(30)
        assert scene.known.place == CheckpointPlace(str(scene.store), "saver")
        assert scene.known.saved is not None and scene.known.saved.interval == 10
        answer = await scene.weaver.checkpoints("saver", "list")
        newest, middle, oldest = answer.entries
        assert (newest.step, newest.newest, newest.parent) == (30, True, "step-20.g1")
        assert (oldest.whole, oldest.verified_ns, oldest.world, oldest.size) == (True, 0, 1, 800)
        assert oldest.where == f"{scene.store}/saver/{oldest.name}"

        (checked,) = (await scene.weaver.checkpoints("saver", "verify", middle.name)).entries
        assert checked.verified_ns > 0
        scene.shard(middle.name).write_bytes(b"x" * 800)
        found = await scene.weaver.checkpoints("saver", "verify", middle.name)
        assert "was changed" in found.why and not found.entries[0].whole

        assert (await scene.weaver.checkpoints("saver", "pin", oldest.name)).entries[0].pinned
        with pytest.raises(Conflict, match="pinned"):
            await scene.weaver.checkpoints("saver", "delete", oldest.name)
        with pytest.raises(Conflict, match="would resume from"):
            await scene.weaver.checkpoints("saver", "delete", newest.name)
        assert not (await scene.weaver.checkpoints("saver", "unpin", oldest.name)).entries[0].pinned
        await scene.weaver.checkpoints("saver", "delete", oldest.name)
        assert await scene.steps() == [30, 20]
        with pytest.raises(NotFound, match="no checkpoint step-10"):
            await scene.weaver.checkpoints("saver", "verify", oldest.name)

    play(tmp_path, act)


def test_who_can_go_back_nowhere_is_not_asked_how(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await scene.submit()
        await scene.saved(30)
        scene.job.schedule = (Entry(1, 25, {"lr": 0.1}),)
        with pytest.raises(Conflict, match=r"step 15 .*does not exist"):
            await scene.weaver.restore("saver", 15, "eve")
        with pytest.raises(UsageError, match=r"1 change of saver's config came after step 20: choose"):
            await scene.weaver.restore("saver", 20, "eve")
        assert not any(e.pinned for e in (await scene.weaver.checkpoints("saver", "list")).entries)
        scene.job.checkpoints = None
        with pytest.raises(NotFound, match="reported no checkpoints"):
            await scene.weaver.restore("saver", 20, "eve")

    play(tmp_path, act)


def test_going_back_is_refused_before_anything_is_stopped(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await scene.submit()
        await scene.saved(30)
        with pytest.raises(Conflict, match=r"step 15 .*does not exist: choose one of the steps 30, 20, 10"):
            await scene.weaver.restore("saver", 15, "eve")
        scene.shard("step-20.g1").write_bytes(b"x" * 800)
        with pytest.raises(Conflict, match=r"was changed.*: choose one of the steps 30, 10"):
            await scene.weaver.restore("saver", 20, "eve")
        assert scene.job.state is JobState.RUNNING and scene.job.generation == 1
        assert scene.job.restore is None

    play(tmp_path, act)


def test_a_running_and_an_ended_job_go_back(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await scene.submit()
        await scene.saved(30)
        chosen = await scene.weaver.restore("saver", 10, "eve")
        assert chosen.name == "step-10.g1"
        await until(lambda: scene.job.generation == 2 and scene.known.restored == "step-10.g1")
        await scene.saved(40)
        assert scene.job.restore is None and scene.job.restarts == 0 and scene.job.incidents == []
        assert scene.job.state is JobState.RUNNING
        entries = {e.name: e for e in (await scene.weaver.checkpoints("saver", "list")).entries}
        assert not entries["step-30.g1"].resumable and entries["step-40.g2"].newest
        assert entries["step-10.g1"].pinned

        await scene.weaver.stop("saver", "bob")
        await until(lambda: scene.job.state is JobState.STOPPED)
        await scene.weaver.restore("saver", 20, "eve")
        await until(lambda: scene.job.generation == 3 and scene.known.restored == "step-20.g2")
        assert scene.job.state is JobState.RUNNING

        await scene.saved(50)
        os.kill(scene.job.workers[0].pid, 9)  # what follows goes on from the newest state again
        await until(lambda: scene.job.generation == 4 and scene.known.restored.endswith(".g3"))

    play(tmp_path, act)


def test_whoever_goes_back_is_told_of_no_operation_of_somebody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This worker reads no mail, so going back is done by a restart; somebody else asks at the same time."""

    async def act(scene: Scene) -> None:
        (restore,) = [
            route.endpoint
            for route in routes(scene.weaver).routes
            if isinstance(route, APIRoute) and route.operation_id == "restore"
        ]
        await scene.submit()
        await scene.saved(30)
        ours = scene.weaver.restore

        async def both(*args: Any, **options: Any) -> Any:
            chosen = await ours(*args, **options)
            wish = ChangeRequested(
                job="saver", operation="theirs", kind=Kind.RESTORE, values={"step": 20}, by="bob"
            )
            await scene.weaver._stream.say("change", wish)
            assert not scene.job.operations["theirs"].ended
            return chosen

        monkeypatch.setattr(scene.weaver, "restore", both)
        request = Request({"type": "http", "loom.caller": Identity(name="eve", role="operator")})
        answer = await restore("saver", RestoreRequest(step=10), request)
        assert (answer.checkpoint, answer.operation) == ("step-10.g1", "")
        await until(lambda: scene.job.generation == 2 and scene.known.restored == "step-10.g1")

    play(tmp_path, act)


def test_a_deleted_job_keeps_its_checkpoints_unless_said_otherwise(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await scene.submit()
        await scene.saved(30)
        foreign = scene.store / "other" / "step-1.g1" / "file"
        foreign.parent.mkdir(parents=True)
        foreign.touch()
        await scene.weaver.checkpoints("saver", "pin", "step-10.g1")
        await scene.weaver.stop("saver", "bob", kill=True)
        await until(lambda: scene.job.ended)

        twin = copy.copy(scene.job)
        twin.id, twin.state = "twin", JobState.RUNNING
        scene.weaver.fleet.jobs["twin"] = twin
        with pytest.raises(Conflict, match="in use: twin saves at the same place"):
            await scene.weaver.delete("saver", "ann", keep_checkpoints=False)
        del scene.weaver.fleet.jobs["twin"]
        assert len(await scene.steps()) == 3, "refused: the job and its checkpoints are still there"

        await scene.weaver.delete("saver", "ann")
        await until(lambda: "saver" not in scene.weaver.fleet.jobs)
        assert (scene.store / "saver" / "step-30.g1").is_dir()

        await scene.submit()  # it finds what its namesake left
        await until(lambda: (known := scene.job.checkpoints) and known.restored == "step-30.g1")
        await scene.weaver.stop("saver", "bob", kill=True)
        await until(lambda: scene.job.ended)
        await scene.weaver.delete("saver", "ann", keep_checkpoints=False)
        await until(lambda: "saver" not in scene.weaver.fleet.jobs)
        assert not [path for path in (scene.store / "saver").rglob("*") if path.is_file()]
        assert foreign.exists()

    play(tmp_path, act)


def test_saving_that_fails_is_one_incident_until_it_goes_well_again(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await scene.submit()
        await scene.saved(30)
        await scene.ask_to_save(35)  # so soon after the last report that it is not reported by itself
        await until(lambda: not (scene.store / "save-35").exists())
        (scene.store / "broken").mkdir()
        await scene.ask_to_save(40)
        await until(lambda: scene.known.failing)
        incident = scene.weaver.fleet.incidents[scene.known.failing]
        assert incident.kind == "checkpoint-failed" and "the test has broken the store" in incident.verdict
        assert "step 35 is the newest state known to be saved" in incident.decision
        await scene.ask_to_save(50)
        await until(lambda: not (scene.store / "save-50").exists())
        (scene.store / "broken").rmdir()
        await scene.ask_to_save(60)
        await scene.saved(60)
        await until(lambda: not scene.weaver.fleet.incidents[incident.id].open)
        assert scene.job.incidents == [incident.id]
        assert scene.job.generation == 1 and scene.job.state is JobState.RUNNING

    play(tmp_path, act)


def test_a_damaged_state_is_passed_over_and_told(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await scene.submit()
        await scene.saved(30)
        scene.shard("step-30.g1").unlink()
        os.kill(scene.job.workers[0].pid, 9)
        await until(lambda: scene.known.restored == "step-20.g1")
        found = await until(
            lambda: [i for i in scene.weaver.fleet.incidents.values() if i.kind == "checkpoint-damaged"]
        )
        assert "step-30.g1" in found[0].verdict and "lacks" in found[0].verdict
        assert found[0].decision == "step-20.g1 was used instead"

    play(tmp_path, act)


def test_damage_on_purpose_is_done_or_refused_but_never_only_said(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await scene.submit()
        await until(lambda: scene.job.state is JobState.RUNNING)
        if scene.job.checkpoints is None:  # else it was quicker than this test
            with pytest.raises(Conflict, match="saves no checkpoints"):
                await scene.weaver.inject("saver", (), Fault(kind="disk-full"), "ann")
        await scene.saved(30)
        name, _ = await scene.weaver.inject("saver", (), Fault(kind="checkpoint-damage", seed=3), "ann")
        assert name.startswith("fault-")
        assert "was changed" in (await scene.weaver.checkpoints("saver", "verify", "step-30.g1")).why
        assert not (await scene.weaver.checkpoints("saver", "verify", "step-20.g1")).why

        for entry in (await scene.weaver.checkpoints("saver", "list")).entries:
            scene.shard(entry.name).unlink()
        with pytest.raises(Conflict, match="no whole checkpoint"):
            await scene.weaver.inject("saver", (), Fault(kind="checkpoint-damage"), "ann")

    play(tmp_path, act)


def test_a_question_that_makes_no_sense_is_answered_in_one_sentence() -> None:
    place = CheckpointPlace("ftp://somewhere/else", "saver")
    found = answer(AskCheckpoints(job="saver", place=place, verb="list"), 1.0)
    assert found.problem == "usage" and "ftp://" in found.why
    assert "secret" not in repr(
        AskCheckpoints(job="j", place=place, verb="list", env={"S3_SECRET_KEY": "secret"})
    )


def test_a_catalogue_in_s3_is_opened_by_the_jobs_own_variables(tmp_path: Path, server: S3Server) -> None:
    env = server.environment
    storage = open_storage("run", env)
    target = Target("saver", CheckpointName(1, 10), 1, attempt=1)
    writer = PartWriter(storage, target, 0)
    writer.add("own", [b"state"])
    commit(storage, target, [writer.finish()], Facts(), 1.0)

    async def run() -> None:
        hub, stop, ready = MemoryHub(), asyncio.Event(), asyncio.Event()
        bus, home = hub.bus(), Home(tmp_path / "home")
        agent = asyncio.create_task(serve(home, "here", hub.bus(), stop=stop, ready=ready, prewarm=False))
        await ready.wait()
        environments = Environments(bus)
        await environments.put("saver", env)
        known = JobCheckpoints(place=CheckpointPlace(storage.where, "saver"), node="here")
        spec = JobSpec(program=Program("script", "x"), cwd="/")
        about: dict[str, Any] = {"state": JobState.STOPPED, "reason": "r", "submitted_at_ns": 1}
        job = Job(id="saver", spec=spec, by="ann", checkpoints=known, **about)
        catalogues = Catalogues(bus, environments)
        (entry,) = (await catalogues.ask(Fleet(), job, "list")).entries
        assert entry.name == "step-10.g1" and entry.where.startswith(f"s3://{server.bucket}/")
        assert (await catalogues.ask(Fleet(), job, "verify", entry.name)).entries[0].verified_ns
        await environments.put("saver", {**env, "S3_SECRET_KEY": "wrong"})
        with pytest.raises(StorageFailed) as refused:
            await catalogues.ask(Fleet(), job, "list")
        assert "wrong" not in str(refused.value)
        stop.set()
        await agent

    asyncio.run(run())
