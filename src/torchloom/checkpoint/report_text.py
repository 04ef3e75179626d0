"""One worker's report on its checkpoints for the control plane, as one small text that is always complete.

    {"uri": …, "name": …, "opened": true, "restored": "step-40.g1", "restored_from": "the store",
     "rejected": [["step-60.g1", "…"]], "saved": {"name": …, "step": 80, …}, "interval": 20,
     "memory_interval": 1, "failures": 1, "failing": {"step": 100, "why": …} or null, "lost": "step-40.g1",
     "differs": {"number": 1, "name": "step-40.g1", "places": ["ema[\"shadow\"]"], "more": 0}}

Owns that text; reporting.py sends it. Only rank 0 knows what was opened and saved; every rank reports its
failed writes, and its objects that do not hold what was saved. No credentials: addresses come without them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from torchloom.checkpoint import reporting

MOST_REJECTED = 8
MOST_PLACES = 5
MOST_CHARS = 400
MOST_PLACE_CHARS = 120


class Told:
    """The current text; every change is reported at once."""

    def __init__(self, uri: str, name: str) -> None:
        self._text: dict[str, object] = {"uri": without_credentials(uri), "name": name, "failures": 0}
        self._failures = 0
        self._differed = 0

    def opened(self, restored: str, where: str, rejected: Mapping[str, str]) -> None:
        """What this generation begins from, and what it had to pass over."""
        shown = list(rejected.items())[:MOST_REJECTED]
        self._tell(
            opened=True,
            restored=restored,
            restored_from=where,
            rejected=[[name, _short(why)] for name, why in shown],
        )

    def saved(
        self, name: str, step: int, at_s: float, size: int, took_s: float, *, asked: bool = False
    ) -> None:
        """`asked`: somebody waits for it."""
        about: dict[str, object] = {"name": name, "step": step, "at_ns": int(at_s * 1e9), "size": size}
        self._tell(saved=about | {"took_s": took_s, "asked": asked}, failing=None)

    def deleted(self, newest: str) -> None:
        """Somebody deleted what was saved before; said with the save that found it out."""
        self._text["lost"] = newest
        reporting.say(f"the checkpoints of {self._text['name']} were deleted while it ran; saving continues")

    def differs(self, name: str, places: Sequence[str]) -> None:
        """After restoring that state, objects of the script hold something else at these places."""
        self._differed += 1
        shown = [_short(place, MOST_PLACE_CHARS) for place in places[:MOST_PLACES]]
        more = len(places) - len(shown)
        self._tell(differs={"number": self._differed, "name": name, "places": shown, "more": more})

    def wrote(self) -> None:
        """This rank's part is in the store again; whether all parts are is rank 0's word."""
        if self._text.get("failing"):
            self._tell(failing=None)

    def failed(self, step: int, why: str) -> None:
        self._failures += 1
        self._tell(failures=self._failures, failing={"step": step, "why": _short(why)})

    def paces(self, interval: int, memory_interval: int) -> None:
        """Steps between saves; reported with the next change, because it is no news by itself."""
        self._text |= {"interval": interval, "memory_interval": memory_interval}

    def _tell(self, **changes: object) -> None:
        self._text |= changes
        reporting.ports.checkpoints(self._text)


def without_credentials(uri: str) -> str:
    """An address without `user:password@` and without a query, which may hold a signature."""
    if "://" not in uri:
        return uri
    return re.sub(r"^([a-z0-9+.-]+://)[^/@]*@", r"\1", uri.partition("?")[0])


def _short(text: str, most: int = MOST_CHARS) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
