"""`ElasticLoader`: any map-style dataset, the same global batches whatever the number of ranks.

    loader = loom.ElasticLoader(dataset, global_batch=256, seed=1, num_workers=4)
    while loader.epoch < epochs:
        for batch in loader:
            loss = criterion(model(batch)) * loader.weight
            ...

The order is a function of (seed, epoch) and the global batch only; a rank takes a contiguous share of each
global batch. The position is counted in samples of the whole world and moves when the training loop takes a
batch, not when a data worker reads ahead. Underneath is a torch DataLoader, which does the reading; this
class owns the position and nothing else. The checkpoint saves it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from torchloom.core.config.batch_shares import BatchShares, LightRanks
from torchloom.data import live
from torchloom.data.asked import AskedSamples, Wanted
from torchloom.data.batch import GlobalBatch
from torchloom.data.loader_state import checked, whole_number
from torchloom.data.order import Permutation, light_share, seed_of, spans, weight
from torchloom.data.randomness import SEEDED, WORDS
from torchloom.data.shares import ShareSetting
from torchloom.data.skipping import SkippedRun, Skips
from torchloom.data.transforms import Pipeline, Transforms
from torchloom.data.world import whereabouts
from torchloom.errors import UsageError

OWNED = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "generator")
"""Options of DataLoader that decide the order and therefore are not the caller's."""
_AT_ONCE, _AT_MOST = 16384, 262144
"""Places whose samples are looked up together: so many at first, so that a loop begins soon, then more and
more, because a look-up costs 2 ms and little more for each place."""


@dataclass(frozen=True, slots=True)
class Portion:
    """One rank's part of one global batch; the numbers are places in the order of the epoch."""

    epoch: int
    start: int
    stop: int
    """The global batch."""
    first: int
    last: int
    """This rank's share: from `first` to before `last`. Empty if the batch has fewer samples than ranks."""
    weight: float
    """Multiply the mean loss of this rank by it, and the mean over ranks is the mean over samples."""
    global_batch: int
    """What it was planned with: stop − start, but for a short last batch."""


