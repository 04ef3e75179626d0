"""State as a tree of plain values with tensors at its leaves, in a form that JSON can hold.

Owns the encoding, and the list of what can be saved (docs/checkpoints.md has it as a table). No pickle is
involved in either direction: what is read back is numbers, texts, containers, tensors, arrays and generators,
whatever somebody put into the store, so a hostile checkpoint cannot run code. What would not come back as it
was is refused when it is saved, with the place it was found at.

A tensor becomes a record: type, shape, order in memory and, for a shard of a larger one (DTensor), the whole
shape and where the shard lies in it. Where its bytes are is added by image.py. Tensors that are one are one
record; those that share memory otherwise say so (leaves/sharing.py). decoding.py is the way back.
"""

from __future__ import annotations

import base64
import collections
import enum
import json
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch import nn

from torchloom.checkpoint.leaves import arrays, classes, randoms
from torchloom.errors import UsageError

Record: TypeAlias = dict[str, Any]
Path: TypeAlias = tuple[object, ...]
"""The name of a part of the training, and the keys and numbers that lead to a leaf of its state."""
Leaf: TypeAlias = Callable[[Record, Path], Any]
"""From a tensor's record and its path to the tensor."""

_QUICK = frozenset((str, float, bool, type(None)))
_LONG = 1 << 64
"""Numbers up to this are JSON's; longer ones are written in hexadecimal, which Python does not limit."""
FACTORIES = {kind.__name__: kind for kind in (int, float, bool, str, bytes, list, tuple, dict, set)}
OBJECT = "loom.object"
DTYPES = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype)
}
_TENSORS = frozenset(
    dtype
    for name, dtype in DTYPES.items()
    if not name.startswith(("q", "int", "uint", "bits"))
    or name.removeprefix("u")[3:] in ("8", "16", "32", "64")
)
"""Those that torch can copy."""
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
PLAIN_KINDS = (torch.Tensor, nn.Parameter)
"""Tensors that are what they look like."""
_QUANTISED = {"qint8": torch.int8, "quint8": torch.uint8, "qint32": torch.int32}


def told(path: Path) -> str:
    """The path as a script would write it: `part["a"]["b"][3]`."""
    text = str(path[0])
    for key in path[1:]:
        if type(key) is str:
            simple = key.isprintable() and '"' not in key and "\\" not in key
            text += f'["{key}"]' if simple else f"[{json.dumps(key)}]"
        else:
            text += f"[{_shown(key)}]"
    return text


def _shown(key: object) -> str:
    """The same on every rank: the order of a set is not."""
    if isinstance(key, frozenset):
        return f"frozenset({{{', '.join(sorted(map(_shown, key)))}}})"
    if type(key) is tuple:
        return f"({', '.join(map(_shown, key))},)"
    return repr(key)


def local_part(tensor: Any) -> torch.Tensor:
    """The memory of this process: a shard's own part, or the tensor itself."""
    if not is_shard(tensor):
        return tensor.detach()
    with torch.no_grad():  # a node of autograd would take ten times as long, and nobody wants it
        return tensor.to_local().detach()


def is_shard(tensor: Any) -> bool:
    """Whether it is a DTensor, without importing DTensor if nothing uses it."""
    if type(tensor) in PLAIN_KINDS:
        return False
    return isinstance(tensor, torch.Tensor) and hasattr(tensor, "to_local") and hasattr(tensor, "placements")


