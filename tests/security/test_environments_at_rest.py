"""What a job's environment leaves in the bus's files: nothing that can be read, and nothing at all without
its key."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from torchloom.bus.embedded import EmbeddedNats
from torchloom.bus.memory import MemoryBus, MemoryHub
from torchloom.bus.nats import NatsBus
from torchloom.bus.protocol import Bus
from torchloom.errors import BusUnavailable
from torchloom.model.fleet import Fleet, Job, JobState
from torchloom.model.job import JobSpec, Program
from torchloom.weaver import environments
from torchloom.weaver.environments import Environments
from torchloom.weaver.job_keys import KeyFiles

VALUE = "hunter2-not-a-real-secret"


def job_of(env_id: str, name: str = "j") -> Job:
    return Job(
        id=name,
        spec=JobSpec(program=Program("script", "t.py"), cwd="/", env_names=("TOKEN",)),
        by="me",
        state=JobState.RUNNING,
        reason="",
        submitted_at_ns=1,
        env_id=env_id,
    )


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedNats]:
    server = EmbeddedNats(tmp_path / "nats", "n1")
    server.start()
    yield server
    if server.directory.exists():
        server.stop()


def with_bus(server: EmbeddedNats, use: Callable[[Bus], Awaitable[Any]]) -> Any:
    async def play() -> Any:
        bus = await NatsBus.connect(server.address("weaver"), name="test", wait_s=120)
        try:
            await bus.provision()
            return await use(bus)
        finally:
            await bus.close()

    return asyncio.run(play())


def holds(directory: Path, value: str) -> list[Path]:
    return [p for p in directory.rglob("*") if p.is_file() and value.encode() in p.read_bytes()]


def test_the_files_of_a_real_bus_never_hold_a_value_and_a_deleted_one_is_gone(
    server: EmbeddedNats, tmp_path: Path
) -> None:
    keys = KeyFiles(tmp_path / "keys")

    async def play(bus: Bus) -> None:
        await bus.put_object("control", VALUE.encode())
        assert holds(tmp_path / "nats", VALUE), "a plain object would be found there"
        await bus.delete_object("control")

    async def keep(bus: Bus) -> None:
        await Environments(bus, keys).put("one", {"TOKEN": VALUE + "-1"})
        assert not holds(tmp_path, VALUE + "-1")
        (kept,) = (tmp_path / "keys").iterdir()
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
        again = Environments(bus, keys)  # another weaver of this home
        assert await again.get(job_of("one")) == {"TOKEN": VALUE + "-1"}
        data = await bus.get_object("env.one")
        await again.forget("one")
        assert not list((tmp_path / "keys").iterdir())
        assert data is not None
        await bus.put_object("env.one", data)  # what a backup of the bus may bring back
        with pytest.raises(BusUnavailable, match="key of the environment of j"):
            await Environments(bus, keys).get(job_of("one"))
        assert not holds(tmp_path, VALUE + "-1")

    with_bus(server, play)
    with_bus(server, keep)


def test_what_belongs_to_no_job_is_swept_and_the_rest_stays(
    server: EmbeddedNats, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "SWEEP_AFTER_S", 0.05)
    keys = KeyFiles(tmp_path / "keys")

    async def play(bus: Bus) -> None:
        kept = Environments(bus, keys)
        for name in ("wanted", "orphan"):
            await kept.put(name, {"TOKEN": name})
        keys.make("key-alone")
        await bus.put_object("snapshot", b"not an environment")
        fleet = Fleet()
        fleet.jobs["j"] = job_of("wanted")
        await Environments(bus, keys).sweep(lambda: fleet, lambda: True)
        assert await bus.object_names("env.") == ["env.wanted"]
        assert await bus.object_names("") == ["env.wanted", "snapshot"]
        assert keys.names() == ["wanted"]

    with_bus(server, play)


def test_a_damaged_environment_starts_no_job_and_an_old_plain_one_does(tmp_path: Path) -> None:
    async def play() -> None:
        hub = MemoryHub()
        keys = KeyFiles(tmp_path / "keys")
        await Environments(MemoryBus(hub), keys).put("one", {"TOKEN": VALUE})
        good = hub.objects["env.one"]
        for at in range(0, len(good), 7):
            hub.objects["env.one"] = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
            with pytest.raises(BusUnavailable):
                await Environments(MemoryBus(hub), keys).get(job_of("one"))
        hub.objects["env.one"] = good[:40]
        with pytest.raises(BusUnavailable):
            await Environments(MemoryBus(hub), keys).get(job_of("one"))
        plain = hub.objects["env.one"] = msgspec.msgpack.encode({"TOKEN": "old"})
        with pytest.raises(BusUnavailable):  # somebody has put another environment in its place
            await Environments(MemoryBus(hub), keys).get(job_of("one"))
        keys.forget("one")
        assert hub.objects["env.one"] == plain
        read = Environments(MemoryBus(hub), keys)
        assert await read.get(job_of("one")) == {"TOKEN": "old"}
        assert await read.secret(job_of("one")) == b""

    asyncio.run(play())


def test_a_key_that_cannot_be_stored_refuses_the_submission(tmp_path: Path) -> None:
    (tmp_path / "keys").symlink_to(tmp_path / "elsewhere")
    os.mkdir(tmp_path / "elsewhere")

    async def play() -> None:
        hub = MemoryHub()
        with pytest.raises(BusUnavailable, match="no key"):
            await Environments(MemoryBus(hub), KeyFiles(tmp_path / "keys")).put("one", {"TOKEN": VALUE})
        assert not hub.objects

    asyncio.run(play())


def test_environments_from_before_there_were_keys_are_encrypted(tmp_path: Path) -> None:
    """Whatever moment the weaver dies at, the job's variables can be read before and after."""

    class Killed(Exception):
        pass

    class DyingKeys(KeyFiles):
        """Dies before or after one of its calls."""

        def __init__(self, directory: Path, dies: str) -> None:
            super().__init__(directory)
            self._dies = dies

        def make(self, name: str) -> bytes:
            made = super().make(name)
            if self._dies == "with a key":
                raise Killed
            return made

        def rename(self, name: str, to: str) -> None:
            if self._dies == "before the new name":
                raise Killed
            super().rename(name, to)

    one = "n" * 63

    async def play(dies: str) -> None:
        hub, directory = MemoryHub(), tmp_path / dies
        hub.objects[f"env.{one}"] = msgspec.msgpack.encode({"TOKEN": VALUE})
        fleet = Fleet()
        fleet.jobs["j"] = job_of(one)
        with pytest.raises(Killed):
            await Environments(MemoryBus(hub), DyingKeys(directory, dies)).encrypt_plain(fleet)
        keys = KeyFiles(directory)
        assert await Environments(MemoryBus(hub), keys).get(fleet.jobs["j"]) == {"TOKEN": VALUE}
        await Environments(MemoryBus(hub), keys).encrypt_plain(fleet)
        assert VALUE.encode() not in hub.objects[f"env.{one}"]
        read = Environments(MemoryBus(hub), keys)
        assert await read.get(fleet.jobs["j"]) == {"TOKEN": VALUE} and keys.names() == [one]
        assert await read.encrypt_plain(fleet) == 0
        await read.forget(one)
        assert keys.names() == [] and f"env.{one}" not in hub.objects

    for dies in ("with a key", "before the new name"):
        asyncio.run(play(dies))


def test_a_weaver_encrypts_them_after_its_start(tmp_path: Path) -> None:
    async def play() -> None:
        hub, keys = MemoryHub(), KeyFiles(tmp_path / "keys")
        hub.objects["env.one"] = msgspec.msgpack.encode({"TOKEN": VALUE})
        fleet = Fleet()
        fleet.jobs["j"] = job_of("one")
        await Environments(MemoryBus(hub), keys).sweep(lambda: fleet, lambda: True)
        assert VALUE.encode() not in hub.objects["env.one"] and keys.names() == ["one"]

    asyncio.run(play())
