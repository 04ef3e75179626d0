"""Changes of settings that all replicas of a torchft job apply with the same commit; the worker's side.

A rank agrees after a commit, on the script's thread. From then on it asks the lighthouse for the decision
after every quorum, on torchft's quorum thread, which has just waited for the lighthouse anyway. It applies a
change at the boundary after the first commit that is due, on the script's thread. core/replica_changes.py
says why no replica commits that step without the change.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

_FIRST_LIST_S = 5.0
"""How long the first quorum waits for the list of changes. Without it, the settings of the start hold."""
_DECISION_S = 60.0
"""How long a rank that has agreed waits for the decision before it ends: it could differ from the others."""
_ASK_AGAIN_S = 0.5


class Applies(Protocol):
    """The probe's steering/replica_steering.py."""

    @property
    def ready(self) -> bool: ...

    def problem(self, values: Mapping[str, Any]) -> str: ...

    def apply(
        self, version: int, values: Mapping[str, Any], step: int
    ) -> tuple[str, list[tuple[str, Any, Any]]]: ...

    def why_not(self, kind: str) -> str: ...

    def carry_out(self, kind: str) -> str: ...


@dataclass
class _Known:
    values: dict[str, Any]
    step: int | None
    kind: str = "set"
    agreed: bool = False
    report: dict[str, Any] | None = None
    """Set once it was applied here."""


class ReplicaSettings:
    def __init__(
        self, send: Callable[[Mapping[str, Any]], None], port: int, rank: int, door: str = ""
    ) -> None:
        self._send = send
        self._me = {"port": port, "rank": rank, "door": door}
        self._lock = threading.Lock()
        self._known: dict[int, _Known] = {}
        self._asked = 0
        self._answered = 0
        self._told = threading.Condition(self._lock)
        self._listed = False
        self._waited = False
        self.busy = False
        """Whether a commit has anything to do here."""

    # -- the thread that listens ------------------------------------------------------------------
    def hello(self) -> list[dict[str, Any]]:
        with self._lock:
            answers = [
                known.report or {"version": version, "problem": ""}
                for version, known in self._known.items()
                if known.report is not None or known.agreed
            ]
            asked = [{"ask": self._asked}] if self._asked else []
        return [self._me, *answers, *asked]

    def heard(self, changes: list[Mapping[str, Any]], asked: int) -> None:
        with self._told:
            listed = {int(one["version"]): one for one in changes}
            for version, one in listed.items():
                kind = str(one.get("kind", "set"))
                known = self._known.setdefault(version, _Known(dict(one["values"]), None, kind))
                known.step = one["step"]
            for version in [v for v in self._known if v not in listed]:
                del self._known[version]  # refused, withdrawn or long past
            self._answered = max(self._answered, asked)
            self._listed = True
            self._look()
            self._told.notify_all()

    def _look(self) -> None:
        self.busy = any(known.report is None for known in self._known.values())

    # -- torchft's quorum thread ------------------------------------------------------------------
    def quorum_formed(self) -> None:
        """Learn what this quorum has decided. Raises if that cannot be known."""
        if not self._listed and not self._waited:
            self._waited = True
            with self._told:
                self._told.wait_for(lambda: self._listed, _FIRST_LIST_S)
        if not self.busy:
            return
        with self._told:
            if not any(known.agreed and known.step is None for known in self._known.values()):
                return
            self._asked += 1
            number = self._asked
        until_s = time.monotonic() + _DECISION_S
        while time.monotonic() < until_s:
            self._send({"ask": number})
            with self._told:
                if self._told.wait_for(lambda: self._answered >= number, _ASK_AGAIN_S):
                    return
        raise RuntimeError(
            "the lighthouse does not say whether a change of settings was decided: "
            "this replica could differ from the others"
        )

    # -- the script's thread ----------------------------------------------------------------------
    @staticmethod
    def _carry_out(
        version: int, known: _Known, replica: Applies, step: int
    ) -> tuple[str, list[tuple[str, Any, Any]]]:
        assert known.step is not None
        if known.kind == "set":
            return replica.apply(version, known.values, known.step)
        # A pause or a save is of one commit: a replica that did not make it has nothing to do with it. It
        # must not pause later, when the others may have resumed.
        return (replica.carry_out(known.kind) if known.step == step else ""), []

    def committed(self, step: int, replica: Applies) -> None:
        """This step was committed and its update is next: apply what is due, agree to what is new."""
        with self._lock:
            work = sorted(self._known.items())
        for version, known in work:
            if known.report is None and known.step is not None and known.step <= step:
                trouble, changed = self._carry_out(version, known, replica, step)
                known.report = {"version": version, "changed": changed, "trouble": trouble}
                self._send(known.report)
            elif known.step is None and not known.agreed and replica.ready:
                problem = (
                    replica.problem(known.values) if known.kind == "set" else replica.why_not(known.kind)
                )
                known.agreed = not problem
                self._send({"version": version, "problem": problem})
        with self._lock:
            self._look()
