"""Every error a user of torchloom can meet, in one tree.

    LoomError                  1  root; never raised itself
    ├── UsageError             2  the command, script or setting makes no sense as given
    │   └── BusUnsuitable      2  a NATS server without JetStream, or too old
    ├── NotFound               3  no such job, worker, device, file
    ├── NotAllowed             4  wrong token, wrong credentials, not this role's right
    │   └── HomeUnusable       4  LOOM_HOME is read-only, full, or not ours
    ├── Conflict               5  somebody else was first, or the state moved on
    │   ├── StoreInUse         5  a second server on one JetStream store
    │   ├── PortTaken          5  another program listens there
    │   ├── StreamRewound      5  the event stream is shorter than what was already read
    │   └── SnapshotsLost      5  no snapshot is readable, and older events are gone
    ├── TimedOut               6  no answer in time
    │   ├── BusUnavailable     6  NATS is not reachable now; the same call may be repeated
    │   └── NoResponder        6  nobody listens on that subject
    ├── Diverged               1  ranks of one job tell different outcomes of one change
    ├── JobFailed              1  the job ended in FAILED
    │   └── SpawnFailed        1  a worker could not be started
    ├── CheckpointError        1  a checkpoint could not be saved, found or read
    │   ├── StorageFailed      1  the store is full, read-only, unreachable or too slow
    │   │   ├── StorageFull    1  there is no room left
    │   │   └── StoreUnreachable 1 it does not answer now; the same call may be repeated
    │   ├── CheckpointDamaged  1  a file of it is missing, cut short or changed
    │   ├── RestoreDiffers     1  after a restore the script's objects do not hold what was saved
    │   ├── CheckpointMissing  3  no such checkpoint
    │   ├── CheckpointFenced   5  a newer generation of the job has begun
    │   │   └── RunTakenOver   5  another run of the job's name has begun there; for this one it is over
    │   ├── CheckpointExists   5  that step of that generation was committed with other content
    │   └── CheckpointInUse    5  pinned, or the state the job would resume from
    ├── DataDamaged            1  a data shard that is missing, cut short or not what its index says
    ├── DumpUnreadable         1  a Flight Recorder dump that is damaged, or not one
    └── BlackBoxDamaged        1  a black box that cannot be read

The number is the exit code of the `loom` command. A message is one sentence that says what is wrong; `hint`
says what to do about it. No message ever holds a password or a token.

This module owns names and exit codes. It neither logs nor prints: whoever is at the top does.
"""

from __future__ import annotations

from typing import ClassVar


class LoomError(Exception):
    """Root of the tree. `str(error)` is the whole sentence, with the next step."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        """What is wrong, without the next step."""
        self.hint = hint
        """What the reader can do now, as an imperative; empty if there is nothing to do."""

    def __str__(self) -> str:
        return f"{self.message.removesuffix('.')}: {self.hint}" if self.hint else self.message


class UsageError(LoomError):
    """The command, script or setting makes no sense as given."""

    exit_code = 2
    field: str = ""
    """Which field of a request it is about, where the control service said so."""
    fault: str = ""
    """What is wrong with the field: the sentence without its name."""


class BusUnsuitable(UsageError):
    """The NATS server cannot carry torchloom: too old a version, or no JetStream."""


class NotFound(LoomError):
    """The thing named does not exist."""

    exit_code = 3


class NotAllowed(LoomError):
    """The credentials are wrong, or this role has no right to do that."""

    exit_code = 4


class HomeUnusable(NotAllowed):
    """The directory that holds our state is read-only, full, or belongs to somebody else."""


class Conflict(LoomError):
    """Somebody else was first, or the state is not what the caller expected."""

    exit_code = 5


class StoreInUse(Conflict):
    """Another server runs on the same JetStream store."""


class PortTaken(Conflict):
    """Another program listens on the port we must use."""


class StreamRewound(Conflict):
    """The event stream ends before the place a reader has already reached: its store was replaced."""


class SnapshotsLost(Conflict):
    """No snapshot of the fleet is readable, and the events that could replace it were dropped."""


class TimedOut(LoomError):
    """No answer came in time; the outcome is unknown."""

    exit_code = 6


class BusUnavailable(TimedOut):
    """NATS is not reachable now. Queue, and repeat the call with the same id."""


class NoResponder(TimedOut):
    """Nobody is subscribed to the subject of a request; known at once, not after the timeout."""


class Diverged(LoomError):
    """Ranks of one job tell different outcomes of one change. The protocol excludes it; so it is told."""


class JobFailed(LoomError):
    """The job ended in FAILED; the message says why."""


class SpawnFailed(JobFailed):
    """A worker could not be started."""


class CheckpointError(LoomError):
    """A checkpoint could not be saved, found or read; those saved before are untouched."""


class StorageFailed(CheckpointError):
    """The store refused: full, read-only, unreachable, too slow. The same call may be repeated."""


class StorageFull(StorageFailed):
    """There is no room left in the store: nothing of the object was written."""


class StoreUnreachable(StorageFailed):
    """The checkpoint store does not answer now; the same call may be repeated."""


class CheckpointDamaged(CheckpointError):
    """A file of a checkpoint is missing, cut short or changed. Nothing of it was unpickled."""


class RestoreDiffers(CheckpointError):
    """After a restore the objects of the script do not hold what was saved."""


class CheckpointMissing(CheckpointError):
    """No checkpoint, or no object in the store, has that name."""

    exit_code = 3


class CheckpointFenced(CheckpointError):
    """A newer generation of the job has begun: what this one still saves would never be used."""

    exit_code = 5


class RunTakenOver(CheckpointFenced):
    """Another run of the same name has begun in this checkpoint store; this one may not use it any more."""


class CheckpointExists(CheckpointError):
    """Something else is already committed under that name; it was not touched."""

    exit_code = 5


class CheckpointInUse(CheckpointError):
    """The checkpoint is pinned, or it is what the job would resume from."""

    exit_code = 5


class DataDamaged(LoomError):
    """A shard of a dataset is missing, cut short or not what its index says."""


class DumpUnreadable(LoomError):
    """A Flight Recorder dump is cut short, holds something other than plain data, or is not a dump."""


class BlackBoxDamaged(LoomError):
    """A black box is truncated, of another layout, or not a black box."""
