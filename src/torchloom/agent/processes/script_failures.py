"""Reports that a worker's script has failed while its process is still ending.

The probe writes the end record as the script ends. Taking down the interpreter and torch comes after it and
takes half a second or more; this report need not wait for it. Workers that only lost a peer, or wait for
their store, are reported by their exit as usual, so that the original failures come first.
"""

from __future__ import annotations

import time
from functools import partial

from torchloom.agent.host import Host, LocalWorker
from torchloom.agent.observe.boxes import ReadableBox
from torchloom.agent.observe.collectives import last_collectives
from torchloom.agent.observe.guarded import guarded
from torchloom.model.events import ScriptFailed
from torchloom.model.worker import EndRecord
from torchloom.wire import blackbox
from torchloom.wire.blackbox import Progress


def look_at_ends(host: Host) -> None:
    """Report new failures, the earliest first: it is the likeliest cause."""
    found = [
        (end.at_ns, worker, worker.box, end)
        for worker in host.running()
        if worker.box is not None
        and (end := guarded(worker, partial(_new_end, worker, worker.box), None)) is not None
    ]
    for _, worker, box, end in sorted(found, key=lambda one: one[0]):
        event = ScriptFailed(
            node=host.node,
            ref=worker.ref,
            end=end,
            at_ns=time.time_ns(),
            steps=box.progress(Progress.STEPS),
            training_step=box.training_step,
            ran_s=max(0.0, (time.monotonic_ns() - worker.began_ns) / 1e9),
            collectives=last_collectives(box),
        )
        host.reporter.say(event, f"{worker.event_stem}.script-failed")


def _new_end(worker: LocalWorker, box: ReadableBox) -> EndRecord | None:
    """The record of a script that has just failed. One word is read as long as it runs."""
    if worker.end_seen or box.closed:
        return None
    version = box.view.blob_version(blackbox.END)
    if not version or version & 1:
        return None
    end = box.end_record()
    if end is None:
        return None  # half written: it is read at the next look, or with the exit
    worker.end_seen = True
    return end if is_told_early(end) else None


def is_told_early(end: EndRecord) -> bool:
    return end.certain and end.code not in (0, None) and not end.connection_lost and not end.store_away
