"""Reads of one worker's black box, kept apart from everybody else's.

Whatever a worker wrote into its box, or did to the file, costs that worker's telemetry and nothing else: not
the node's heartbeat, not the other workers' windows, and never the report that the worker has ended.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakKeyDictionary

from torchloom.agent.host import LocalWorker
from torchloom.errors import BlackBoxDamaged

log = logging.getLogger(__name__)

T = TypeVar("T")

SAY_AGAIN_S = 60.0
_said_s: WeakKeyDictionary[LocalWorker, float] = WeakKeyDictionary()


def guarded(worker: LocalWorker, read: Callable[[], T], otherwise: T) -> T:
    """What `read` gives, or `otherwise` if the box cannot be read. A box that was cut off is given up."""
    try:
        return read()
    except BlackBoxDamaged as error:
        _give_up(worker, str(error))
    except Exception as error:  # noqa: BLE001  # the box was written inside the user's process: anything may be there
        now_s = time.monotonic()
        if now_s - _said_s.get(worker, -SAY_AGAIN_S) >= SAY_AGAIN_S:
            _said_s[worker] = now_s
            log.warning(
                "the black box of %s rank %d cannot be read (%s: %s); its telemetry is left out",
                worker.ref.job,
                worker.ref.rank,
                type(error).__name__,
                error,
            )
    return otherwise


def _give_up(worker: LocalWorker, why: str) -> None:
    """The worker keeps running, and is watched without its box."""
    if worker.box is None:
        return
    log.warning("%s; %s rank %d is watched without it", why, worker.ref.job, worker.ref.rank)
    worker.damaged_box, worker.blind = worker.box.path, why
    worker.box.close()
    worker.box = None
