"""Turns the workers' checkpoint reports into events: not every save, but everything that matters.

The text comes from inside the user's process (checkpoint/report_text.py), so anything may be in it.
Judges nothing: whether a failure is an incident is decided elsewhere.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from torchloom.agent.observe.boxes import ReadableBox
from torchloom.model.checkpoints import CheckpointPlace, RejectedCheckpoint, SavedCheckpoint
from torchloom.model.events import (
    CheckpointFailed,
    CheckpointRejected,
    CheckpointSaved,
    CheckpointStoreOpened,
    RestoreDiffered,
)
from torchloom.wire import blackbox

if TYPE_CHECKING:
    from torchloom.agent.host import Host, LocalWorker

TELL_EVERY_NS = 5 * 10**9
"""Shortest time between two reports of saves; the newest save is always reported in the end."""
_MOST_CHARS = 1000
_CHECKPOINT = re.compile(r"step-(\d{1,18})\.g")


class _Saved(Struct):
    name: str
    step: int
    at_ns: int = 0
    size: int = 0
    took_s: float = 0.0
    asked: bool = False


class _Failing(Struct):
    step: int
    why: str


class _Differs(Struct):
    number: int
    name: str
    places: list[str] = []
    more: int = 0


class _Told(Struct):
    uri: str
    name: str
    opened: bool = False
    restored: str = ""
    restored_from: str = ""
    rejected: list[tuple[str, str]] = []
    saved: _Saved | None = None
    interval: int = 0
    memory_interval: int = 0
    failures: int = 0
    failing: _Failing | None = None
    lost: str = ""
    framework: str = ""
    index: str = ""
    differs: _Differs | None = None


_decoder = msgspec.json.Decoder(_Told)


@dataclass
class Saves:
    """What has already been reported about one worker."""

    version: int = 0
    told: _Told | None = None
    opened: bool = False
    failing: bool = False
    healed: bool = False
    saved: str = ""
    saved_ns: int = 0
    lost: str = ""
    failed_ns: int = 0
    failures: int = 0
    differs: int = 0


def look_at_saves(host: Host, worker: LocalWorker, box: ReadableBox, now_ns: int, last: bool = False) -> None:
    """Say what is new. `last`: the worker has ended, so nothing waits for a better moment."""
    if box.closed:
        return
    seen = worker.saves
    version = box.view.blob_version(blackbox.CHECKPOINTS)
    if version != seen.version and not version & 1:
        data = box.view.read_blob(blackbox.CHECKPOINTS)
        if data is None:
            return
        seen.version = version
        try:
            seen.told = _decoder.decode(data)
        except (msgspec.DecodeError, RecursionError):
            seen.told = None
    if seen.told is not None:
        _say_news(host, worker, seen.told, now_ns, last)


def _say_news(host: Host, worker: LocalWorker, told: _Told, now_ns: int, last: bool) -> None:
    seen, stem = worker.saves, worker.event_stem
    first = worker.ref.rank == 0
    if first and told.opened and not seen.opened:
        seen.opened = True
        _say_opened(host, worker, told)
    if told.differs is not None and told.differs.number != seen.differs:
        seen.differs = told.differs.number
        _say_differs(host, worker, told.differs)
    failing = told.failing
    newly_failing = failing is not None and not seen.failing
    again = told.failures != seen.failures and now_ns - seen.failed_ns >= TELL_EVERY_NS
    seen.healed = seen.healed or (seen.failing and failing is None)
    seen.failing = failing is not None
    if first:
        # A failure is judged by what was saved before it, so that is said first, however lately it was.
        _say_saved(host, worker, told, now_ns, at_once=last or newly_failing)
    if failing is not None and (newly_failing or again):
        seen.failures, seen.failed_ns = told.failures, now_ns
        failed = CheckpointFailed(node=host.node, ref=worker.ref, step=failing.step, why=_short(failing.why))
        host.reporter.say(failed, f"{stem}.checkpoint-failed.{told.failures}")


def _say_saved(host: Host, worker: LocalWorker, told: _Told, now_ns: int, at_once: bool) -> None:
    seen, saved = worker.saves, told.saved
    if saved is None or saved.name == seen.saved:
        return
    # Said at once: that saving goes well again, that states are gone, and what somebody waits for.
    news = at_once or seen.healed or told.lost != seen.lost or saved.asked
    if news or not seen.saved or now_ns - seen.saved_ns >= TELL_EVERY_NS:
        seen.saved, seen.saved_ns, seen.healed = saved.name, now_ns, False
        about = SavedCheckpoint(
            name=_short(saved.name),
            step=saved.step,
            at_ns=saved.at_ns,
            size=saved.size,
            took_s=saved.took_s,
            interval=told.interval,
            memory_interval=told.memory_interval,
            lost=_short(told.lost) if told.lost != seen.lost else "",
        )
        seen.lost = told.lost
        event = CheckpointSaved(node=host.node, ref=worker.ref, saved=about)
        host.reporter.say(event, f"{worker.event_stem}.checkpoint-saved.{about.name}")


def _say_opened(host: Host, worker: LocalWorker, told: _Told) -> None:
    stem = worker.event_stem
    opened = CheckpointStoreOpened(
        node=host.node,
        ref=worker.ref,
        place=CheckpointPlace(
            told.uri, _short(told.name), framework=_short(told.framework), index=_short(told.index)
        ),
        restored=_short(told.restored),
        restored_from=_short(told.restored_from),
        saved_step=None if told.restored_from == "memory" else _step_of(told.restored),
    )
    host.reporter.say(opened, f"{stem}.checkpoint-store-opened")
    if told.rejected:
        passed = tuple(RejectedCheckpoint(_short(name), _short(why)) for name, why in told.rejected[:16])
        rejected = CheckpointRejected(
            node=host.node, ref=worker.ref, rejected=passed, used=_short(told.restored)
        )
        host.reporter.say(rejected, f"{stem}.checkpoint-rejected")


def _say_differs(host: Host, worker: LocalWorker, differs: _Differs) -> None:
    event = RestoreDiffered(
        node=host.node,
        ref=worker.ref,
        restored=_short(differs.name),
        places=tuple(_short(place) for place in differs.places[:16]),
        more=max(0, differs.more),
    )
    host.reporter.say(event, f"{worker.event_stem}.restore-differed.{differs.number}")


def _step_of(name: str) -> int | None:
    found = _CHECKPOINT.match(name)
    return int(found[1]) if found else None


def _short(text: str) -> str:
    return text[:_MOST_CHARS]
