"""A neighbour makes our directories in /dev/shm and /tmp first, and puts something into them."""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hostile import neighbour

from torchloom.agent.observe import boxes
from torchloom.agent.observe.boxes import ReadableBox
from torchloom.agent.processes import adopt
from torchloom.checkpoint.memory.slots import MemoryTier
from torchloom.errors import BlackBoxDamaged, HomeUnusable
from torchloom.home import Home, private_directory
from torchloom.private import make_private, why_not_private
from torchloom.spawner import boxes as spawner_boxes
from torchloom.wire import blackbox


def planted_box(path: Path, pid: int) -> None:
    """A well-formed box that names a process."""
    path.write_bytes(bytes(blackbox.SIZE))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), blackbox.SIZE) as mapping:
        buffer = memoryview(mapping)
        view = blackbox.View(buffer)
        view.set_header(blackbox.Header.LAYOUT, blackbox.LAYOUT_VERSION)
        view.set_header(blackbox.Header.SIZE, blackbox.SIZE)
        view.set_header(blackbox.Header.PID, pid)
        view.set_header(blackbox.Header.MAGIC, blackbox.MAGIC)
        view.words.release()
        buffer.release()


NAME = "job.r0.g1.i1.abc123.box"


@pytest.fixture
def squatted(tmp_path: Path) -> Iterator[Home]:
    """A home whose directory in /dev/shm the neighbour made first."""
    uid = neighbour()
    home = Home(tmp_path / "home")
    taken = Path("/dev/shm") / f"loom-{os.getuid()}-{home.tag}"
    taken.mkdir(mode=0o777)
    planted_box(taken / NAME, os.getppid())
    for path in (taken, taken / NAME):
        os.chown(path, uid, -1)
    yield home
    shutil.rmtree(taken, ignore_errors=True)


def test_a_squatted_directory_of_boxes_is_not_used(squatted: Home) -> None:
    assert squatted.boxes == squatted.boxes_fallback, "another place is chosen"
    assert list(boxes.found_in(squatted)) == [], "and what was planted is not looked at"


def test_the_spawner_puts_a_box_elsewhere(squatted: Home) -> None:
    taken = Path("/dev/shm") / f"loom-{os.getuid()}-{squatted.tag}"
    spec = {"box": str(taken / "new.box"), "box_fallback": str(squatted.boxes_fallback / "new.box")}
    made, notes = spawner_boxes.create(spec, {"job": "j"})
    assert made is not None and made.path.parent == squatted.boxes_fallback
    assert "belongs to user" in " ".join(notes) and not (taken / "new.box").exists()


def test_sockets_go_elsewhere_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uid = neighbour()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    home = Home(tmp_path / "home")
    taken = home.sockets
    taken.mkdir(mode=0o777)
    os.chown(taken, uid, -1)
    assert home.sockets.parent == home.root
    home.prepare()
    private_directory(home.sockets)
    assert stat.S_IMODE(home.sockets.stat().st_mode) == 0o700


def test_states_in_a_directory_of_somebody_else_are_not_offered(tmp_path: Path) -> None:
    folder = tmp_path / "memory-job"
    folder.mkdir()
    os.chown(folder, neighbour(), -1)
    tier = MemoryTier(folder, 0, 1)
    assert tier.offers() == {}
    assert "belongs to user" in tier.room_for(1, 1, 1) or "cannot be used" in tier.room_for(1, 1, 1)


@pytest.mark.parametrize("kind", ["link", "foreign", "foreign parent", "file"])
def test_a_private_directory_is_ours_or_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "above" / "place"
    path.parent.mkdir()
    match kind:
        case "link":
            (tmp_path / "elsewhere").mkdir()
            path.symlink_to(tmp_path / "elsewhere")
        case "foreign":
            path.mkdir()
            os.chown(path, neighbour(), -1)
        case "foreign parent":
            os.chown(path.parent, neighbour(), -1)
        case "file":
            path.write_text("")
    with pytest.raises(OSError):
        make_private(path)
    assert why_not_private(path) or kind == "foreign parent"
    with pytest.raises(HomeUnusable) as caught:
        private_directory(path)
    assert "LOOM_HOME" in str(caught.value) and "\n" not in str(caught.value)


def test_a_directory_of_ours_that_was_open_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "place"
    path.mkdir(mode=0o777)
    path.chmod(0o777)
    make_private(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


@pytest.mark.parametrize("kind", ["foreign", "second name", "link", "short", "fifo"])
def test_a_box_is_a_regular_file_of_ours_with_one_name(tmp_path: Path, kind: str) -> None:
    path = tmp_path / NAME
    planted_box(path, os.getpid())
    match kind:
        case "foreign":
            os.chown(path, neighbour(), -1)
        case "second name":
            os.link(path, tmp_path / "other")
        case "link":
            path.rename(tmp_path / "other")
            path.symlink_to(tmp_path / "other")
        case "short":
            os.truncate(path, 100)
        case "fifo":
            path.unlink()
            os.mkfifo(path)
    with pytest.raises(BlackBoxDamaged):
        ReadableBox.open(path)


def test_logs_are_where_we_put_them_and_not_where_a_box_says(tmp_path: Path) -> None:
    """A worker can write anything into its box, and a log's oldest part is punched out of the file."""
    path = tmp_path / NAME
    planted_box(path, os.getpid())
    box = ReadableBox.open(path)
    box.view.write_blob(blackbox.IDENTITY, json.dumps({"job": "job", "stdout": "/etc/passwd"}).encode())
    box.close()
    devices = SimpleNamespace(told=lambda _: (), expected=lambda *_: ())
    host: Any = SimpleNamespace(devices=devices, log_file=lambda job, rank: tmp_path / f"{job}-{rank}.log")
    worker = asyncio.run(adopt._from_file(host, path))
    assert worker is not None and worker.log == tmp_path / "job-0.log"
    assert worker.box is not None
    worker.box.close()
