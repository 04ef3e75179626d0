"""Incidents as they happen, in sentences, for somebody who is busy with something else. Only reads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from torchloom.client import Client, Endpoint
from torchloom.errors import LoomError

AGAIN_AFTER_S = 1.0


class Notices:
    """Follows the incidents of all jobs from now on; says each opening, decision and recovery once."""

    def __init__(self, endpoint: Endpoint, say: Callable[[str, str], None], over: threading.Event) -> None:
        self._endpoint = endpoint
        self._say = say
        self._over = over
        self._told: dict[str, str] | None = None
        """Incident → what was said of it last; None before the first look, whose incidents are old."""

    def follow(self) -> None:
        client = Client(self._endpoint, timeout_s=10.0)
        away = False
        while not self._over.is_set():
            try:
                self.look(client.incidents())
                if away:
                    self._say("torchloom answers again", "good")
                away = False
            except LoomError as error:
                if not away:
                    self._say(f"{error.message}; jobs go on without it", "bad")
                away = True
            self._over.wait(AGAIN_AFTER_S)

    def look(self, incidents: list[Any]) -> None:
        """Say what is new among all incidents there are."""
        known = self._told
        told = {incident["id"]: _sentence(incident) for incident in incidents}
        if known is not None:
            for id, text in told.items():
                if text and known.get(id) != text:
                    self._say(f"{id}: {text}", _mark(text))
        self._told = told


def _sentence(incident: dict[str, Any]) -> str:
    from torchloom.cli import output
    from torchloom.cli.incidents import sentence

    if incident["recovery_s"] is not None:
        return f"{incident['job']} recovered {output.seconds(incident['recovery_s'])} after the fault"
    return sentence(incident)  # type: ignore[arg-type]


def _mark(text: str) -> str:
    return "good" if " recovered " in text else "bad"
