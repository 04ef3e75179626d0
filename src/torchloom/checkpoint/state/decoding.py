"""Trees put together again from their JSON form and from tensors; tree.py is the way there.

Owns the decoding. A tree is built only when its tensors are filled, because what is made from them, such as a
NumPy array, is a copy: made earlier it would hold what happened to be in memory. `Decoder(dry=True)` goes the
same way before, to find out which tensors are wanted, and builds nothing that anybody uses.
"""

from __future__ import annotations

import base64
import collections
import struct
from typing import Any

import torch
from torch import nn

from torchloom.checkpoint.leaves import arrays, classes, randoms
from torchloom.checkpoint.state.tree import DTYPES, FACTORIES, OBJECT, Leaf, Path, Record, is_shard, told
from torchloom.errors import CheckpointDamaged


class Decoder:
    """Puts trees of one image together again."""

    def __init__(self, records: list[Record], objects: list[Any], leaf: Leaf, *, dry: bool = False) -> None:
        """`leaf` gives the tensors of generators and arrays. `dry`: they hold nothing yet; decoding finds out
        which are wanted and whether the tree makes sense."""
        self._records, self._objects, self._leaf, self._dry = records, objects, leaf, dry
        self._made: dict[tuple[str, int], Any] = {}

    def decode(self, value: Any, path: Path, leaf: Leaf | None = None) -> Any:
        """The tree again, its tensors from `leaf`. Raises CheckpointDamaged for what no encoder wrote."""
        try:
            return self._decode(value, path, leaf or self._leaf)
        except (
            KeyError,
            IndexError,
            TypeError,
            ValueError,
            AttributeError,
            OverflowError,
            RuntimeError,  # torch's own, and too deep a tree
            struct.error,
        ) as error:
            problem = f"the state of {told(path)} is not valid ({type(error).__name__})"
            raise CheckpointDamaged(problem) from error

    def _decode(self, value: Any, path: Path, leaf: Leaf) -> Any:
        if value is None or isinstance(value, (str, int, float, bool)):
            return value
        if isinstance(value, list):
            return self._items(value, path, leaf)
        if len(value) == 1:
            (tag, held), *_ = value.items()
            if tag.startswith("$"):
                return self._tagged(tag, held, path, leaf)
        return {key: self._decode(item, (*path, key), leaf) for key, item in value.items()}

    def _items(self, held: list[Any], path: Path, leaf: Leaf) -> list[Any]:
        return [self._decode(item, (*path, n), leaf) for n, item in enumerate(held)]

    def _tagged(self, tag: str, held: Any, path: Path, leaf: Leaf) -> Any:
        match tag:
            case "$tensor":
                return leaf(self._records[held], path)
            case "$parameter" | "$wanted" | "$quantised" | "$ndarray" | "$array" | "$object":
                return self._stored(tag, held, path, leaf)
            case "$dict":
                keys = [self._decode(key, path, no_tensor) for key, _ in held]
                items = (
                    self._decode(pair[1], (*path, key), leaf) for key, pair in zip(keys, held, strict=True)
                )
                return dict(zip(keys, items, strict=True))
            case "$ordered":
                return collections.OrderedDict(self._decode(held, path, leaf))
            case "$counter":
                return collections.Counter(self._decode(held, path, leaf))
            case "$default":
                factory = None if held[0] is None else FACTORIES[held[0]]
                return collections.defaultdict(factory, self._decode(held[1], path, leaf))
            case "$tuple":
                return tuple(self._items(held, path, leaf))
            case "$named":
                return classes.make_named(held[0], held[1], self._items(held[2], path, leaf))
            case "$deque":
                return collections.deque(self._items(held[0], path, leaf), held[1])
            case "$set":
                return set(self._items(held, path, no_tensor))
            case "$frozenset":
                return frozenset(self._items(held, path, no_tensor))
            case _:
                return _plain(tag, held, path)

    def _stored(self, tag: str, held: Any, path: Path, leaf: Leaf) -> Any:
        """What is made from tensors, and once however often it is in the tree."""
        if tag == "$quantised":
            return self._quantised(held, leaf, path)
        number = held[0] if tag == "$parameter" else held
        if tag in ("$parameter", "$wanted"):
            found = leaf(self._records[number], path)
            if self._dry or is_shard(found) or isinstance(found, nn.Parameter):
                return found
        key = tag, int(number)
        if key not in self._made:
            match tag:
                case "$parameter":
                    self._made[key] = nn.Parameter(found, requires_grad=bool(held[1]))
                case "$wanted":
                    self._made[key] = found.detach().requires_grad_()
                case "$array":  # as it was written until arrays had a description
                    data = self._leaf(self._records[number], path)
                    self._made[key] = None if self._dry else data.numpy().copy()
                case "$ndarray":
                    data, about = self._leaf(self._records[number], path), self._records[number]["array"]
                    self._made[key] = None if self._dry else arrays.make(data, about)
                case _:
                    parts = self._decode(self._objects[number], (OBJECT, number), self._leaf)
                    self._made[key] = None if self._dry else randoms.make(parts)
        return self._made[key]

    def _quantised(self, held: dict[str, Any], leaf: Leaf, path: Path) -> Any:
        ints = self._leaf(self._records[held["ints"]], path)
        if "scale" in held:
            return torch._make_per_tensor_quantized_tensor(ints, float(held["scale"]), int(held["zero"]))
        scales, zeros = (self._leaf(self._records[held[name]], path) for name in ("scales", "zeros"))
        return torch._make_per_channel_quantized_tensor(ints, scales, zeros, int(held["axis"]))


def _plain(tag: str, held: Any, path: Path) -> Any:
    match tag:
        case "$int":
            return int(held, 16)
        case "$size":
            return torch.Size(held)
        case "$bytes":
            return base64.b64decode(held)
        case "$bytearray":
            return bytearray(base64.b64decode(held))
        case "$nan":
            return struct.unpack("<d", bytes.fromhex(held))[0]
        case "$complex":
            return complex(*(struct.unpack("<2d", bytes.fromhex(held)) if isinstance(held, str) else held))
        case "$dtype":
            return DTYPES[held]
        case "$device":
            return torch.device(held)
        case "$scalar":
            return arrays.make_scalar(held)
        case "$enum":
            return classes.make_enum(held)
    raise CheckpointDamaged(f"{told(path)} holds {tag}, which no version of torchloom wrote")


def no_tensor(record: Record, path: Path) -> Any:
    raise CheckpointDamaged(f"{told(path)} holds a tensor where only plain values belong")
