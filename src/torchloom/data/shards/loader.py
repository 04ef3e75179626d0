"""`ShardedLoader`: batches of a `ShardedDataset`, one per rank and step, with data workers.

The training process decides which lines come in which batch; data workers only read the lines they are given.
So the order does not depend on how many there are or how fast, and the position is what the loop has taken,
not what was read ahead. Every rank takes the same number of steps: at the very end of an epoch a rank may
have no line left while others have one, and gets a batch with weight 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import accumulate
from typing import Any

import torch
from torch.utils.data import DataLoader

from torchloom.data import live
from torchloom.data.batch import GlobalBatch
from torchloom.data.loader import OWNED
from torchloom.data.order import seed_of, weight
from torchloom.data.shards.cursor import Cursor
from torchloom.data.shards.dataset import ShardedDataset, epoch_pieces, with_next
from torchloom.data.shards.deal import Piece, batches, part, rest
from torchloom.data.shards.left_out import first_places, places_of
from torchloom.data.shards.reading import Shards
from torchloom.data.skipping import SkippedRun
from torchloom.data.transforms import Pipeline, Transforms
from torchloom.errors import UsageError

Task = tuple[int | None, int, int, Piece, int | None, Pipeline | None]
"""What `Shards.read` is asked."""


class ShardedLoader:
    """The rest of the epoch in batches of `batch_size` lines for each rank."""

    def __init__(
        self, dataset: ShardedDataset, batch_size: int, *, drop_last: bool = False, **loader_options: Any
    ) -> None:
        """`loader_options` go to torch's DataLoader: num_workers, collate_fn, pin_memory, …

        drop_last ends the epoch before the first step in which some rank would have less than a full batch.
        """
        for name in OWNED:
            if name in loader_options:
                raise UsageError(f"ShardedLoader decides {name} itself", hint="leave it out")
        if not loader_options.get("in_order", True):
            raise UsageError("in_order=False gives another order each time", hint="leave it out")
        if batch_size < 1:
            raise UsageError(f"a batch of {batch_size} lines is impossible")
        if not dataset.lines:
            raise UsageError("the dataset has no lines")
        self._dataset, self._batch, self._drop_last = dataset, batch_size, drop_last
        self._wanted = batch_size
        self._weight = 1.0
        self._in_hand = False
        self._revision = 0
        self._reader: object = None
        self._plan = _Plan()
        generator = torch.Generator().manual_seed(seed_of(dataset._seed, "loader"))
        self._loader: Any = DataLoader(
            _Asked(dataset.shards), batch_sampler=self._plan, generator=generator, **loader_options
        )
        self.batch = GlobalBatch(self)
        """The global batch as a setting."""
        live.offer("batch_size", self.batch)
        self.skips = dataset.skips
        """Lines that are left out, as a setting."""
        live.offer("skipped_data", self.skips)
        self._in_lockstep()
        if loader_options.get("num_workers"):
            dataset.shards.close()  # the data workers read; each has a fetching process of its own

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self._dataset.epoch

    @property
    def step(self) -> int:
        """Batches taken since the shards were dealt: at the start of the epoch or at the last resize."""
        return self._dataset._cursor.step

    @property
    def global_batch(self) -> int:
        """Lines of one step, over all ranks."""
        return self._wanted * self._dataset._cursor.world

    @property
    def batch_in_hand(self) -> int:
        """The global batch that the batch in the loop's hands is one of: another may be set already."""
        return self._batch * self._dataset._cursor.world if self._in_hand else self.global_batch

    @property
    def weight(self) -> float:
        """Multiply the mean loss by it, and the mean over ranks is the mean over lines. Mostly 1.0."""
        return self._weight

    def indices(self) -> list[int]:
        """The lines of the batch in the loop's hands, for a log of samples: each counted from the first line
        of the first shard of the index, whatever the order. `dataset.locate` gives shard and line."""
        if not self._in_hand:
            return []
        dataset, cursor = self._dataset, self._dataset._cursor
        before = min((cursor.step - 1) * self._batch, cursor.loads[cursor.rank])
        first = list(accumulate(dataset.shards.lines, initial=0))
        return [
            first[piece.shard] + number
            for piece in next(batches(rest(cursor.hand, before), self._batch), [])
            for number in dataset.shards.numbers(dataset._order_seed, cursor.epoch, piece)
        ]

    def __len__(self) -> int:
        """Steps of this epoch, from the last deal on; the same on every rank."""
        loads = self._dataset._cursor.loads
        return min(loads) // self._batch if self._drop_last else -(-max(loads) // self._batch)

    def state_dict(self, *, include_current: bool = True) -> dict[str, Any]:
        """The position. One rank's is enough to continue with another number of ranks or another batch,
        because all of them have taken as many batches.

        The batch in the loop's hands counts as consumed, as after the optimizer's step. Give
        `include_current=False` for a state from before that step.
        """
        cursor = self._dataset._cursor
        if not include_current and self._in_hand:
            step = cursor.step - 1
            consumed = min(step * self._batch, cursor.loads[cursor.rank])
            cursor = replace(cursor, step=step, consumed=consumed)
        return self._dataset._state(cursor)

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue there: a state of any rank, or of all of them in a list, of any world."""
        self._dataset._restore(state, self._batch)
        self._revision, self._in_hand = self._revision + 1, False

    def set_batch_size(self, batch_size: int) -> None:
        """From the next batch on take so many lines; what is left of the epoch is dealt again."""
        if batch_size < 1:
            raise UsageError(f"a batch of {batch_size} lines is impossible")
        self._wanted = batch_size
        if not self._in_hand:
            self._take_batch()

    def check_global_batch(self, global_batch: int) -> None:
        """Raises UsageError if it cannot be set."""
        world = self._dataset._cursor.world
        if global_batch < world or global_batch % world:
            raise UsageError(
                f"a batch of {global_batch} lines cannot be dealt to {world} ranks in equal numbers",
                hint=f"give a multiple of {world}",
            )

    def set_global_batch(self, global_batch: int) -> None:
        """From the next batch on let all ranks together take so many lines."""
        self.check_global_batch(global_batch)
        self.set_batch_size(global_batch // self._dataset._cursor.world)

    def _take_batch(self) -> None:
        """Let the wanted size hold. Not while a batch is in the loop's hands: it is counted in its own."""
        self._batch = self._wanted
        self._in_lockstep()

    def __iter__(self) -> Iterator[Any]:
        """The rest of the epoch. After a `break` the next loop continues with the next batch."""
        reader = self._reader = object()
        while True:
            self._take_batch()
            revision, cursor = self._revision, self._dataset._cursor
            pipeline, skips = self._pipeline, self.skips.runs
            deal = _Deal(self._dataset.shards.lines, self._dataset._order_seed, cursor)
            load, loads = cursor.loads[cursor.rank], Counter(cursor.loads)
            self._plan.begin(_tasks(self._dataset, self._batch, range(cursor.step, len(self)), pipeline))
            taken = iter(self._loader)
            for step in range(cursor.step, len(self)):
                batch = next(taken)
                own = _clamped(load - step * self._batch, self._batch)
                everyone = sum(
                    _clamped(n - step * self._batch, self._batch) * times for n, times in loads.items()
                )
                self._weight = weight(own, everyone, cursor.world)
                cursor.step, cursor.consumed = step + 1, min((step + 1) * self._batch, load)
                self._in_hand = True
                self.skips.note_that(partial(deal.places, step, self._batch))
                yield batch
                self._in_hand = False
                if self._reader is not reader:
                    raise UsageError(
                        "another loop over this loader has started", hint="use one loop at a time"
                    )
                changed = self._wanted != self._batch or self._pipeline != pipeline
                changed = changed or self.skips.runs != skips
                if changed or self._revision != revision:
                    break  # the batches read ahead are no longer wanted
            else:
                self._dataset._next_epoch()
                return

    @property
    def _pipeline(self) -> Pipeline | None:
        """What `Transforms` do now, if the dataset has any."""
        transform = self._dataset.shards.transform
        return transform.pipeline if isinstance(transform, Transforms) else None

    def _in_lockstep(self) -> None:
        """Make the dataset's cursor count in our batches and leave out what is to be: if it does not, deal
        again what is unread."""
        cursor = self._dataset._cursor
        if cursor.consumed == 0 and cursor.step == 0:
            cursor.batch = self._batch
        if cursor.batch != self._batch or cursor.skips != self.skips.of(cursor.epoch):
            self._dataset._deal_again(self._batch)


