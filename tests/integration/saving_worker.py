"""A worker without torch that saves small checkpoints, tells of them as loom.Checkpoint does, and steps.

Usage: saving_worker.py STORE. It saves 10, 20 and 30 steps after the state it restored; then, whenever a file
STORE/save-<N> appears, it tries to save step N, and where a directory STORE/broken is it fails.
"""

import json
import mmap
import os
import sys
import time
from pathlib import Path

from torchloom.checkpoint import reporting
from torchloom.checkpoint.report_text import Told
from torchloom.checkpoint.store.commit import PartWriter, Target, commit
from torchloom.checkpoint.store.generations import begin, settle
from torchloom.checkpoint.store.local import LocalStorage
from torchloom.checkpoint.store.manifest import Facts
from torchloom.checkpoint.store.names import CheckpointName
from torchloom.checkpoint.store.reader import find
from torchloom.wire import blackbox
from torchloom.wire.blackbox import Mailbox, Progress, View

root, job = Path(sys.argv[1]), os.environ["LOOM_JOB"]
generation = int(os.environ["LOOM_GENERATION"])
with open(os.environ["LOOM_BOX"], "r+b") as file:
    view = View(memoryview(mmap.mmap(file.fileno(), blackbox.SIZE)))
reporting.ports.checkpoints = lambda told: view.write_blob(blackbox.CHECKPOINTS, json.dumps(told).encode())

storage = LocalStorage(root)
told = Told(storage.where, job)
begin(storage, job, generation)
wanted = os.environ.get("LOOM_RESTORE_STEP")
search = find(storage, job, generation, int(wanted) if wanted else None)
assert search.found or not wanted, f"step {wanted} is not there"
settle(storage, job, generation, search.found.name if search.found else None)
begun = search.found.name.step if search.found else 0
parent = str(search.found.name) if search.found else ""
told.opened(parent, "the store" if parent else "", {r.name: r.why for r in search.rejected})
print("begins after", begun, flush=True)


def save(step: int) -> None:
    global parent
    if (root / "broken").exists():
        told.failed(step, "the test has broken the store")
        return
    target = Target(job, CheckpointName(generation, step), 1, attempt=step)
    writer = PartWriter(storage, target, 0)
    writer.add("own", [f"state {step}".encode() * 100])
    done = commit(storage, target, [writer.finish()], Facts(parent=parent), time.time())
    parent = str(target.name)
    told.paces(10, 0)
    told.saved(parent, step, time.time(), done.manifest.size, 0.01)


for number in (1, 2, 3):
    save(begun + 10 * number)
steps = 0
while True:
    mail = blackbox.MAILBOX_AT // 8
    if view.words[mail + Mailbox.VERSION] and steps + 1 >= view.words[mail + Mailbox.AT_STEP]:
        sys.exit(0)
    time.sleep(0.02)
    steps += 1
    view.write_step(steps, time.monotonic_ns(), 20_000_000, 0, 0)
    view.set_progress(Progress.STEP_ENDED_NS, time.monotonic_ns())
    view.set_progress(Progress.STEPS, steps)
    for asked in root.glob("save-*"):
        save(int(asked.name.removeprefix("save-")))
        asked.unlink()
