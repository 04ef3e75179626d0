"""Prints incidents as they happen, in sentences, above the prompt of a busy user. Only reads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from torchloom.client import Client, Endpoint
from torchloom.errors import LoomError

AGAIN_AFTER_S = 1.0


class Notices:
    """Follows the incidents of all jobs from now on; reports each opening, decision and end once."""

    def __init__(self, endpoint: Endpoint, say: Callable[[str, str], None], over: threading.Event) -> None:
        self._endpoint = endpoint
        self._say = say
        self._over = over
        self._told: dict[str, str] = {}
        """Incident → the last sentence about it."""
        self._place = ""

    def follow(self) -> None:
        """Follow until the shell ends. A broken stream resumes where it broke."""
        away = False
        while not self._over.is_set():
            with Client(self._endpoint, timeout_s=30.0) as client:
                try:
                    if away:
                        client.health()
                        self._say("torchloom answers again", "good")
                        away = False
                    for name, id, body in client.events(
                        topic=["incident"], last_event_id=self._place or None
                    ):
                        self._place = id
                        if name != "reset":
                            self.take(body)
                        if self._over.is_set():
                            return
                except LoomError as error:
                    if not away:
                        self._say(f"{error.message}; jobs continue without it", "bad")
                    away = True
            self._over.wait(AGAIN_AFTER_S)

    def take(self, body: dict[str, Any]) -> None:
        """Report what an event changed in incidents."""
        from torchloom.cli.fleet.incidents import is_news, sentence

        for change in body["incidents"]:
            over = not change["open"]
            good = over
            text = f"{change['job']} has recovered" if over else sentence(change)
            if over and change["resolution"]:
                text = change["resolution"]
            elif over:
                states = {job["id"]: job["state"] for job in body["jobs"]}
                if states.get(change["job"], "running") != "running":
                    text, good = f"{change['job']} {states[change['job']]}: {sentence(change)}", False
            before = self._told.get(change["id"])
            if text and before != text and (over or before is None or is_news(change)):
                self._told[change["id"]] = text
                self._say(f"{change['id']}: {text}", "good" if good else "bad")
