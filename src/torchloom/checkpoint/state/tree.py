"""State as a tree of plain values with tensors at its leaves, in a form that JSON can hold.

Owns the encoding. No pickle is involved in either direction: what is read back is numbers, texts,
containers and tensors, whatever somebody put into the store, so a hostile checkpoint cannot run code. What
has no place in the encoding is refused when it is saved, with the place it was found at.

A tensor becomes a record: type, shape and, for a shard of a larger one (DTensor), the whole shape and where
the shard lies in it. Where its bytes are is added by image.py.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import torch

from torchloom.errors import CheckpointDamaged, UsageError

Record: TypeAlias = dict[str, Any]
Leaf: TypeAlias = Callable[[Record, str], Any]
"""From a tensor's record and its path to the tensor."""

_PLAIN = (str, int, float, bool, type(None))
_QUICK = frozenset(_PLAIN)
DTYPES = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype)
}


def local_part(tensor: Any) -> torch.Tensor:
    """The memory of this process: a shard's own part, or the tensor itself."""
    local: torch.Tensor = tensor.to_local() if is_shard(tensor) else tensor
    return local.detach()


def is_shard(tensor: Any) -> bool:
    """A DTensor, without importing it when nobody uses it."""
    return isinstance(tensor, torch.Tensor) and hasattr(tensor, "to_local") and hasattr(tensor, "placements")


class Encoder:
    """Takes trees apart; equal memory (tied weights) is listed once."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.records: list[Record] = []
        self._known: dict[tuple[object, ...], int] = {}

    def encode(self, value: Any, path: str) -> Any:
        """The JSON form. Raises UsageError for what cannot be saved."""
        if isinstance(value, torch.Tensor):
            return {"$tensor": self._tensor(value, path)}
        if type(value) in _QUICK:
            return value
        if isinstance(value, torch.Size):
            return {"$tuple": list(value)}
        if isinstance(value, Mapping):
            if all(type(key) is str and not key.startswith("$") for key in value):
                return {key: self.encode(item, f"{path}/{key}") for key, item in value.items()}
            return {
                "$dict": [
                    [self.encode(key, path), self.encode(item, f"{path}/{key}")]
                    for key, item in value.items()
                ]
            }
        if type(value) in (list, tuple) and all(type(item) in _QUICK for item in value):
            return {"$tuple": list(value)} if type(value) is tuple else list(value)
        if isinstance(value, list):
            return [self.encode(item, f"{path}/{n}") for n, item in enumerate(value)]
        if isinstance(value, tuple):
            return {"$tuple": [self.encode(item, f"{path}/{n}") for n, item in enumerate(value)]}
        if isinstance(value, (set, frozenset)):
            return {"$set": [self.encode(item, path) for item in sorted(value, key=repr)]}
        if isinstance(value, (bytes, bytearray)):
            return {"$bytes": base64.b64encode(value).decode()}
        if isinstance(value, complex):
            return {"$complex": [value.real, value.imag]}
        if isinstance(value, torch.dtype):
            return {"$dtype": str(value).removeprefix("torch.")}
        return self._numpy(value, path)

    def _numpy(self, value: Any, path: str) -> Any:
        if type(value).__module__ == "numpy":
            if hasattr(value, "ndim") and value.ndim == 0 and hasattr(value, "item"):
                return self.encode(value.item(), path)
            if type(value).__name__ == "ndarray" and value.dtype.kind in "iufb":
                return {"$array": self._tensor(torch.from_numpy(value.copy()), path)}
        # Subclasses, such as an enum of integers, are saved as what they are at bottom.
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return float(value)
        if isinstance(value, str):
            return str.__str__(value)
        raise UsageError(
            f"{path} cannot be saved, because it is a {type(value).__module__}.{type(value).__qualname__}",
            hint="let state_dict() return numbers, texts, tensors and containers of them",
        )

    def _tensor(self, tensor: torch.Tensor, path: str) -> int:
        local = local_part(tensor)
        if local.layout is not torch.strided or local.is_quantized or local.device.type == "meta":
            raise UsageError(f"{path} cannot be saved, because it is not a plain tensor ({local.layout})")
        record: Record = {
            "path": path,
            "dtype": str(local.dtype).removeprefix("torch."),
            "shape": list(local.shape),
        }
        if is_shard(tensor):
            record["whole"] = list(tensor.shape)
            record["offset"] = list(offset_of(tensor))
        key = (local.data_ptr(), local.dtype, tuple(local.shape), local.stride(), str(record.get("offset")))
        if local.numel() and key in self._known:
            return self._known[key]
        self._known[key] = len(self.records)
        self.records.append(record)
        self.tensors.append(local)
        return len(self.records) - 1


def offset_of(tensor: Any) -> tuple[int, ...]:
    """Where the local part of a DTensor lies in the whole."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tuple(offset)


def decode(value: Any, records: list[Record], leaf: Leaf, path: str) -> Any:
    """The tree again, its tensors from `leaf`. Raises CheckpointDamaged for what no encoder wrote."""
    try:
        return _decode(value, records, leaf, path)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CheckpointDamaged(f"the state of {path} makes no sense ({type(error).__name__})") from error


def _decode(value: Any, records: list[Record], leaf: Leaf, path: str) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, list):
        return [_decode(item, records, leaf, f"{path}/{n}") for n, item in enumerate(value)]
    if len(value) == 1:
        (tag, held), *_ = value.items()
        if tag.startswith("$"):
            return _decode_tagged(tag, held, records, leaf, path)
    return {key: _decode(item, records, leaf, f"{path}/{key}") for key, item in value.items()}


def _decode_tagged(tag: str, held: Any, records: list[Record], leaf: Leaf, path: str) -> Any:
    def inner(item: Any, place: object) -> Any:
        return _decode(item, records, leaf, f"{path}/{place}")

    match tag:
        case "$tensor":
            return leaf(records[held], path)
        case "$array":
            return leaf(records[held], path).numpy().copy()
        case "$dict":
            keys = [inner(key, "") for key, _ in held]
            return {key: inner(item, key) for key, (_, item) in zip(keys, held, strict=True)}
        case "$tuple":
            return tuple(inner(item, n) for n, item in enumerate(held))
        case "$set":
            return {inner(item, n) for n, item in enumerate(held)}
        case "$bytes":
            return base64.b64decode(held)
        case "$complex":
            return complex(*held)
        case "$dtype":
            return DTYPES[held]
    raise CheckpointDamaged(f"{path} holds {tag}, which no version of torchloom wrote")


def tensors_of(value: Any, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of a live state, with the path it would be saved under."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from tensors_of(item, f"{path}/{key}")
    elif isinstance(value, (list, tuple)):
        for n, item in enumerate(value):
            yield from tensors_of(item, f"{path}/{n}")
