"""The position in the data of replicas of a torchft job: it moves with commits and travels with the weights.

For a script that trains with `loom.ElasticLoader` and leaves its rank and world to it:

* All replicas of the quorum share each global batch. A replica that is lost leaves its share to the others
  from the next batch on; one that joins gets a share.
* A step that is not committed gives its batch back: the next try uses it.
* A replica that heals gets the position together with the weights, as of the last commit.

So if the script takes its batch when the quorum is known (`use_async_quorum=False`, and `next(batches)`
after `zero_grad()`), every sample is part of exactly one committed step. With an asynchronous quorum a batch
is chosen before: the step in which the quorum changes lacks the share of the replica that was lost.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

KEY = "torchloom.data"
"""Name of this part of the state that torchft sends to a healing replica."""
_LIVE = "torchloom.data.live"


class ReplicaData:
    """Of one worker. Everything but `state` and `quorum` is called on the script's thread."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._rank, self._ranks = int(environ.get("RANK", "0")), int(environ.get("WORLD_SIZE", "1"))
        self._committed: dict[str, Any] = {}
        """The position after the last commit. torchft reads it on another thread, while the script may have
        taken the next batch already, so it is replaced and never changed."""
        self._healed_at: int | None = None
        """Batches that had been taken when a position was loaded, if that was since the last commit."""
        self._seat: tuple[int, int] | None = None
        """This replica's place in the quorum, and how many there are."""

    # -- torchft's quorum thread ------------------------------------------------------------------
    def state(self) -> dict[str, Any]:
        return self._committed

    def quorum(self, replica: int, replicas: int) -> None:
        self._seat = replica, replicas

    # -- the script's thread ----------------------------------------------------------------------
    def load(self, state: Mapping[str, Any]) -> None:
        """This replica heals: continue where the others are."""
        loader = _loader()
        if loader is not None and state:
            loader.load_state_dict(state)
            self._committed, self._healed_at = dict(state), loader.taken

    def asks(self) -> None:
        """This replica is about to ask for a quorum, in which others may heal from it. If it has committed
        nothing yet, its position is that of its start, perhaps from a checkpoint."""
        loader = _loader()
        if loader is not None and not self._committed:
            self._committed = loader.state_dict(include_current=False)

    def begins(self) -> None:
        """The quorum of this step is known before its batch is taken."""
        loader = _loader()
        if loader is not None:
            self._share(loader)

    def ends(self, committed: bool, *, rounds: bool = False) -> None:
        """A step was committed, or was not. `rounds`: it was one of many batches (LocalSGD), which a replica
        keeps whether they were committed or not."""
        loader = _loader()
        if loader is None or not self._committed:
            return
        if committed or rounds:
            if self._healed_at == loader.taken and not rounds:
                loader.pass_over()  # taken before this replica healed; the others used the right batch
            self._committed = loader.state_dict()
        else:
            loader.load_state_dict(self._committed)
        self._healed_at = None
        self._share(loader)

    def _share(self, loader: Any) -> None:
        if self._seat is None or not loader.follows_replicas:
            return
        replica, replicas = self._seat
        if replicas * self._ranks <= loader.global_batch:
            loader.set_world(replica * self._ranks + self._rank, replicas * self._ranks)


def _loader() -> Any:
    live = sys.modules.get(_LIVE)
    return None if live is None else live.training_loader()
