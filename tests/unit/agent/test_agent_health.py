"""Sources of health in the agent: what they report leaves as events, and one that hangs holds up nobody."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent_story import a_host, box

from torchloom.agent.health import health_watch
from torchloom.agent.health.file_drop import FileDrop
from torchloom.agent.health.health_source import SourceLook, checked_look, source_class, source_names
from torchloom.agent.health.health_watch import HealthWatch
from torchloom.agent.health.host_load import HostLoad
from torchloom.agent.host import Host
from torchloom.agent.observe.devices import Devices, Gpu
from torchloom.agent.tasks import Tasks
from torchloom.bus.memory import MemoryBus, MemoryHub
from torchloom.model.devices import DeviceReading, HealthReport
from torchloom.model.events import DeviceHealthReported

A, B = Gpu("GPU-a", "H100", "0000:3b:00"), Gpu("GPU-b", "H100", "0000:3c:00")


def host_of(tmp_path: Path) -> tuple[Host, list[DeviceHealthReported]]:
    host = a_host(tmp_path, MemoryBus(MemoryHub()), box(tmp_path / "box"))
    host.devices = Devices("a", (A, B), (0,))
    said: list[DeviceHealthReported] = []
    host.reporter.say = lambda event, id: said.append(event)  # type: ignore[method-assign,assignment]
    return host, said


def levels(said: list[DeviceHealthReported]) -> list[tuple[str, str]]:
    return [(one.device, one.level) for event in said for one in event.health]


def test_every_source_is_found_and_fits_the_protocol(tmp_path: Path) -> None:
    assert {"nvml", "scrape", "file", "host"} <= set(source_names())
    for name in source_names():
        source = source_class(name)(node="n", home=tmp_path)
        assert isinstance(source.why_not(), str) and source.every_s > 0 and source.deadline_s > 0
        source.close()


def test_dropped_files_are_taken_once_and_garbage_is_put_aside(tmp_path: Path) -> None:
    drop = tmp_path / "health"
    drop.mkdir()
    (drop / "one.json").write_text(json.dumps({"device": "GPU-a", "level": "failed", "values": {"x": 1.5}}))
    (drop / "two.json").write_text("{")
    (drop / "three.json").write_text(json.dumps({"device": "GPU-a", "level": "splendid"}))
    (drop / "four.json").write_bytes(b"x" * 100_000)
    (drop / ".unfinished").write_text("{")
    for path in drop.iterdir():
        os.utime(path, (1.0, 1.0))
    source = FileDrop("n", tmp_path)
    look = source.look()
    assert [(one.device, one.level, one.source) for one in look.reports] == [("GPU-a", "failed", "file")]
    assert look.readings[0].values == {"x": 1.5}
    assert source.bad == 3 and source.look() == SourceLook()
    assert (drop / ".two.json.bad").exists() and (drop / ".unfinished").exists()


@pytest.mark.parametrize(
    "text",
    [
        '{"device": "GPU-a", "level": "failed", "values": {"x": NaN}}',
        '{"device": "GPU-a", "level": "failed", "values": {"x": 1e400}}',
        '{"device": "GPU-a", "level": "failed", "source": ""}',
        '{"device": "GPU-a", "level": "failed", "source": "a/b"}',
        '{"device": "GPU-a", "level": "failed", "source": "\\u001b[2J"}',
        json.dumps({"device": "GPU-a", "level": "failed", "source": "x" * 10_000}),
    ],
)
def test_a_dropped_file_with_a_strange_source_or_number_is_put_aside(tmp_path: Path, text: str) -> None:
    drop = tmp_path / "health"
    drop.mkdir()
    (drop / "one.json").write_text(text)
    os.utime(drop / "one.json", (1.0, 1.0))
    source = FileDrop("n", tmp_path)
    assert source.look() == SourceLook() and source.bad == 1


@pytest.mark.parametrize(
    "device", ["", "..", "a/b", "GPU-a/../GPU-b", "\x1b[2J", "\x00", "x" * 10_000, "GPU-A"]
)
def test_a_dropped_file_about_a_strange_device_is_about_nobody(tmp_path: Path, device: str) -> None:
    host, said = host_of(tmp_path)
    drop = tmp_path / "health"
    drop.mkdir()
    body = {"device": device, "level": "failed", "values": {"x": 1.0}}
    (drop / "one.json").write_text(json.dumps(body))
    HealthWatch(host)._take("file", FileDrop("n", tmp_path).look())
    assert said == [] and host.readings == {}


def test_a_file_that_is_still_being_written_is_read_later(tmp_path: Path) -> None:
    drop = tmp_path / "health"
    drop.mkdir()
    text = json.dumps({"device": "GPU-a", "level": "failed"})
    source = FileDrop("n", tmp_path)
    with (drop / "direct.json").open("w") as file:
        file.write(text[:10])
        file.flush()
        assert source.look() == SourceLook() and source.bad == 0
        file.write(text[10:])
    assert [one.level for one in source.look().reports] == ["failed"]


def test_what_is_no_file_is_put_aside_and_never_opened(tmp_path: Path) -> None:
    drop, outside = tmp_path / "health", tmp_path / "outside.json"
    drop.mkdir()
    outside.write_text(json.dumps({"device": "GPU-a", "level": "failed"}))
    (drop / "link.json").symlink_to(outside)
    (drop / "dangling.json").symlink_to(tmp_path / "nothing")
    os.mkfifo(drop / "pipe.json")
    (drop / "directory").mkdir()
    source = FileDrop("n", tmp_path)
    assert source.look() == SourceLook() and source.bad == 3
    assert outside.exists() and source.look() == SourceLook() and source.bad == 3


HOSTILE: list[Any] = [
    None,
    "nonsense",
    SourceLook(readings=("nonsense",)),  # type: ignore[arg-type]
    SourceLook(readings=(DeviceReading(device="GPU-a", source="x", values={"t": "hot"}),)),  # type: ignore[dict-item]
    SourceLook(readings=(DeviceReading(device="GPU-a", source="x", states=("xid: ²", 3)),)),  # type: ignore[arg-type]
    SourceLook(reports=(HealthReport(device="GPU-a", level="splendid"),)),  # type: ignore[arg-type]
    SourceLook(readings=(DeviceReading(device="GPU-a", source="x", processes=("1",)),)),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("look", HOSTILE, ids=range(len(HOSTILE)))
def test_a_plugin_that_answers_nonsense_costs_its_own_look_only(look: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        checked_look(look)


def test_what_a_plugin_answers_is_bounded_and_finite() -> None:
    values = {"nan": float("nan"), "inf": float("inf"), "fine": 1.0} | {f"v{i}": 1.0 for i in range(500)}
    long = DeviceReading(device="GPU-a", source="x" * 999, values=values, states=("s" * 9999,) * 999)
    found = checked_look(SourceLook(readings=(long,) * 5000, reports=()))
    assert len(found.readings) <= 1024 and len(found.readings[0].values) <= 128
    assert "fine" in found.readings[0].values and "nan" not in found.readings[0].values
    assert len(found.readings[0].states) <= 512 and len(found.readings[0].states[0]) <= 500
    assert len(found.readings[0].source) <= 64


def test_an_xid_that_is_no_number_is_no_sign(tmp_path: Path) -> None:
    host, said = host_of(tmp_path)
    watch = HealthWatch(host)
    for state in ("xid: ²", "xid: ", "xid: -79", "xid: seventy-nine", f"xid: {'9' * 5000}"):
        watch._take("x", SourceLook(readings=(DeviceReading(device="GPU-a", source="x", states=(state,)),)))
        watch._take("x", SourceLook(readings=(DeviceReading(device="GPU-a", source="x"),)))
    assert said == []


def test_measurements_of_devices_that_this_host_does_not_have_are_not_kept(tmp_path: Path) -> None:
    host, _ = host_of(tmp_path)
    watch = HealthWatch(host)
    for number in range(2000):
        strange = DeviceReading(device=f"GPU-{number}", source="file", values={"x": 1.0})
        watch._take("file", SourceLook(readings=(strange,)))
        many = DeviceReading(device="GPU-a", source=f"s{number}", values={"x": 1.0})
        watch._take("file", SourceLook(readings=(many,)))
    own_host = DeviceReading(device="host-a", source="host", kind="host", values={"load": 1.0})
    watch._take("host", SourceLook(readings=(own_host,)))
    assert ("host-a", "host") in host.readings and len(host.readings) <= 40


def test_the_host_is_measured(tmp_path: Path) -> None:
    (reading,) = HostLoad("n", tmp_path).look().readings
    assert reading.device == "host-n" and {"load", "memory_bytes", "disk_free_bytes"} <= reading.values.keys()


def test_only_changes_of_a_class_become_events_and_only_of_own_devices(tmp_path: Path) -> None:
    host, said = host_of(tmp_path)
    watch = HealthWatch(host)
    fine = DeviceReading(device="GPU-a", source="nvml")
    lost = DeviceReading(device="GPU-a", source="nvml", error="GPU is lost")
    other = DeviceReading(device="GPU-elsewhere", source="nvml", error="GPU is lost")
    for look in (fine, fine, lost, lost, other):
        watch._take("nvml", SourceLook(readings=(look,)))
    assert levels(said) == [("GPU-a", "failed")]
    assert host.readings[("GPU-a", "nvml")] is lost, "the newest measurement leaves with the telemetry"


def test_a_gpu_that_is_missing_several_times_has_disappeared(tmp_path: Path) -> None:
    host, said = host_of(tmp_path)
    watch = HealthWatch(host)
    both = SourceLook(
        readings=tuple(DeviceReading(device=one.uuid, source="nvml") for one in (A, B)), complete=True
    )
    one = SourceLook(readings=both.readings[:1], complete=True)
    for look in (both, one, one, both, one, one):
        watch._take("nvml", look)
    assert said == [], "a look may miss one"
    watch._take("nvml", one)
    assert levels(said) == [("GPU-b", "failed")]


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def test_a_source_that_hangs_or_raises_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, said = host_of(tmp_path)
    release = threading.Event()

    class Hangs(FileDrop):
        name, deadline_s = "hangs", 0.05

        def look(self) -> SourceLook:
            release.wait(60)
            return SourceLook()

    class Raises(FileDrop):
        name = "raises"

        def look(self) -> SourceLook:
            raise RuntimeError("no such thing")

    classes = {"hangs": Hangs, "raises": Raises, "file": FileDrop}
    monkeypatch.setattr(health_watch, "source_names", lambda: list(classes))
    monkeypatch.setattr(health_watch, "source_class", lambda name: classes[name])
    drop = host.home.root / "health"
    drop.mkdir(parents=True)

    async def story() -> None:
        tasks, watch = Tasks(), HealthWatch(host)
        watch.start(tasks)
        await until(lambda: len(watch.troubles) == 2)
        assert "no such thing" in watch.troubles["raises"] and "not answered" in watch.troubles["hangs"]
        (drop / ".part").write_text(json.dumps({"device": "GPU-a", "level": "failing", "why": "told"}))
        (drop / ".part").rename(drop / "x.json")
        await until(lambda: said)
        release.set()
        await tasks.cancel()

    asyncio.run(story())
    assert levels(said) == [("GPU-a", "failing")]


def test_xids_in_the_kernel_s_log_reach_the_device_on_that_bus_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "kernel.log"
    log.touch()
    monkeypatch.setenv("LOOM_KERNEL_LOG", str(log))
    host, said = host_of(tmp_path)
    monkeypatch.setattr(health_watch, "source_names", list)

    async def story() -> None:
        tasks, watch = Tasks(), HealthWatch(host)
        watch.start(tasks)
        with log.open("a") as file:
            file.write("NVRM: Xid (PCI:0000:3c:00): 79, pid=1, GPU has fallen off the bus.\n")
        host.kernel_log.look()
        await until(lambda: said)
        await tasks.cancel()

    asyncio.run(story())
    assert levels(said) == [("GPU-b", "failed")]


def test_xids_that_nvml_reports_belong_to_the_next_crash_on_that_device(tmp_path: Path) -> None:
    """Where nobody may read the kernel's log, and at once: a crash comes right after its Xid error."""
    host, _ = host_of(tmp_path)
    watch = HealthWatch(host)

    def look(*codes: int, device: Gpu = B, source: str = "nvml") -> None:
        states = ("throttle: 5", *(f"xid: {code}" for code in codes))
        reading = DeviceReading(device=device.uuid, source=source, states=states)
        watch._take(source, SourceLook(readings=(reading,)))

    def known(device: Gpu) -> list[int]:
        return [xid.code for xid in host.kernel_log.of(1, (device.pci,))]

    look()
    assert known(B) == []
    look(48)
    look(48)
    assert known(B) == [48] and known(A) == []
    look(48, 79)
    assert known(B) == [48, 79]
    look(31, device=A, source="scrape")  # the last error of an exporter may be days old
    assert known(A) == []
    look(31, 13, device=A, source="scrape")
    assert known(A) == [13]


def test_an_xid_that_is_in_the_log_as_well_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "kernel.log"
    log.touch()
    monkeypatch.setenv("LOOM_KERNEL_LOG", str(log))
    host, _ = host_of(tmp_path)
    host.kernel_log.told(79, B.pci)
    with log.open("a") as file:
        file.write("NVRM: Xid (PCI:0000:3c:00): 79, pid=1, GPU has fallen off the bus.\n")
    (found,) = host.kernel_log.of(1, (B.pci,))
    assert "fallen off" in found.text
