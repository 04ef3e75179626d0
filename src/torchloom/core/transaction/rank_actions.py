"""What a rank has to do at a boundary, one action at a time. Records only: the worker does them."""

from __future__ import annotations

from dataclasses import dataclass

from torchloom.model.transaction.messages import Proposal


@dataclass(frozen=True, slots=True)
class Pass:
    """Nothing holds this rank back: make the step."""


@dataclass(frozen=True, slots=True)
class CompareSet:
    """compare_set(key, "", value); then `store_said` with the value that came back, or `store_failed`."""

    key: str
    value: str
    until_ns: int


@dataclass(frozen=True, slots=True)
class Look:
    """See whether the store answers; then `saw`, or `store_failed`."""

    keys: tuple[str, ...]
    until_ns: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Look for mail, and at these keys (`saw`; errors do not matter), until one is news or until then."""

    until_ns: int
    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """Apply it to this rank; then `ran`."""

    proposal: Proposal


@dataclass(frozen=True, slots=True)
class Undo:
    """Put the values before `Run` back, also after a Run that failed half-way; then `undone`."""

    proposal: Proposal


@dataclass(frozen=True, slots=True)
class Hold:
    """Paused: stay here and look for mail."""


@dataclass(frozen=True, slots=True)
class StopScript:
    """Stopped: end the script here, with success."""

    signal: str = ""
    """The script gets this one, if it handles it; empty: SIGTERM."""


@dataclass(frozen=True, slots=True)
class EndWorker:
    """End this process, and so the generation: to continue could make this rank differ from the others."""

    why: str


Do = Pass | CompareSet | Look | Wait | Run | Undo | Hold | StopScript | EndWorker
