"""After a restore: do the script's objects hold what was saved?

Owns that comparison. Checksums prove that bytes were read as they were written; they say nothing about what
the script got. So once everything is loaded, the state is taken from the live objects again, as a save would
take it, and compared with the image it came from, whose bytes are read once more from where they are kept; of
a sample from a store, they are copied when they pass by, because a far store takes a while for each.

`LOOM_RESTORE_CHECK` says how much. `all`: every byte and every plain value. `sample`, which is the default:
some windows of each image, at other places with every checkpoint, and the random number generators whole.
`off`: nothing. A difference in what torch itself loads (models, optimizers) or in the generators is an error,
because the training would continue from another state. An object of the script may keep something else than
it was given, by its own right: with `sample` that is reported, with `all` it is an error, too. What has
another dtype or shape than it was saved with was converted, and is not compared.
"""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from torchloom.checkpoint.state.resharding import Box
from torchloom.checkpoint.state.threads import work_on
from torchloom.checkpoint.state.tree import DTYPES, Encoder, Record, told
from torchloom.errors import CheckpointDamaged, RestoreDiffers, StorageFailed

WINDOWS = 8
"""Places of an image that a sample looks at: as many reads from a store."""
WINDOW = 128 << 10
PIECE = 8 << 20
"""What is compared at once where everything is."""
MOST_SHOWN = 5
_TENSORS = frozenset(("$tensor", "$parameter", "$wanted", "$ndarray", "$array", "$quantised"))
Place = tuple[object, ...]


@dataclass(frozen=True)
class ComparedPart:
    """A part of the training: what was saved of it and what it holds now."""

    name: str
    tree: Any
    image: Any
    """Reading or Streamed, which `tree` is from."""
    state: Any
    surely: bool
    """What it holds must be what it was given."""
    plain: bool = True
    """Its plain values count, too; not if they were dealt anew, because the world is another."""
    whole: bool = False
    """All of it is compared, also in a sample."""
    own: Mapping[str, tuple[Any, Record]] = field(default_factory=dict)
    """Tensors of it that came from another image, by name."""


def how_much() -> str:
    return os.environ.get("LOOM_RESTORE_CHECK", "").strip() or "sample"


def loaded_by_torch(inner: Any) -> bool:
    """Does nothing but torch's own code take part in its load_state_dict?"""
    if isinstance(inner, Optimizer):
        loads = [type(inner).load_state_dict]
        modules: list[Any] = [inner]
        names = ("_optimizer_load_state_dict_pre_hooks", "_optimizer_load_state_dict_post_hooks")
    elif isinstance(inner, nn.Module):
        modules = list(inner.modules())
        loads = [type(inner).load_state_dict, *(type(module)._load_from_state_dict for module in modules)]
        names = ("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")
    else:
        return False
    hooks = [hook for module in modules for name in names for hook in getattr(module, name, {}).values()]
    functions = [*loads, *(getattr(hook, "hook", hook) for hook in hooks)]
    return all(str(getattr(function, "__module__", "")).startswith("torch.") for function in functions)


