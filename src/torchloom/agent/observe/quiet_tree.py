"""Signs of life of a worker that records nothing, and of its children, which may be the ones that train.

A script that starts its ranks itself (`mp.spawn`) only waits for them: no step and no collective shows
whether they move. Looks at /proc every few seconds and judges nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchloom.agent.host import LocalWorker
from torchloom.agent.logs import files
from torchloom.agent.observe import kernel, kernel_waits
from torchloom.agent.observe.evidence import sign_of_life

LOOK_EVERY_NS = 4 * 10**9


@dataclass
class QuietTree:
    """One worker and its children, as long as nothing is recorded of it."""

    _tree: kernel.Tree | None = None
    _printed: int = 0
    _looked_ns: int = 0
    _lived_ns: int = 0

    def look(self, worker: LocalWorker, now_ns: int) -> tuple[int, int]:
        """How many children it has, and for how long none of them has shown life; 0, 0 without children."""
        if self._tree is None or now_ns - self._looked_ns >= LOOK_EVERY_NS:
            self._take(worker, now_ns)
        children = 0 if self._tree is None else len(self._tree.pids) - 1
        return (children, now_ns - self._lived_ns) if children else (0, 0)

    def _take(self, worker: LocalWorker, now_ns: int) -> None:
        before, tree, printed = self._tree, kernel.tree(worker.pid), files.size(worker.log)
        if before is None or tree is None:
            self._lived_ns = now_ns
        else:
            wait, took_ns = kernel_waits.of_process(worker.pid), now_ns - self._looked_ns
            if sign_of_life(before, tree, took_ns, wait, printed - self._printed):
                self._lived_ns = now_ns
        self._tree, self._printed, self._looked_ns = tree, printed, now_ns