class Encoder:
    """Takes trees apart; equal memory (tied weights) is listed once."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        self.records: list[Record] = []
        self.objects: list[Any] = []
        """Generators, each once."""
        self._known: dict[tuple[object, ...], int] = {}
        self._ids: dict[int, tuple[int, Any]] = {}
        self._within: set[int] = set()
        """Containers that are being encoded."""
        self._offsets: dict[tuple[object, ...], list[int]] = {}
        """Where shards lie, by what decides it: most tensors of a model have one of a few shapes."""

    def encode(self, value: Any, path: Path) -> Any:
        """The JSON form. Raises UsageError for what cannot be saved."""
        try:
            return self._encode(value, path)
        except RecursionError:
            raise refusal(path, value, "it is nested too deeply") from None

    def _encode(self, value: Any, path: Path) -> Any:
        kind = type(value)
        if kind in _QUICK and value == value:
            return value
        if kind is int:
            return value if -_LONG < value < _LONG else {"$int": hex(value)}
        if kind is dict:
            return self._mapping(value, path)
        if kind is list:
            return self._items(value, path)
        if kind is tuple:
            return {"$tuple": self._items(value, path)}
        if isinstance(value, torch.Tensor):
            return self._any_tensor(value, path)
        return self._container(value, path) or self._leaf(value, path)

    def _items(self, value: Any, path: Path) -> list[Any]:
        kinds = set(map(type, value))
        if (kinds <= _QUICK and (float not in kinds or not any(item != item for item in value))) or (
            kinds == {int} and min(value) > -_LONG and max(value) < _LONG
        ):
            return list(value)
        self._enter(value, path)
        items = [self._encode(item, (*path, n)) for n, item in enumerate(value)]
        self._within.discard(id(value))
        return items

    def _mapping(self, value: Mapping[Any, Any], path: Path) -> Any:
        self._enter(value, path)
        pairs = self._pairs(value, path)
        self._within.discard(id(value))
        return pairs

    def _enter(self, value: Any, path: Path) -> None:
        if id(value) in self._within:
            raise refusal(path, value, "it contains itself")
        self._within.add(id(value))

    def _pairs(self, value: Mapping[Any, Any], path: Path) -> Any:
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: self._encode(item, (*path, key)) for key, item in value.items()}
        pairs = [[self._hashable(key, path), self._encode(item, (*path, key))] for key, item in value.items()]
        return {"$dict": pairs}

    def _hashable(self, value: Any, path: Path) -> Any:
        """A key, or a member of a set: it holds nothing whose bytes are elsewhere."""
        before = len(self.records), len(self.objects)
        encoded = self._encode(value, path)
        if before != (len(self.records), len(self.objects)) or isinstance(value, torch.Tensor):
            raise refusal(path, value, "it is a key of a dict or a member of a set")
        return encoded

    def _container(self, value: Any, path: Path) -> dict[str, Any] | None:
        kind = type(value)
        if kind is collections.OrderedDict:
            return {"$ordered": self._mapping(value, path)}
        if kind is collections.Counter:
            return {"$counter": self._mapping(value, path)}
        if kind is collections.defaultdict:
            factory = value.default_factory
            if factory is not None and FACTORIES.get(getattr(factory, "__name__", "")) is not factory:
                raise refusal(path, value, "its default_factory is no builtin type")
            return {"$default": [factory.__name__ if factory else None, self._mapping(value, path)]}
        if kind is collections.deque:
            return {"$deque": [self._items(value, path), value.maxlen]}
        if kind in (set, frozenset):
            members = [self._hashable(item, (*path, item)) for item in value]
            return {f"${kind.__name__}": sorted(members, key=json.dumps)}
        if kind is torch.Size:
            return {"$size": list(value)}
        if isinstance(value, tuple) and (place := classes.named_place(kind)) is not None:
            return {"$named": [*place, self._items(value, path)]}
        return None

    def _leaf(self, value: Any, path: Path) -> dict[str, Any]:
        kind = type(value)
        if kind in (bytes, bytearray):
            return {f"${kind.__name__}": base64.b64encode(value).decode()}
        if kind is float:  # one that is no number; of those there are many
            return {"$nan": struct.pack("<d", value).hex()}
        if kind is complex:
            return {"$complex": struct.pack("<2d", value.real, value.imag).hex()}
        if kind is torch.dtype:
            return {"$dtype": str(value).removeprefix("torch.")}
        if kind is torch.device:
            return {"$device": str(value)}
        if arrays.is_array(value):
            return self._array(value, path)
        if arrays.is_scalar(value):
            return {"$scalar": arrays.take_scalar(value)}
        if isinstance(value, enum.Enum) and (held := classes.take_enum(value)) is not None:
            return {"$enum": held}
        if (parts := randoms.take(value)) is not None:
            return {"$object": self._object(value, parts)}
        raise refusal(path, value)

    def _object(self, value: Any, parts: dict[str, Any]) -> int:
        if id(value) not in self._ids:
            number = len(self.objects)
            self._ids[id(value)] = number, value
            self.objects.append(None)  # its place, before those it is made of
            self.objects[number] = self._mapping(parts, (OBJECT, number))
        return self._ids[id(value)][0]

    def _array(self, value: Any, path: Path) -> dict[str, Any]:
        if id(value) not in self._ids:
            data, about = arrays.take(value)
            self._ids[id(value)] = self._add(data, {"path": told(path)}), value
            self.records[-1]["array"] = about
        return {"$ndarray": self._ids[id(value)][0]}

    def _any_tensor(self, value: torch.Tensor, path: Path) -> dict[str, Any]:
        kind: type = type(value)
        if kind in PLAIN_KINDS:
            if value.is_quantized:
                return self._quantised(value, path)
            number = self._tensor(value, value.detach(), {"path": told(path)}, path)
            if kind is nn.Parameter:
                return {"$parameter": [number, value.requires_grad]}
            return {"$wanted": number} if value.requires_grad and value.is_leaf else {"$tensor": number}
        if not is_shard(value):
            raise refusal(path, value)
        shard: Any = value
        if any(placement.is_partial() for placement in shard.placements):
            raise refusal(path, value, "it is a partial sum")
        record = {"path": told(path), "whole": list(shard.shape), "offset": self._offset(shard)}
        return {"$tensor": self._tensor(value, local_part(shard), record, path)}

    def _quantised(self, value: torch.Tensor, path: Path) -> dict[str, Any]:
        name = str(value.dtype).removeprefix("torch.")
        if name not in _QUANTISED:
            raise refusal(path, value, f"it is of {value.dtype}")
        about: dict[str, Any] = {"ints": self._part(value.int_repr(), path)}
        if value.qscheme() == torch.per_tensor_affine:
            return {"$quantised": about | {"scale": value.q_scale(), "zero": value.q_zero_point()}}
        if value.qscheme() == torch.per_channel_affine:
            scales, zeros = value.q_per_channel_scales(), value.q_per_channel_zero_points()
            about |= {"scales": self._part(scales, path), "zeros": self._part(zeros, path)}
            return {"$quantised": about | {"axis": value.q_per_channel_axis()}}
        raise refusal(path, value, f"its scheme is {value.qscheme()}")

    def _part(self, tensor: torch.Tensor, path: Path) -> int:
        return self._tensor(tensor, tensor.detach(), {"path": told(path)}, path)

    def _tensor(self, tensor: torch.Tensor, local: torch.Tensor, record: Record, path: Path) -> int:
        if local.layout is not torch.strided or local.device.type == "meta" or local.is_nested:
            raise refusal(path, tensor, "it is not a plain tensor")
        if local.dtype not in _TENSORS:
            raise refusal(path, tensor, f"it is of {local.dtype}")
        key: tuple[object, ...] = (
            local.data_ptr(),
            local.dtype,
            local.shape,
            local.stride(),
            local.is_conj(),  # the same memory, other values
            local.is_neg(),
            tuple(record.get("offset", ())),
            "whole" in record,
        )
        if not local.numel():  # without memory, only the object itself identifies it
            self._ids[id(tensor)] = -1, tensor
            key = (*key, id(tensor))
        if key not in self._known:
            self._known[key] = self._add(local, record)
        return self._known[key]

    def _offset(self, shard: Any) -> list[int]:
        kind = (shard.shape, id(shard.device_mesh), shard.placements)
        if kind not in self._offsets:
            self._offsets[kind] = list(offset_of(shard))
        return list(self._offsets[kind])

    def _add(self, local: torch.Tensor, record: Record) -> int:
        record |= {"dtype": _NAMES[local.dtype], "shape": list(local.shape)}
        if not local.is_contiguous() and (order := arrays.order_of(local.shape, local.stride())) is not None:
            record["order"] = order
        self.records.append(record)
        self.tensors.append(local)
        return len(self.records) - 1


def refusal(path: Path, value: Any, why: str = "") -> UsageError:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    hint = "let state_dict() return numbers, texts, tensors, NumPy arrays and containers of them"
    if hasattr(value, "state_dict"):
        hint = "put its state_dict() there, or give it to loom.Checkpoint as a part of its own"
    problem = f"{told(path)}: an object of type {kind} cannot be saved"
    return UsageError(f"{problem}, because {why}" if why else problem, hint=hint)


def offset_of(tensor: Any) -> tuple[int, ...]:
    """Where the local part of a DTensor lies in the whole."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tuple(offset)


def tensors_of(value: Any, path: Path) -> Iterator[tuple[Path, torch.Tensor]]:
    """Every tensor of a live state, with the path it would be saved under."""
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from tensors_of(item, (*path, key))
    elif isinstance(value, (list, tuple, collections.deque)):
        for n, item in enumerate(value):
            yield from tensors_of(item, (*path, n))