def sampled(records: Sequence[Record], seed: str) -> list[tuple[int, int]]:
    """The windows of an image that a sample compares, by its records; counted from the first tensor on."""
    found = [(int(record["at"]), size) for record in records if (size := _size(record))]
    first, last = min((at for at, _ in found), default=0), max((at + size for at, size in found), default=0)
    if last - first <= WINDOWS * WINDOW:
        return [(at, at + WINDOW) for at in range(first, last, WINDOW)]
    draw = random.Random(seed)
    chosen = draw.sample(found, min(WINDOWS, len(found)))  # small tensors count like large ones
    starts = [draw.randrange(at, at + size) // WINDOW * WINDOW for at, size in chosen]
    return [(at, at + WINDOW) for at in dict.fromkeys(starts)]


def _size(record: Record) -> int:
    return int(math.prod(record["shape"]) * DTYPES[record["dtype"]].itemsize)


def compare(
    parts: list[ComparedPart], same_world: bool, everyone: Callable[[], Iterator[Any]], seed: str
) -> list[str]:
    """The places at which an object of the script holds something else. Raises RestoreDiffers."""
    comparison = _Comparison(same_world, seed)
    for part in parts:
        comparison.add(part)
    # On this thread alone: torch would call its others to compare one small window.
    work_on(1, lambda _: comparison.compare_bytes())
    comparison.compare_boxes(everyone)
    everything = how_much() == "all"
    errors = [text for text, surely in comparison.wrong if surely or everything]
    if errors:
        more = f" and {len(errors) - MOST_SHOWN} more" if len(errors) > MOST_SHOWN else ""
        raise RestoreDiffers(
            f"after the restore {', '.join(errors[:MOST_SHOWN])}{more} is not what was saved",
            hint="report this; LOOM_RESTORE_CHECK=off restores without comparing",
        )
    return [text for text, _ in comparison.wrong]


@dataclass(frozen=True)
class _Pair:
    """A tensor that was saved and the one that is there now."""

    record: Record
    live: torch.Tensor
    surely: bool
    whole: bool
    start: int
    stop: int
    """Its bytes in the image, counted from the first tensor on."""


class _Comparison:
    def __init__(self, same_world: bool, seed: str) -> None:
        self._same_world, self._seed = same_world, seed
        self._everything = how_much() == "all"
        self._pairs: dict[int, tuple[Any, list[_Pair]]] = {}
        self._boxes: list[tuple[Box, bool]] = []
        self.wrong: list[tuple[str, bool]] = []

    def add(self, part: ComparedPart) -> None:
        """Find what is to be compared; plain values are compared at once."""
        encoder = Encoder()
        now = dict(_leaves(encoder.encode(part.state, (part.name,)), encoder.objects))
        for place, (tag, saved) in _leaves(part.tree, part.image.objects):
            there = now.get(place)
            if tag not in _TENSORS:
                same = json.dumps(there) == json.dumps((tag, saved))
                if part.plain and not same and (self._everything or part.whole):
                    self.wrong.append((told((part.name, *place)), part.surely))
            elif there is None or there[0] not in _TENSORS:
                if self._everything:
                    self.wrong.append((told((part.name, *place)), part.surely))
            else:
                for mine, its in zip(_numbers(*there), _numbers(tag, saved), strict=False):
                    image, record = part.image, part.image.records[its]
                    if len(place) <= 2 and place[-1:] and str(place[-1]) in part.own:
                        image, record = part.own[str(place[-1])]
                    self._tensor(image, record, encoder.records[mine], encoder.tensors[mine], part)

    def _tensor(self, image: Any, saved: Record, now: Record, live: torch.Tensor, part: ComparedPart) -> None:
        sharded = "whole" in saved or "whole" in now
        if saved["dtype"] != now["dtype"] or saved.get("whole", saved["shape"]) != now.get(
            "whole", now["shape"]
        ):
            return
        if saved["shape"] == now["shape"] and (
            not sharded or (self._same_world and saved.get("offset") == now.get("offset"))
        ):
            at, size = int(saved["at"]), int(live.numel() * live.element_size())
            if not self._everything and not live.is_contiguous() and size > PIECE:
                return  # to read it in order takes a copy of all of it
            pair = _Pair(saved, live, part.surely, part.whole, at, at + size)
            self._pairs.setdefault(id(image), (image, []))[1].append(pair)
        elif self._everything:
            offset = tuple(now.get("offset", [0] * live.dim()))
            self._boxes.append((Box(saved["path"], live, offset), part.surely))

    def compare_bytes(self) -> None:
        """Read windows of the images again; a window that differs is read twice."""
        for image, pairs in self._pairs.values():
            pairs = sorted((pair for pair in pairs if pair.live.numel()), key=lambda pair: pair.start)
            wrong: dict[str, bool] = {}
            try:
                for (start, stop), window in self._read(image, self._windows(image, pairs)):
                    near = [pair for pair in pairs if pair.start < stop and start < pair.stop]
                    if any(True for _ in _unequal(near, window, start)):
                        wrong |= {
                            pair.record["path"]: pair.surely
                            for pair in _unequal(near, image.bytes_of(start, stop), start)
                        }
            except (StorageFailed, CheckpointDamaged):
                if self._everything:  # a sample is not worth a restore that has succeeded
                    raise
            self.wrong += wrong.items()

    def _read(
        self, image: Any, windows: Iterator[tuple[int, int]]
    ) -> Iterable[tuple[tuple[int, int], torch.Tensor]]:
        """The bytes of windows; those of a sample all at once, because a far store takes a while for each."""
        if self._everything or image.reads_at_once == 1:
            return ((window, image.bytes_of(*window)) for window in windows)
        some = list(windows)
        with ThreadPoolExecutor(image.reads_at_once, "loom-read") as pool:
            return list(zip(some, pool.map(lambda window: image.bytes_of(*window), some), strict=True))

    def compare_boxes(self, everyone: Callable[[], Iterator[Any]]) -> None:
        """What was put together from the shards of all ranks."""
        if not self._boxes:
            return
        wrong: dict[str, bool] = {}
        for reading in everyone():
            for record in reading.records:
                for box, surely in self._boxes:
                    at = tuple(record.get("offset", [0] * box.target.dim()))
                    if box.path == record["path"] and not box.equals(reading.view(record), at):
                        wrong[box.path] = surely
        self.wrong += wrong.items()

    def _windows(self, image: Any, pairs: list[_Pair]) -> Iterator[tuple[int, int]]:
        if not pairs:
            return
        if self._everything:
            first, last = pairs[0].start, max(pair.stop for pair in pairs)
            yield from ((at, at + PIECE) for at in range(first, last, PIECE))
            return
        for start, stop in sampled(image.records, self._seed):
            if any(pair.start < stop and start < pair.stop for pair in pairs):
                yield start, stop
        yield from ((pair.start, pair.stop) for pair in pairs if pair.whole)


def _unequal(pairs: list[_Pair], window: torch.Tensor, start: int) -> Iterator[_Pair]:
    for pair in pairs:
        begin, end = max(start, pair.start), min(start + window.numel(), pair.stop)
        if begin < end:
            live = pair.live.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
            mine = live[begin - pair.start : end - pair.start].cpu()
            if not torch.equal(mine, window[begin - start : end - start]):
                yield pair


def _leaves(value: Any, objects: list[Any], place: Place = ()) -> Iterator[tuple[Place, tuple[str, Any]]]:
    """Every leaf of an encoded tree, by the keys and numbers that lead to it there."""
    if isinstance(value, dict) and len(value) == 1:
        (tag, held), *_ = value.items()
        if tag in _TENSORS:
            yield place, (tag, held)
            return
        if tag == "$object":
            yield from _leaves(objects[held], objects, (*place, tag))
            return
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, objects, (*place, key))
    elif isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
        for n, item in enumerate(value):
            yield from _leaves(item, objects, (*place, n))
    else:
        yield place, ("", value)


def _numbers(tag: str, held: Any) -> list[int]:
    """Of its records."""
    if tag == "$quantised":
        return [int(held[name]) for name in ("ints", "scales", "zeros") if name in held]
    return [int(held[0] if tag == "$parameter" else held)]
