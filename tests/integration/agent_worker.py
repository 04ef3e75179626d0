"""A worker without torch: steps, collectives and the mailbox through the black box alone, as the probe would.

Usage: agent_worker.py SECONDS_PER_STEP [collective] [stubborn] [child] [held=STEPS]
One that is held makes no further step than that one until there is mail for it.
"""

import json
import mmap
import os
import signal
import subprocess
import sys
import time

from torchloom.wire import blackbox
from torchloom.wire.blackbox import CollectiveWord, Mailbox, Progress, Source, View, WorkerPhase

step_s, words = float(sys.argv[1]), sys.argv[2:]
held = next((int(word.removeprefix("held=")) for word in words if word.startswith("held=")), sys.maxsize)
with open(os.environ["LOOM_BOX"], "r+b") as file:
    view = View(memoryview(mmap.mmap(file.fileno(), blackbox.SIZE)))
view.write_blob(blackbox.DEVICE, json.dumps({"kind": "cpu", "cores": [0]}).encode())
view.write_blob(blackbox.METRICS, json.dumps({"step": 0, "values": {"loss": 0.5, "note": "text"}}).encode())
view.write_blob(blackbox.HYPERPARAMETERS, json.dumps([{"lr": 0.1}]).encode())
view.set_progress(Progress.PHASE, WorkerPhase.TRAINING)
if "stubborn" in words:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "child" in words:
    print("child", subprocess.Popen(["sleep", "1000"]).pid, flush=True)
if "collective" in words:  # entered and never finished
    at = blackbox.COLLECTIVES_AT // 8
    body = [1, 1, 0, 412, 4_000_000, 7 | 2 << 32, blackbox.NO_PEER, time.monotonic_ns()]
    for i, word in enumerate(body[1:], 1):
        view.words[at + i] = word
    view.words[at + CollectiveWord.CHECKSUM] = blackbox.checksum(body)
    view.words[at + CollectiveWord.COMPLETION] = blackbox.IN_FLIGHT | 1 << 3 | Source.HOST_WAIT << 1
    view.words[at] = 1
    view.set_progress(Progress.COLLECTIVES_ENTERED, 1)

done = 0
while True:
    mail = blackbox.MAILBOX_AT // 8
    if view.words[mail + Mailbox.VERSION] and done + 1 >= view.words[mail + Mailbox.AT_STEP]:
        print("stopped before step", done + 1, flush=True)
        sys.exit(0)
    time.sleep(step_s)
    if done >= held and not view.words[mail + Mailbox.VERSION]:
        continue
    done += 1
    now = time.monotonic_ns()
    view.write_step(done, now, int(step_s * 1e9), 0, 0)
    view.set_progress(Progress.STEP_ENDED_NS, now)
    view.set_progress(Progress.LAST_ACTIVITY_NS, now)
    if done == 1:
        view.set_progress(Progress.FIRST_STEP_NS, now)
    view.set_progress(Progress.STEPS, done)
