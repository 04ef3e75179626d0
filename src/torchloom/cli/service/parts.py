"""Records what runs for a home, in files that outlive their writer. Owns `parts/`; starts and ends nothing.

A record identifies a part by pid, start time and boot, so a recycled pid is never mistaken for it. Writes are
atomic, and only the owner can read the files.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torchloom import one_host
from torchloom.agent.processes.process import Process, boot_id, is_alive, start_ticks
from torchloom.home import Home

PARTS = ("agent", "weaver", "notify", "nats")
"""In start order: the parts' imports take longer than the server needs to come up."""


def write_private(path: Path, value: dict[str, Any]) -> None:
    """Replace a JSON file atomically, 0600 from its first byte."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(new, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(value, file)
    new.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """The file's content; empty if it is missing or damaged, because its writer writes it again."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True)
class PartRecord:
    """One of our processes, as recorded in a file."""

    name: str
    pid: int
    start_ticks: int
    boot: str

    @classmethod
    def of(cls, name: str, pid: int) -> PartRecord:
        return cls(name, pid, start_ticks(pid), f"{boot_id():x}")

    @classmethod
    def read(cls, home: Home, name: str) -> PartRecord | None:
        found = read_json(home.parts_dir / f"{name}.json")
        try:
            return cls(name, int(found["pid"]), int(found["start_ticks"]), str(found["boot"]))
        except (KeyError, ValueError):
            return None

    def write(self, home: Home) -> None:
        write_private(home.parts_dir / f"{self.name}.json", asdict(self))

    @property
    def alive(self) -> bool:
        return self.boot == f"{boot_id():x}" and is_alive(self.pid, self.start_ticks)

    def hold(self) -> Process | None:
        """A pidfd of the process, if exactly this process still lives."""
        return Process.open(self.pid, self.start_ticks) if self.alive else None


def living(home: Home, name: str) -> PartRecord | None:
    record = PartRecord.read(home, name)
    return record if record is not None and record.alive else None


def forget(home: Home, name: str) -> None:
    """Remove what a part that has ended recorded of itself."""
    for suffix in ("json", "ready"):
        (home.parts_dir / f"{name}.{suffix}").unlink(missing_ok=True)


# ---- who wants the stack to live ----


def stay(home: Home) -> None:
    """Record that `loom up` ran: the stack lives until `loom down` or a reboot. Raises Conflict if another
    host uses this home."""
    one_host.refuse_elsewhere(home)
    write_private(home.parts_dir / "stay", {"boot": f"{boot_id():x}"})


def stays(home: Home) -> bool:
    return read_json(home.parts_dir / "stay").get("boot") == f"{boot_id():x}"


def end_stay(home: Home) -> None:
    (home.parts_dir / "stay").unlink(missing_ok=True)


def hold(home: Home) -> PartRecord:
    """Record that this process needs the stack as long as it lives. Raises Conflict if another host uses
    this home."""
    one_host.refuse_elsewhere(home)
    record = PartRecord.of(f"holder-{os.getpid()}", os.getpid())
    record.write(home)
    return record


def holders(home: Home) -> list[PartRecord]:
    """Living processes that need the stack. Removes the records of dead ones."""
    found: list[PartRecord] = []
    for path in home.parts_dir.glob("holder-*.json"):
        record = PartRecord.read(home, path.stem)
        if record is not None and record.alive:
            found.append(record)
        else:
            path.unlink(missing_ok=True)
    return found


# ---- parts that have no API to ask ----


def mark_ready(home: Home, record: PartRecord) -> None:
    """Record that this part serves."""
    write_private(home.parts_dir / f"{record.name}.ready", asdict(record))


def is_ready(home: Home, name: str) -> bool:
    """Whether the part that runs now has marked itself as ready."""
    record = PartRecord.read(home, name)
    return (
        record is not None and record.alive and read_json(home.parts_dir / f"{name}.ready") == asdict(record)
    )


# ---- why a part could not start ----


def write_failure(home: Home, name: str, message: str, exit_code: int) -> None:
    write_private(home.parts_dir / f"{name}.failure", {"message": message, "exit_code": exit_code})


def take_failure(home: Home, name: str) -> tuple[str, int] | None:
    """The last sentence a part left when it ended; reading removes it."""
    path = home.parts_dir / f"{name}.failure"
    found = read_json(path)
    path.unlink(missing_ok=True)
    if "message" not in found:
        return None
    return str(found["message"]), int(found.get("exit_code", 1))
