"""Black boxes as the agent sees them: map, read, write to the mailbox, find those that an earlier agent left.

Owns mappings and file names; the layout is wire/blackbox.py. It judges nobody: whether a box's worker lives
is asked in `adopt`.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchloom.errors import BlackBoxDamaged
from torchloom.home import Home
from torchloom.model.worker import EndRecord, WorkerRef
from torchloom.private import why_not_ours, why_not_private
from torchloom.wire import blackbox
from torchloom.wire.blackbox import Blob, CollectiveRecord, Header, Mailbox, Progress, Source, View

log = logging.getLogger(__name__)

SUFFIX = ".box"
MOST = 2**62
"""Larger numbers are no counts and no times, and would not fit into a message after a sum."""


def file_name(ref: WorkerRef, order: str) -> str:
    """Unique per incarnation and order, so that a box can be created O_EXCL and be the journal of a start.

    The order is part of it because a deleted job's name may be used again, and counts from 1 again.
    """
    return f"{ref.job}.r{ref.rank}.g{ref.generation}.i{ref.incarnation}.{order}{SUFFIX}"


_NAME = re.compile(r"(?P<job>[a-z0-9-]+)\.r(\d+)\.g(\d+)\.i(\d+)\.(?P<order>[0-9a-f]+)\.box")


def parse_name(path: Path) -> tuple[WorkerRef, str] | None:
    """Whose box a file is and which order led to it, by its name alone; None for a name that is not ours."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        return None
    rank, generation, incarnation = (int(match[i]) for i in (2, 3, 4))
    return WorkerRef(match["job"], rank, generation, incarnation), match["order"]


_AFTER_ITS_END_NS = 2 * 10**9
"""What is recorded so long after the main thread has ended is the work of another one."""