class _Plan:
    """The batch sampler: hands out the tasks of the iteration that has begun."""

    def __init__(self) -> None:
        self._tasks: Iterator[list[Task]] = iter(())

    def begin(self, tasks: Iterator[list[Task]]) -> None:
        self._tasks = tasks

    def __iter__(self) -> Iterator[list[Task]]:
        return self._tasks


class _Asked:
    """What the data workers hold."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    def __getitems__(self, tasks: list[Task]) -> list[Any]:
        return [sample for task in tasks for sample in self._shards.read(*task)]


def _tasks(
    dataset: ShardedDataset, batch: int, steps: range, pipeline: Pipeline | None
) -> Iterator[list[Task]]:
    """What the data workers are asked for, step by step. (Knows no loader, see GlobalBatch.)"""
    epoch, order, base = dataset.epoch, dataset._order_seed, dataset._seed
    after = {piece.shard: later for piece, later in with_next(dataset._cursor.hand)}
    ahead = batches(dataset._cursor.ahead(), batch)
    some = next(number for number, lines in enumerate(dataset.shards.lines) if lines)
    for _ in steps:
        # A rank without lines reads any one, because a batch must have the usual shape; its weight is 0.
        pieces = next(ahead, [Piece(some, 0, 1)])
        yield [(order, base, epoch, piece, after.get(piece.shard), pipeline) for piece in pieces]


class _Deal:
    """What all ranks were dealt. Knows no loader: notes of batches must not keep one alive."""

    def __init__(self, lines: Sequence[int], seed: int | None, cursor: Cursor) -> None:
        self._lines, self._seed, self._cursor = lines, seed, cursor

    def places(self, step: int, batch: int) -> list[SkippedRun]:
        """What they took together as this batch."""
        first, hands = self._dealt
        pieces = [piece for hand in hands for piece in part(hand, step * batch, (step + 1) * batch)]
        return [SkippedRun(self._cursor.epoch, *places) for places in places_of(pieces, first)]

    @cached_property
    def _dealt(self) -> tuple[dict[int, int], list[list[Piece]]]:
        fresh = epoch_pieces(self._lines, self._seed, self._cursor.epoch)
        return first_places(fresh), self._cursor.hands(fresh)


def _clamped(value: int, most: int) -> int:
    return max(0, min(value, most))