class ElasticLoader:
    """Batches of a map-style dataset in an order that does not depend on the number of ranks."""

    def __init__(
        self,
        dataset: Any,
        global_batch: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        seed_samples: bool = True,
        transforms: Transforms | None = None,
        rank: int | None = None,
        world: int | None = None,
        **loader_options: Any,
    ) -> None:
        """`loader_options` go to torch's DataLoader: num_workers, collate_fn, pin_memory, …

        drop_last leaves out the samples after the last full global batch of an epoch. Without it the last
        batch is short: `weight` makes that exact, and a rank that gets no sample of it is given the batch's
        first one with weight 0, because a rank that skips a step would hang the others. transforms are
        applied to each sample where it is read; they and the global batch may be changed while training.
        """
        for name in OWNED:
            if name in loader_options:
                raise UsageError(f"ElasticLoader decides {name} itself", hint="leave it out")
        if not loader_options.get("in_order", True):
            raise UsageError("in_order=False gives another order each time", hint="leave it out")
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise UsageError(
                "ElasticLoader needs a dataset with len() and [index]",
                hint="use loom.ShardedDataset for a stream of lines",
            )
        self._length = len(dataset)
        self._seed, self._shuffle, self._drop_last = int(seed), bool(shuffle), bool(drop_last)
        self.follows_replicas = rank is None and world is None
        """Whether replicas of a torchft job share each global batch, as many as there are at the moment."""
        self._rank, self._world = whereabouts(rank, world)
        self._global_batch = self._fitting(global_batch, self._world)
        self._transforms = transforms
        self._epoch = 0
        self._position = 0
        self._numbers = WORDS
        self._in_hand: tuple[int, int, _Settings] | None = None
        self.taken = 0
        """Batches that the loop has taken from this object, whatever they were."""
        self._revision = 0
        self._reader: object = None
        self._plan = _Plan()
        # A generator of its own, because DataLoader otherwise draws from torch's global one whenever an
        # iteration begins: a resumed run, which begins once more, would train with another dropout.
        generator = torch.Generator().manual_seed(seed_of(self._seed, "loader"))
        self._loader: Any = DataLoader(
            AskedSamples(dataset, seed_samples, transforms),
            batch_sampler=self._plan,
            generator=generator,
            **loader_options,
        )
        self.batch = GlobalBatch(self)
        """The global batch as a setting."""
        live.offer("batch_size", self.batch)
        self.skips = Skips()
        """Samples that are left out, as a setting."""
        live.offer("skipped_data", self.skips)
        live.train_with(self)
        self.shares = BatchShares()
        """Ranks that take fewer samples of each step than the others."""
        self._share_setting = ShareSetting(self)
        self._weight_taken = self._weighed = False

    # -- where we are ----------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The epoch of the next batch; an epoch ends when its last batch has been worked on."""
        return self._epoch

    @property
    def position(self) -> int:
        """Samples of this epoch that the training loops of all ranks together have taken."""
        return self._position

    @property
    def global_batch(self) -> int:
        return self._global_batch

    @property
    def batch_in_hand(self) -> int:
        """The global batch that the batch in the loop's hands is one of: another may be set already."""
        return self._global_batch if self._in_hand is None else self._in_hand[2].global_batch

    @property
    def portion(self) -> Portion | None:
        """What the batch in the loop's hands is; None outside of the loop."""
        return None if self._in_hand is None else self._portion_of(*self._in_hand)

    @property
    def weight(self) -> float:
        """The gradient weight of the batch in the loop's hands: 1.0 if the batch divides evenly."""
        if not self._weight_taken:
            self._weight_taken = True
            if (self._rank, self._world) == whereabouts(None, None):
                # Not sooner, and only where our ranks are the job's: else shares would change the result.
                live.offer("shares", self._share_setting)
        portion = self.portion
        return 1.0 if portion is None else portion.weight

    @property
    def is_weighed(self) -> bool:
        """Whether the script took the weight of this batch or of the one before it."""
        return self._weight_taken or self._weighed

    @property
    def world(self) -> int:
        """How many ranks share a batch."""
        return self._world

    def indices(self) -> list[int]:
        """The dataset's indices of the batch in the loop's hands, for a log of samples."""
        portion = self.portion
        if portion is None:
            return []
        places, order = range(portion.first, portion.last), self._order(portion.epoch)
        return list(places) if order is None else order.at(places)

    def __len__(self) -> int:
        """Global batches of a whole epoch."""
        whole, more = divmod(self._length, self._global_batch)
        return whole + (more > 0 and not self._drop_last)

    # -- changing it -----------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; where it already is in that epoch it stays where it is."""
        if epoch != self._epoch:
            self._epoch, self._position = epoch, 0
            self._moved()

    def set_global_batch(self, global_batch: int) -> None:
        """From the next batch on take so many samples; no sample is lost or repeated."""
        self._global_batch = self._fitting(global_batch, self._world)

    def check_global_batch(self, global_batch: int) -> None:
        """Raises UsageError if it cannot be set."""
        self._fitting(global_batch, self._world)

    def set_world(self, rank: int, world: int) -> None:
        """From the next batch on be this rank of that many."""
        rank, world = whereabouts(rank, world)
        self._fitting(self._global_batch, world)
        self._rank, self._world = rank, world

    def pass_over(self) -> None:
        """Leave out the next global batch: others have trained with it."""
        skips = self.skips.of(self._epoch)
        coming = spans(self._length, self._position, self._global_batch, self._drop_last, skips)
        if (batch := next(coming, None)) is None:
            self._epoch, self._position = self._epoch + 1, 0
            self.pass_over()
            return
        self._position = batch[1]
        self._moved()

    def state_dict(self, *, include_current: bool = True) -> dict[str, Any]:
        """The position: equal on all ranks, and good for any number of them.

        The batch in the loop's hands counts as consumed, as after the optimizer's step. Give
        `include_current=False` for a state from before that step.
        """
        position = self._position
        if not include_current and self._in_hand is not None:
            position = self._in_hand[0]
        return {
            "kind": "map",
            "version": 1,
            "seed": self._seed,
            "shuffle": self._shuffle,
            "length": self._length,
            "epoch": self._epoch,
            "position": position,
            "numbers": self._numbers,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue there. The seed is the state's; the global batch and the world are the caller's."""
        checked(state, "map", length=self._length, shuffle=self._shuffle)
        seed, epoch = whole_number(state, "seed", None), whole_number(state, "epoch", None)
        position = whole_number(state, "position", self._length)
        numbers = whole_number(state, "numbers", WORDS) if "numbers" in state else SEEDED
        self._seed, self._epoch, self._position, self._numbers = seed, epoch, position, numbers
        self._moved()

    # -- reading ---------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """The rest of the epoch. After a `break` the next loop continues with the next batch."""
        reader = self._reader = object()
        while True:
            revision, settings = self._revision, self._settings()
            skips = self.skips.of(self._epoch)
            places = spans(self._length, self._position, self._global_batch, self._drop_last, skips)
            self._plan.begin(self, self._position)
            batches = iter(self._loader)
            for start, stop in places:
                batch = next(batches)
                self._position = stop
                self.taken += 1
                self._in_hand = start, stop, settings
                self._weighed, self._weight_taken = self._weight_taken, False
                self.skips.note(self._epoch, start, stop)
                yield batch
                if self._reader is not reader:
                    raise UsageError(
                        "another loop over this loader has started", hint="use one loop at a time"
                    )
                self._in_hand = None
                if self._revision != revision or self._settings() != settings:
                    break  # the batches read ahead are no longer wanted
            else:
                self._epoch, self._position = self._epoch + 1, 0
                return

    def _settings(self) -> _Settings:
        """How batches are made; the position decides where they begin."""
        pipeline = self._transforms.pipeline if self._transforms is not None else ()
        light = self.shares.of(self._world)
        return _Settings(self._global_batch, self._rank, self._world, pipeline, self.skips.runs, light)

    def _portion_of(self, start: int, stop: int, made: _Settings) -> Portion:
        first, last = light_share(stop - start, made.rank, made.world, made.light)
        part = weight(last - first, stop - start, made.world)
        return Portion(self._epoch, start, stop, start + first, start + last, part, made.global_batch)

    def _order(self, epoch: int) -> Permutation | None:
        return Permutation(self._length, self._seed, epoch) if self._shuffle else None

    def _moved(self) -> None:
        self._revision += 1

    @staticmethod
    def _fitting(global_batch: int, world: int) -> int:
        if global_batch < world:
            raise UsageError(
                f"a global batch of {global_batch} cannot feed {world} ranks",
                hint="take a larger global batch or fewer ranks",
            )
        return global_batch


class _Settings(NamedTuple):
    """All that decides how the samples from a position on become batches of this rank."""

    global_batch: int
    rank: int
    world: int
    pipeline: Pipeline
    skips: tuple[SkippedRun, ...]
    light: LightRanks


class _Begun(NamedTuple):
    """Where an iteration begins, and in what."""

    position: int
    seed: int
    epoch: int
    numbers: int
    length: int
    drop_last: bool


class _Plan:
    """The batch sampler: which samples come in which batch, from the loader's position on."""

    def __init__(self) -> None:
        self._begun: Iterator[Wanted] = iter(())

    def begin(self, loader: ElasticLoader, position: int) -> None:
        # Without the loader itself, see GlobalBatch: an iteration that was broken off would keep it alive.
        key = loader._seed, loader._epoch, loader._numbers
        begun = _Begun(position, *key, loader._length, loader._drop_last)
        self._begun = self._batches(begun, loader._order(loader._epoch), loader._settings())

    def __iter__(self) -> Iterator[Wanted]:
        return self._begun

    @staticmethod
    def _batches(begun: _Begun, order: Permutation | None, made: _Settings) -> Iterator[Wanted]:
        # Everything is an argument: data workers read ahead while the loop may already have moved.
        skips = [(run.start, run.stop) for run in made.skips if run.epoch == begun.epoch]
        batches: list[range] = []
        waiting, at_once, count = 0, _AT_ONCE, 0
        for start, stop in spans(begun.length, begun.position, made.global_batch, begun.drop_last, skips):
            if stop - start != count:
                count = stop - start
                first, last = light_share(count, made.rank, made.world, made.light)
                if first == last:
                    first, last = 0, 1
            batches.append(range(start + first, start + last))
            waiting += last - first
            if waiting >= at_once:
                yield from _wanted(batches, order, begun, made.pipeline)
                batches, waiting, at_once = [], 0, min(2 * at_once, _AT_MOST)
        yield from _wanted(batches, order, begun, made.pipeline)


def _wanted(
    batches: list[range], order: Permutation | None, begun: _Begun, pipeline: Pipeline
) -> Iterator[Wanted]:
    found = map(list, batches) if order is None else order.of(batches)
    for indices in found:
        yield Wanted(begun.seed, begun.epoch, begun.numbers, pipeline, indices)
