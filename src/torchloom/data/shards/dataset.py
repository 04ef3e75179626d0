"""`ShardedDataset`: lines of text, JSONL or tokens in many files, each line once per epoch over all ranks.

    dataset = loom.ShardedDataset("s3://bucket/corpus", seed=1, transform=tokenize)
    loader = dataset.loader(batch_size=32, num_workers=2)

Owns the position of this rank in the epoch. Shards are dealt round-robin by rank and levelled (`deal`); after
a change of the world the unfinished ones are dealt again. Exactly once, but not the same global batches: for
those use `ElasticLoader`. `shards` does the reading.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset, get_worker_info

from torchloom.data.loader_state import checked, whole_number
from torchloom.data.order import Permutation
from torchloom.data.shards.cursor import Cursor, restored
from torchloom.data.shards.deal import Piece, deal
from torchloom.data.shards.left_out import Places
from torchloom.data.shards.reading import Shards
from torchloom.data.skipping import SkippedRun, Skips, merged
from torchloom.data.world import whereabouts
from torchloom.errors import UsageError

if TYPE_CHECKING:
    from torchloom.data.shards.loader import ShardedLoader


class ShardedDataset(IterableDataset):
    """The lines of this rank, from its position to the end of the epoch."""

    def __init__(
        self,
        uri: str | Path,
        *,
        seed: int = 0,
        shuffle: bool = True,
        window: int = 0,
        stride: int = 0,
        transform: Callable[[Any], Any] | None = None,
        rank: int | None = None,
        world: int | None = None,
        cache_dir: str | Path | None = None,
        cache_bytes: int = 8 << 30,
        verify: bool = False,
    ) -> None:
        """shuffle: shards in another order each epoch, and lines within each; else as the index has them.

        window, stride: for token shards, the tokens of a sample and from one sample to the next (default:
        window). transform: from a line to a sample; random numbers it draws belong to the line. verify: check
        local shards against the index when they are opened (fetched ones always are).
        """
        self.shards = Shards(str(uri), window, stride or window, cache_dir, cache_bytes, verify, transform)
        self._seed, self._shuffle = int(seed), bool(shuffle)
        self.skips = Skips()
        """Lines that are left out; a setting of the job where there is a `loader`."""
        self._cursor = Cursor(*whereabouts(rank, world))
        self._cursor.take(self._epoch_pieces(0))
        self._read_elsewhere: mmap.mmap | None = mmap.mmap(-1, 1)
        """A byte shared with forked data workers: set once one of them reads, because then nobody here
        knows what the training loop has consumed."""
        self._pickled = False

    @property
    def epoch(self) -> int:
        return self._cursor.epoch

    @property
    def lines(self) -> int:
        """Lines of the whole dataset."""
        return sum(self.shards.lines)

    def locate(self, index: int) -> tuple[str, int]:
        """The shard and the line in it, counted from 0, of an index as `ShardedLoader.indices` gives it."""
        if not 0 <= index < self.lines:
            raise UsageError(f"there is no line {index} in a dataset of {self.lines}")
        for shard, lines in zip(self.shards.index.shards, self.shards.lines, strict=True):
            if index < lines:
                return shard.name, index
            index -= lines
        raise AssertionError

    def loader(self, batch_size: int, **options: Any) -> ShardedLoader:
        """Batches of it, with data workers and a state that counts what the loop consumed."""
        from torchloom.data.shards.loader import ShardedLoader

        return ShardedLoader(self, batch_size, **options)

    # -- state -----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """This rank's position. All ranks' states together can be loaded by a world of another size."""
        if self._pickled or (self._read_elsewhere is not None and self._read_elsewhere[0]):
            raise UsageError(
                "a DataLoader's workers have read this dataset, and what they read ahead is not known here",
                hint="use dataset.loader(batch_size, num_workers=…) and its state_dict",
            )
        return self._state(self._cursor)

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue there: this rank's state, or a list with the states of all ranks of any world."""
        self._restore(state, None)

    def _state(self, cursor: Cursor) -> dict[str, Any]:
        facts = {"fingerprint": self.shards.fingerprint, "seed": self._seed, "shuffle": self._shuffle}
        ahead = cursor.ahead()
        at = [self.shards.index.shards[ahead[0].shard].name, ahead[0].start] if ahead else None
        # Of this epoch what was left out of the deal: what was set since counts from the next deal on.
        others = [run for run in self.skips.runs if run.epoch != cursor.epoch]
        runs = merged([*others, *(SkippedRun(cursor.epoch, *places) for places in cursor.skips)])
        return {**cursor.state(), **facts, "at": at, "skips": ",".join(map(str, runs))}

    def _restore(
        self,
        state: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        batch: int | None,
        skips: Places | None = None,
    ) -> None:
        states = [state] if isinstance(state, Mapping) else list(state)
        if not states:
            raise UsageError("there is no data state to load")
        seed = whole_number(states[0], "seed", None)
        for each in states:
            checked(each, "lines", fingerprint=self.shards.fingerprint, shuffle=self._shuffle, seed=seed)
        before, self._seed = self._seed, seed
        try:
            rank, world = self._cursor.rank, self._cursor.world
            self._cursor = restored(states, rank, world, batch, self.shards.lines, self._epoch_pieces, skips)
        except BaseException:
            self._seed = before
            raise
        self.skips.adopt(states[0].get("skips", ""))

    def _deal_again(self, batch: int) -> None:
        """Deal what is unread, in lockstep by this batch and without what is to be left out now."""
        self._restore(self._state(self._cursor), batch, self.skips.of(self.epoch))

    # -- reading ---------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """The rest of the epoch, line by line. In a plain DataLoader with data workers each gets its part."""
        worker = get_worker_info()
        if worker is not None:
            if self._read_elsewhere is not None:
                self._read_elsewhere[0] = 1
            pieces = deal(self._cursor.ahead(), worker.num_workers)[worker.id]
            for piece, ahead in with_next(pieces):
                yield from self.shards.stream(self._order_seed, self._seed, self.epoch, piece, ahead)
            return
        cursor = self._cursor
        for piece, ahead in with_next(cursor.ahead()):
            for line in self.shards.stream(self._order_seed, self._seed, cursor.epoch, piece, ahead):
                cursor.consumed += 1
                cursor.batch = None
                yield line
                if self._cursor is not cursor:
                    raise UsageError(
                        "the state was loaded inside the loop", hint="load it, then begin the loop"
                    )
        self._next_epoch()

    @property
    def _order_seed(self) -> int | None:
        return self._seed if self._shuffle else None

    def _next_epoch(self) -> None:
        last, epoch = self._cursor, self._cursor.epoch + 1
        cursor = Cursor(last.rank, last.world, epoch, batch=last.batch, skips=self.skips.of(epoch))
        cursor.take(self._epoch_pieces(epoch))
        self._cursor = cursor

    def _epoch_pieces(self, epoch: int) -> list[Piece]:
        return epoch_pieces(self.shards.lines, self._order_seed, epoch)

    def __getstate__(self) -> dict[str, Any]:
        # A spawned data worker gets a pickle of it. Whoever else copies it loses the right to a state: safe.
        self._pickled = True
        return {**self.__dict__, "_read_elsewhere": None}


def epoch_pieces(lines: Sequence[int], seed: int | None, epoch: int) -> list[Piece]:
    """A whole epoch: every shard with lines, in the epoch's order; `seed` is None for that of the index."""
    order = range(len(lines)) if seed is None else Permutation(len(lines), seed, epoch, "shards")
    return [Piece(shard, 0, lines[shard]) for shard in order if lines[shard]]


def with_next(pieces: Sequence[Piece]) -> Iterator[tuple[Piece, int | None]]:
    """Each piece with the shard that comes after its own, which is worth fetching already."""
    for number, piece in enumerate(pieces):
        later = (other.shard for other in pieces[number + 1 : number + 8] if other.shard != piece.shard)
        yield piece, next(later, None)
