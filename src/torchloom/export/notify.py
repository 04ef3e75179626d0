"""Follows incidents and delivers each state of them in order, also over restarts of everything.

The place in the stream and what is still to be delivered are kept in one private file, written before the
first try: a kill at any moment repeats a delivery (with the same id) and loses none.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchloom.client import Client, NotAnswering, Unavailable
from torchloom.export.delivery import GIVE_UP_AFTER_S, send, wait_s
from torchloom.export.webhooks import Webhook, message

log = logging.getLogger(__name__)

AGAIN_AFTER_S = 0.5
MOST_WAITING = 1000
"""Deliveries kept for one receiver; beyond that the oldest are dropped, and that is logged."""


@dataclass
class Waiting:
    """What one receiver still has to get."""

    hook: Webhook
    due_s: float = 0.0
    tries: int = 0
    entries: list[dict[str, Any]] = field(default_factory=list)


class Notifier:
    def __init__(self, hooks: Sequence[Webhook], file: Path, now: Callable[[], float] = time.time) -> None:
        self._file, self._now = file, now
        self._waiting = {hook.url: Waiting(hook) for hook in hooks}
        self._open: dict[str, str] = {}
        """Incident → the state that was delivered last."""
        self.place = "0"
        self._since_ns = int(now() * 1e9)
        """Incidents from before the first start are not reported."""
        self._read()
        self._write()

    # -- what happens -----------------------------------------------------------------------------
    def take(self, place: str, body: dict[str, Any]) -> None:
        """Note what one event of the stream did to incidents."""
        self.place = place
        if body["at_ns"] < self._since_ns:
            return
        for incident in body.get("incidents", ()):
            state = "opened" if incident["open"] else "ended"
            if self._open.get(incident["id"]) == state:
                continue
            self._open[incident["id"]] = state
            self._open = dict(list(self._open.items())[-4096:])
            delivery = f"{incident['id']}.{place}.{state}"
            for one in self._waiting.values():
                if one.hook.wants(incident):
                    entry = {"delivery": delivery, "since": self._now()}
                    one.entries.append(entry | {"body": message(one.hook, state, incident)})
                    if len(one.entries) > MOST_WAITING:
                        dropped = one.entries.pop(0)
                        log.warning("%s: %s was dropped, too many wait", one.hook.name, dropped["delivery"])
        self._write()

    def deliver_due(self) -> float:
        """Send what is due. Returns the seconds until the next try, at most a minute."""
        now, changed = self._now(), False
        for one in self._waiting.values():
            while one.entries and one.due_s <= now:
                entry = one.entries[0]
                result = send(one.hook, entry["delivery"], entry["body"], int(now))
                now = self._now()
                late = now - entry["since"] > GIVE_UP_AFTER_S
                if not result.done and not late:
                    one.tries += 1
                    one.due_s = now + wait_s(one.tries)
                    log.warning("%s: %s; next try in %.0f s", one.hook.name, result.why, wait_s(one.tries))
                    break
                if result.why:
                    log.error("%s: %s was not delivered: %s", one.hook.name, entry["delivery"], result.why)
                one.entries.pop(0)
                one.tries, one.due_s, changed = 0, 0.0, True
        if changed:
            self._write()
        return min([60.0, *(max(0.0, one.due_s - now) for one in self._waiting.values() if one.entries)])

    # -- what is kept -----------------------------------------------------------------------------
    def _read(self) -> None:
        try:
            kept = json.loads(self._file.read_bytes())
            self.place, self._open = str(kept["place"]), dict(kept["open"])
            self._since_ns = int(kept["since_ns"])
            for url, entries in kept["waiting"].items():
                if url in self._waiting:
                    self._waiting[url].entries = list(entries)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.error("%s cannot be read (%s); incidents from now on are delivered", self._file, error)
            self.place, self._open = "0", {}

    def _write(self) -> None:
        kept = {
            "place": self.place,
            "since_ns": self._since_ns,
            "open": self._open,
            "waiting": {url: one.entries for url, one in self._waiting.items() if one.entries},
        }
        new = self._file.with_suffix(".new")
        try:
            with os.fdopen(os.open(new, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as file:
                json.dump(kept, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, self._file)
        except OSError as error:  # delivering matters more than remembering it
            log.error("%s cannot be written (%s)", self._file, error)


def run(notifier: Notifier, client: Callable[[], Client], ended: threading.Event) -> None:
    """Follow and deliver until `ended`. A thread reads the stream, because a receiver may be slow."""
    events: queue.SimpleQueue[tuple[str, dict[str, Any]]] = queue.SimpleQueue()
    reader = threading.Thread(target=_follow, args=(notifier.place, client, events, ended), daemon=True)
    reader.start()
    wait = 0.0
    while not ended.is_set():
        try:
            place, body = events.get(timeout=min(wait, 0.5) or 0.01)
        except queue.Empty:
            wait = notifier.deliver_due()
            continue
        notifier.take(place, body)
        wait = notifier.deliver_due()


def _follow(
    place: str,
    client: Callable[[], Client],
    events: queue.SimpleQueue[tuple[str, dict[str, Any]]],
    ended: threading.Event,
) -> None:
    while not ended.is_set():
        api = client()
        try:
            for name, id, body in api.events(topic=["incident"], last_event_id=place):
                place = id or place
                if name != "reset":
                    events.put((id, body))
        except (NotAnswering, Unavailable) as error:
            log.info("waiting for the API: %s", error)
        finally:
            api.close()
        ended.wait(AGAIN_AFTER_S)
