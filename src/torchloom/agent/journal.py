"""What must survive the agent's own death: epoch, ended incarnations, processes without a black box, and
workers that have ended but whose children are still being looked for.

Owns the directory `<home>/agent` and the lock that allows only one agent per home. The black boxes are the
journal of running workers; this one holds only what they cannot. It contains no environment and no secret.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from torchloom.errors import Conflict, HomeUnusable
from torchloom.home import Home, private_directory
from torchloom.model.worker import WorkerRef

log = logging.getLogger(__name__)


NOTE_SCHEMA = 1


@dataclass(frozen=True)
class ProcessNote:
    """A process of ours that has no black box: a store, or a worker for whose box there was no room."""

    kind: str
    """`store` or `worker`."""
    job: str
    generation: int
    boot_id: str
    pid: int
    start_ticks: int
    spawner: str
    order: str = ""
    rank: int = -1
    incarnation: int = 0
    local_rank: int = 0
    host: str = ""
    port: int = 0
    lighthouse: str = ""
    news: str = ""
    schema: int = NOTE_SCHEMA

    @property
    def name(self) -> str:
        rank = f".r{self.rank}.i{self.incarnation}" if self.kind == "worker" else ""
        return f"{self.kind}.{self.job}.g{self.generation}{rank}.json"


@dataclass(frozen=True)
class EndedNote:
    """A worker that has ended and may have left processes behind (processes/left_behind.py)."""

    box: str
    """The path of its black box, which may be gone."""
    boot_id: str
    start_ticks: int
    schema: int = NOTE_SCHEMA


_decoder = msgspec.json.Decoder(ProcessNote)
_ended_decoder = msgspec.json.Decoder(EndedNote)
_Note = TypeVar("_Note", ProcessNote, EndedNote)


class Journal:
    """Small files, each replaced as a whole or appended to by one line."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._directory = home.root / "agent"
        self._notes = self._directory / "processes"
        self._left = self._directory / "left"
        self._lock: int | None = None
        self._ended: dict[str, set[str]] = {}

    def open(self) -> None:
        """Take the lock, or raise Conflict because another agent runs on this home."""
        self._home.prepare()
        private_directory(self._directory)
        private_directory(self._notes)
        private_directory(self._left)
        lock = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise Conflict(
                f"another agent already runs on {self._home.root}", hint="stop it, or set another LOOM_HOME"
            ) from error
        self._lock = lock

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def installation(self) -> str:
        """A permanent, unique id of this home; derived from its place on disk if nothing can be written."""
        path = self._directory / "id"
        try:
            if not path.exists():
                _replace(path, f"{uuid.uuid4().hex}\n")
            return path.read_text().strip()
        except (OSError, ValueError, HomeUnusable):
            found = self._directory.stat()
            return f"{found.st_dev:x}-{found.st_ino:x}"

    # -- epoch ----------------------------------------------------------------------------------
    def epoch(self) -> int:
        """Highest epoch ever obeyed; 0 before the first command."""
        try:
            return int((self._directory / "epoch").read_text())
        except (OSError, ValueError):
            return 0

    def keep_epoch(self, epoch: int) -> None:
        _replace(self._directory / "epoch", f"{epoch}\n")

    # -- ended incarnations ---------------------------------------------------------------------
    def has_ended(self, ref: WorkerRef, order: str) -> bool:
        """Whether this order's workers have ended: then a repeated order must not start them again."""
        return _ended_line(ref, order) in self._ended_of(ref.job)

    def keep_ended(self, ref: WorkerRef, order: str) -> None:
        line, known = _ended_line(ref, order), self._ended_of(ref.job)
        if line in known:
            return
        known.add(line)
        path = self._ended_file(ref.job)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with path.open("a") as file:
                file.write(line + "\n")
        except OSError as error:  # a full disk: within the life of this agent memory will do
            log.warning("%s cannot be written: %s", path, error.strerror)

    def _ended_of(self, job: str) -> set[str]:
        if job not in self._ended:
            try:
                self._ended[job] = set(self._ended_file(job).read_text(errors="replace").splitlines())
            except OSError:
                self._ended[job] = set()
        return self._ended[job]

    def _ended_file(self, job: str) -> Path:
        return self._home.jobs_dir / job / "ended"

    # -- processes without a box ----------------------------------------------------------------
    def keep(self, note: ProcessNote) -> None:
        try:
            _replace(self._notes / note.name, json.dumps(asdict(note)))
        except HomeUnusable as error:  # a full disk: within the life of this agent memory will do
            log.warning("a process cannot be noted: %s", error)

    def drop(self, note: ProcessNote) -> None:
        (self._notes / note.name).unlink(missing_ok=True)

    def notes(self) -> list[ProcessNote]:
        """Entries of earlier agents; removes an unreadable file and logs that."""
        return _read_all(self._notes, _decoder)

    # -- ended workers whose children are looked for --------------------------------------------
    def keep_left(self, note: EndedNote) -> None:
        try:
            _replace(self._left_file(note), json.dumps(asdict(note)))
        except HomeUnusable as error:  # a full disk: within the life of this agent memory will do
            log.warning("an ended worker cannot be noted: %s", error)

    def drop_left(self, note: EndedNote) -> None:
        self._left_file(note).unlink(missing_ok=True)

    def left(self) -> list[EndedNote]:
        return _read_all(self._left, _ended_decoder)

    def _left_file(self, note: EndedNote) -> Path:
        return self._left / f"{Path(note.box).name}.json"


def _read_all(directory: Path, decoder: msgspec.json.Decoder[_Note]) -> list[_Note]:
    found: list[_Note] = []
    for path in sorted(directory.glob("*.json")):
        try:
            note = decoder.decode(path.read_bytes())
        except (OSError, msgspec.DecodeError, RecursionError) as error:
            log.warning("%s is damaged and is removed: %s", path, error)
            path.unlink(missing_ok=True)
            continue
        if note.schema > NOTE_SCHEMA:
            log.error("%s is of a newer agent (schema %d) and is left alone", path, note.schema)
        else:
            found.append(note)
    return found


def _ended_line(ref: WorkerRef, order: str) -> str:
    return f"{order} {ref.rank} {ref.generation} {ref.incarnation}"


def _replace(path: Path, text: str) -> None:
    """Replace a file atomically: readers see the old content or the new."""
    fresh = path.with_name(f".{path.name}.new")
    try:
        fresh.write_text(text)
        fresh.chmod(0o600)
        fresh.replace(path)
    except OSError as error:
        raise HomeUnusable(f"{path} cannot be written ({error.strerror})") from error
