"""How far a rank is in an epoch of line shards, as a state that can be saved and dealt again. Pure.

The state of a rank names the pieces that were dealt to its world and the lines it has consumed of its hand.
The states of all ranks are the global cursor table. Ranks that move in lockstep (`ShardedLoader` gives every
rank one batch a step) need no table: (step, batch) determines what all of them have consumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchloom.data.loader_state import VERSION, checked, whole_number
from torchloom.data.shards.deal import Piece, deal, gathered, left_over, rest, total
from torchloom.data.shards.left_out import Places, apart
from torchloom.data.skipping import parse
from torchloom.errors import UsageError


@dataclass
class Cursor:
    """A rank's place in the epoch."""

    rank: int
    world: int
    epoch: int = 0
    dealt: list[Piece] | None = None
    """What was there to deal to the world, with what is left out; None means the whole epoch."""
    consumed: int = 0
    """Lines of this rank's hand that its training loop has taken."""
    batch: int | None = None
    """The batch of every rank, if they move in lockstep."""
    step: int = 0
    """Batches taken since the deal, in lockstep."""
    skips: Places = ()
    """What was left out of the deal."""
    hand: list[Piece] = field(default_factory=list)
    """This rank's pieces. Filled by `take`."""
    loads: list[int] = field(default_factory=list)
    """Lines of every rank's hand. Filled by `take`."""

    def take(self, epoch_pieces: list[Piece]) -> None:
        """Deal: `epoch_pieces` is what a fresh epoch consists of."""
        hands = self.hands(epoch_pieces)
        self.hand, self.loads = hands[self.rank], [total(hand) for hand in hands]
        if self.consumed > self.loads[self.rank]:
            raise UsageError(
                f"the data state says {self.consumed} lines were read of {self.loads[self.rank]}"
            )

    def hands(self, epoch_pieces: list[Piece]) -> list[list[Piece]]:
        """The pieces of every rank, as they were dealt."""
        pieces = epoch_pieces if self.dealt is None else self.dealt
        return deal(apart(pieces, epoch_pieces, self.skips)[0], self.world)

    def ahead(self) -> list[Piece]:
        """What this rank has not read."""
        return rest(self.hand, self.consumed)

    def state(self) -> dict[str, Any]:
        return {
            "kind": "lines",
            "version": VERSION,
            "epoch": self.epoch,
            "rank": self.rank,
            "world": self.world,
            "dealt": None if self.dealt is None else [list(piece) for piece in self.dealt],
            "consumed": self.consumed,
            "batch": self.batch,
            "step": self.step,
        }


def table(states: Sequence[Mapping[str, Any]], loads: Sequence[int]) -> list[int]:
    """Lines consumed by each rank of the old world: from all states, or from one that is in lockstep."""
    world = len(loads)
    by_rank = {whole_number(state, "rank", world - 1): state for state in states}
    if len(by_rank) == world:
        return [whole_number(by_rank[rank], "consumed", loads[rank]) for rank in range(world)]
    if states[0].get("batch") is None:
        raise UsageError(
            f"the data states of {len(by_rank)} of {world} ranks do not say what the others have read",
            hint="give load_state_dict a list with the states of all ranks",
        )
    taken = whole_number(states[0], "step", None) * whole_number(states[0], "batch", None)
    return [min(taken, load) for load in loads]


def restored(
    states: Sequence[Mapping[str, Any]],
    rank: int,
    world: int,
    batch: int | None,
    lines: Sequence[int],
    fresh: Callable[[int], list[Piece]],
    skips: Places | None = None,
) -> Cursor:
    """The cursor of this rank: exactly where it was if nothing changed, else dealt again.

    `fresh(epoch)` gives the pieces of a whole epoch, `lines` the lines of each shard. `skips` is what is to
    be left out of the epoch; None: what the state left out.
    """
    for state in states:
        checked(state, "lines")
        for name in ("epoch", "world", "dealt", "batch", "skips"):
            if state.get(name) != states[0].get(name):
                raise UsageError(f"the ranks' data states disagree on {name}", hint="take them at one step")
    first = states[0]
    epoch, old_world = whole_number(first, "epoch", None), whole_number(first, "world", None)
    if not 1 <= old_world <= 1_000_000:
        raise UsageError(f"a world of {old_world} in the data state is impossible")
    dealt = None if first.get("dealt") is None else [_piece(raw, lines) for raw in first["dealt"]]
    whole, skipped = fresh(epoch), left_out_of(first, epoch)
    before, out = apart(whole if dealt is None else dealt, whole, skipped)
    loads = [total(hand) for hand in deal(before, old_world)]
    skips = skipped if skips is None else skips
    # Every rank must come to the same conclusion here, whichever states it was given.
    step = whole_number(first, "step", None)
    in_step = all(state.get("step") == step for state in states)
    if old_world == world and first.get("batch") == batch and in_step and skips == skipped:
        own = [state for state in states if state.get("rank") == rank]
        consumed = whole_number(own[0], "consumed", loads[rank]) if own else table(states, loads)[rank]
        cursor = Cursor(rank, world, epoch, dealt, consumed, batch, step, skips)
    else:
        read = table(states, loads)
        if any(read):
            # What was left out is there again, should somebody want it back.
            order = {piece.shard: number for number, piece in enumerate(whole)}
            dealt = gathered([*left_over(before, read), *out], order)
        cursor = Cursor(rank, world, epoch, dealt, 0, batch, 0, skips)
    cursor.take(whole)
    return cursor


def left_out_of(state: Mapping[str, Any], epoch: int) -> Places:
    """The places of an epoch that a state says are left out; one from before there was such a thing: none."""
    text = state.get("skips", "")
    if not isinstance(text, str):
        raise UsageError("the data state does not say what is skipped")
    return tuple((run.start, run.stop) for run in parse(text) if run.epoch == epoch)


def _piece(raw: Any, lines: Sequence[int]) -> Piece:
    whole = isinstance(raw, (list, tuple)) and len(raw) == 3 and all(type(n) is int for n in raw)
    if not whole or not 0 <= raw[0] < len(lines) or not 0 <= raw[1] <= raw[2] <= lines[raw[0]]:
        raise UsageError("the data state names lines that do not exist")
    return Piece(*raw)