class ReadableBox:
    """A mapped black box."""

    def __init__(self, path: Path, mapping: mmap.mmap, descriptor: int = -1) -> None:
        self.path = path
        self._mapping = mapping
        self._descriptor = descriptor
        self._buffer = memoryview(mapping)
        self._view = View(self._buffer)
        self.closed = False

    @classmethod
    def open(cls, path: Path) -> ReadableBox:
        """Map it, or raise BlackBoxDamaged with the reason."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise BlackBoxDamaged(f"{path} cannot be opened ({error.strerror})") from error
        try:
            why = why_not_ours(descriptor, blackbox.SIZE)
            if why:
                raise BlackBoxDamaged(f"{path} is no black box of ours: {why}")
            box = cls(path, mmap.mmap(descriptor, blackbox.SIZE), descriptor)
        except (OSError, ValueError) as error:
            os.close(descriptor)
            raise BlackBoxDamaged(f"{path} cannot be mapped ({error})") from error
        except BlackBoxDamaged:
            os.close(descriptor)
            raise
        if not box.view.is_valid():
            box.close()
            raise BlackBoxDamaged(f"{path} is not a black box of a layout this version knows")
        return box

    @property
    def view(self) -> View:
        """The box's content, after a look at its size: a page beyond the end of the file would be a SIGBUS,
        and with it the end of the agent. Raises BlackBoxDamaged for a file that was cut off."""
        if self._descriptor >= 0:
            size = os.fstat(self._descriptor).st_size
            if size < blackbox.SIZE:
                raise BlackBoxDamaged(f"{self.path} was cut off at {size} bytes")
        return self._view

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._view.words.release()
            self._buffer.release()
            self._mapping.close()
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    # -- who ------------------------------------------------------------------------------------
    @property
    def pid(self) -> int:
        return self.view.header(Header.PID)

    @property
    def start_ticks(self) -> int:
        return self.view.header(Header.START_TICKS)

    @property
    def boot_id(self) -> int:
        return self.view.header(Header.BOOT_ID_HIGH) << 64 | self.view.header(Header.BOOT_ID_LOW)

    @property
    def pid_namespace(self) -> int:
        return self.view.header(Header.PID_NAMESPACE)

    def identity(self) -> dict[str, Any]:
        found = self.json(blackbox.IDENTITY)
        return found if isinstance(found, dict) else {}

    # -- what -----------------------------------------------------------------------------------
    def progress(self, index: Progress) -> int:
        """A number that a message can carry, whatever the worker wrote."""
        return min(self.view.progress(index), MOST)

    def json(self, blob: Blob) -> Any:
        """The blob's JSON; None when empty, torn or not JSON."""
        data = self.view.read_blob(blob)
        if not data:
            return None
        try:
            return json.loads(data, parse_int=_integer)
        except (
            ValueError,
            RecursionError,
        ):  # it was written inside the user's process: anything may be in it
            return None

    def wall_ns(self, monotonic_ns: int) -> int:
        """A time of the worker's clock as wall-clock time."""
        header = self.view.header
        at_ns = header(Header.REALTIME_NS) + monotonic_ns - header(Header.MONOTONIC_NS)
        return max(0, min(at_ns, MOST))

    @property
    def training_step(self) -> int | None:
        word = self.progress(Progress.TRAINING_STEP)
        return word - 1 if word else None

    @property
    def offset(self) -> int | None:
        """Training step minus step; None if the script never reported its training step."""
        told = self.training_step
        return None if told is None else told - self.progress(Progress.TRAINING_STEP_AT)

    def under_way(self, last: int = 64) -> list[CollectiveRecord]:
        """Collectives entered and not finished, oldest first, as far as their completion is tracked."""
        if not self.progress(Progress.COLLECTIVES_ENTERED):
            return []
        return [c for c in self.view.collectives(last) if is_under_way(c)]

    def newest_collective(self) -> CollectiveRecord | None:
        entered = self.progress(Progress.COLLECTIVES_ENTERED)
        return self.view.read_collective(entered) if entered else None

    def end_record(self) -> EndRecord | None:
        found = self.json(blackbox.END)
        if not isinstance(found, dict):
            return None
        code, at_ns = found.get("code"), found.get("at_ns")
        return EndRecord(
            how=str(found.get("how", "")),
            code=code if isinstance(code, int) else None,
            exception=str(found.get("exception") or ""),
            message=str(found.get("message") or ""),
            traceback=str(found.get("traceback") or ""),
            connection_lost=bool(found.get("connection_lost")),
            store_away=bool(found.get("store_away")),
            taken_over=bool(found.get("taken_over")),
            at_ns=self.wall_ns(at_ns) if isinstance(at_ns, int) else 0,
            certain=bool(found.get("certain")),
        )

    def failed_script(self) -> str:
        """How the script failed, if a thread of it keeps the process alive: else its exit is reported. If
        that thread trains on, the failure of the main one does not matter."""
        if not self.view.blob_version(blackbox.END):
            return ""
        end = self.end_record()
        if end is None or end.certain or end.code in (0, None) or end.connection_lost or end.store_away:
            return ""
        if self.wall_ns(self.progress(Progress.LAST_ACTIVITY_NS)) > end.at_ns + _AFTER_ITS_END_NS:
            return ""
        return f"{end.exception}: {end.message}".splitlines()[0] if end.exception else f"exit code {end.code}"

    def fence(self) -> tuple[int, int]:
        """The limit and the deadline of a worker that fences itself; (0, 0) for one that does not."""
        return self.view.fence()

    # -- mailbox --------------------------------------------------------------------------------
    def ask_to_stop(self, at_step: int) -> None:
        """Ask for an end at the boundary before `at_step`.

        The version is written last: it makes the mail valid.
        """
        words, at = self.view.words, blackbox.MAILBOX_AT // 8
        words[at + Mailbox.COMMAND] = blackbox.MailboxCommand.STOP
        words[at + Mailbox.AT_STEP] = max(0, at_step)
        words[at + Mailbox.VERSION] = words[at + Mailbox.VERSION] + 1 & blackbox.MASK


def _integer(digits: str) -> int | float:
    """Integers that a message can carry; longer ones lose precision, not the whole text."""
    return int(digits) if len(digits) < 19 else float(digits)


def is_under_way(record: CollectiveRecord) -> bool:
    """Entered, not finished, and of a kind whose completion somebody would have seen."""
    return (
        record.finished_ns == 0 and record.source != Source.NONE and not record.flags & blackbox.FLAG_FAILED
    )


def found_in(home: Home) -> Iterator[Path]:
    """All boxes of this home, in memory and in the fallback on disk."""
    for directory in dict.fromkeys((home.boxes, home.boxes_fallback)):
        why = why_not_private(directory)
        if why:
            log.error("%s is left alone, whatever is in it: %s", directory, why)
        elif directory.is_dir():
            yield from sorted(directory.glob(f"*{SUFFIX}"))


def remove(path: Path) -> None:
    """Unlink a box; one that is gone already is fine."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("the black box %s could not be removed: %s", path, error.strerror)


def remove_empty_directories(home: Home) -> None:
    for directory in (home.boxes, home.boxes_fallback):
        try:
            directory.rmdir()
        except OSError:
            pass  # not there, or not empty: then somebody still needs it
