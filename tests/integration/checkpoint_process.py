"""A process that saves checkpoints, to be killed on the way.

Called with a store's URI, a job, a generation and steps.
Begins the generation, resumes, and saves each of the steps (comma-separated) with two ranks' files. Prints a
line of JSON for each thing done. LOOM_KILL_AT kills it on the way; with TELL_POINTS it prints each point it
passes; with STOP_AT it freezes itself (SIGSTOP) at that point.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from torchloom.checkpoint.store import points
from torchloom.checkpoint.store.commit import PartWriter, Target, commit, gather
from torchloom.checkpoint.store.generations import begin, settle
from torchloom.checkpoint.store.manifest import Facts
from torchloom.checkpoint.store.names import CheckpointName
from torchloom.checkpoint.store.reader import find
from torchloom.checkpoint.store.storage import Storage, open_storage

WORLD = 2


def content(name: CheckpointName, rank: int) -> bytes:
    """What a file of a state holds: large enough for several writes, different for every state and rank."""
    return f"{name} rank {rank} ".encode() * 60_000


def tell(what: str, value: object) -> None:
    print(json.dumps({what: value}), flush=True)


def save(storage: Storage, job: str, name: CheckpointName, attempt: int, parent: str) -> None:
    target = Target(job, name, WORLD, attempt)
    for rank in range(WORLD):
        writer = PartWriter(storage, target, rank)
        data = content(name, rank)
        writer.add("state", [data[:300_000], data[300_000:]])
        writer.finish()
    commit(storage, target, gather(storage, target), Facts(parent=parent), now_s=1.0)
    tell("saved", str(name))


def main(uri: str, job: str, generation: int, steps: list[int]) -> None:
    if os.environ.get("TELL_POINTS"):
        points.set_hook(lambda name: tell("point", name))
    elif stop_at := os.environ.get("STOP_AT"):
        points.set_hook(lambda name: os.kill(os.getpid(), signal.SIGSTOP) if name == stop_at else None)
    storage = open_storage(uri, os.environ)
    begin(storage, job, generation)
    found = find(storage, job, generation).found
    settle(storage, job, generation, found.name if found else None)
    parent = str(found.name) if found else ""
    tell("resumed", parent)
    for attempt, step in enumerate(steps):
        name = CheckpointName(generation, step)
        save(storage, job, name, attempt, parent)
        parent = str(name)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), [int(step) for step in sys.argv[4].split(",")])
