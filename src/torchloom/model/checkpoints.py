"""Checkpoints as the control plane knows them: where they are, what was saved, what a catalogue lists.

No behaviour, and no credentials: a place is an address; the credentials are in the job's environment.
"""

from __future__ import annotations

from msgspec import Struct


class CheckpointPlace(Struct, frozen=True):
    """Where a job's checkpoints are."""

    uri: str
    """A directory on the node that reported it, or `s3://bucket/prefix`."""
    name: str
    """The job's name in that store."""
    framework: str = ""
    """Whose trainer saves them: `transformers`, `lightning`, `accelerate`; empty: loom.Checkpoint does."""
    index: str = ""
    """The file on that node that names what such a trainer has saved."""


class SavedCheckpoint(Struct, frozen=True, kw_only=True):
    """One state that is complete in its store."""

    name: str
    step: int
    at_ns: int = 0
    size: int = 0
    took_s: float = 0.0
    interval: int = 0
    """Steps between two saves, as chosen last; 0: not known."""
    memory_interval: int = 0
    """The same for states in memory; 0: they are off."""
    lost: str = ""
    """The newest one before it, if this save found that the store's content had been deleted."""


class RejectedCheckpoint(Struct, frozen=True):
    """A state that could not be used at a restore, and why."""

    name: str
    why: str


class CheckpointEntry(Struct, frozen=True, kw_only=True):
    """One line of a job's catalogue."""

    name: str
    step: int
    generation: int
    where: str
    whole: bool
    why: str = ""
    """Why it is not whole."""
    verified_ns: int = 0
    """When its checksums were last verified; 0: never."""
    pinned: bool = False
    resumable: bool = True
    """A restart may choose it; false: it is on a branch that the job went back from."""
    newest: bool = False
    """A restart would take this one."""
    created_ns: int = 0
    size: int = 0
    world: int = 0
    epoch: int = 0
    config_version: int = 0
    parent: str = ""
    finite: bool = True
    """False: the loss or the parameters were known to be NaN or infinite."""
    metrics: dict[str, float] = {}
    lineage: dict[str, str] = {}
