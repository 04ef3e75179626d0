"""A state with every kind of leaf that a checkpoint takes, and a comparison that uses none of our code.

`everything(seed)` is the state; `differences(a, b)` lists where two states are not the same to the bit:
types, dtypes, shapes, order in memory, bytes, and which leaves are one object. Unit, property, integration
and e2e tests import it, so that all of them compare the same state.
"""

from __future__ import annotations

import collections
import enum
import math
import random
import struct
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn


class Colour(enum.Enum):
    RED = "red"
    BLUE = (1, 2)


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 7


class Mode(enum.StrEnum):
    FAST = "fast"


class Rights(enum.Flag):
    READ = 1
    WRITE = 2
    RUN = 4


class Point(NamedTuple):
    x: Any
    y: Any


BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
NUMBERS = (
    "b1",
    "i1",
    "i2",
    "i4",
    "i8",
    "u1",
    "u2",
    "u4",
    "u8",
    "f2",
    "f4",
    "f8",
    "g",
    "c8",
    "c16",
    "G",
    ">i4",
    ">f8",
)
TENSORS = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
)


OBJECTS = (torch.Tensor, np.ndarray, np.random.RandomState, torch.Generator, random.Random)


class Holder:
    """A part of a training that keeps what it is given."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def everything(seed: int = 0) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    return {
        "plain": plain(seed),
        "containers": containers(seed),
        "tensors": tensors(draw),
        "arrays": arrays(draw),
        "scalars": scalars(draw),
        "generators": generators(seed),
    }


def plain(seed: int) -> dict[str, Any]:
    return {
        "none": None,
        "bool": [True, False],
        "ints": [seed, -1, 0, 2**63, -(2**200), 7**6000],
        "floats": [0.1 + seed, -0.0, 0.0, math.inf, -math.inf, math.nan, 5e-324, 1.7976931348623157e308],
        "complex": [complex(-0.0, seed), complex(math.inf, math.nan), 1e300 - 2e-300j],
        "text": ["", "naïve \u2028 \x00", "\ud800", "$odd", "a/b", 'quote " \\'],
        "bytes": [b"", b"\x00\xff", bytes(range(256)) * 33],
        "bytearray": bytearray(b"\x01\x02"),
        "enums": [
            Colour.RED,
            Colour.BLUE,
            Level.HIGH,
            Mode.FAST,
            Rights.READ,
            Rights.READ | Rights.RUN,
            Rights(0),
        ],
        "torch": [torch.bfloat16, torch.device("cpu"), torch.Size([2, 3]), torch.Size([])],
    }


def containers(seed: int) -> dict[Any, Any]:
    return {
        "tuple": (seed, (), (1, ("x", None))),
        "list": [[], [[1]], [{}]],
        "named": Point(Point(1, 2.5), [torch.full((2,), float(seed))]),
        "set": {1, 2, "x", (1, 2), None},
        "frozenset": frozenset({b"x", 2.5, frozenset({1})}),
        "sets": [set(), frozenset()],
        "ordered": collections.OrderedDict([("b", 1), ("a", torch.ones(1)), (3, None)]),
        "default": collections.defaultdict(list, {"k": [seed]}),
        "counter": collections.Counter("abracadabra"),
        "deque": collections.deque([1, torch.zeros(2)], maxlen=3),
        "keys": {0: "int", "0": "text", 1.5: "float", None: "none", (1, "a"): "tuple", True: 1, b"b": 2},
        "tags": {"$tensor": 0, "$dict": [[1, 2]]},
        "slashes": {"a/b": torch.full((2,), 1.0), "a": {"b": torch.full((2,), 2.0)}},
        "empty": {},
        5: {Level.LOW: Colour.BLUE},
    }


def tensors(draw: np.random.Generator) -> dict[str, Any]:
    found: dict[str, Any] = {name: tensor(draw, name) for name in TENSORS}
    base = torch.from_numpy(draw.random((6, 4)))
    tied = torch.from_numpy(draw.random(5))
    wide = torch.from_numpy(draw.random(12)).to(torch.complex64) * (1 + 2j)
    return {
        **found,
        "scalar": torch.tensor(float(draw.random())),
        "empty": [torch.empty(0), torch.empty(3, 0, 2, dtype=torch.int32)],
        "turned": base.clone().t(),
        "channels last": torch.from_numpy(draw.random((2, 3, 4, 5))).to(memory_format=torch.channels_last),
        "gaps": torch.from_numpy(draw.random(20))[1::3],
        "expanded": torch.from_numpy(draw.random((1, 3))).expand(4, 3),
        "conjugate": [wide, wide.conj(), wide.imag, torch.view_as_real(wide).neg()],
        "tied": {"one": tied, "other": tied, "deep": [tied]},
        "views": [base, base[1:3], base[:, 2], base.view(-1)[5:]],
        "bits": torch.frombuffer(bytearray(struct.pack("<2I", 0x7FC00001, 0xFF800001)), dtype=torch.float32),
        "parameters": [nn.Parameter(torch.ones(2)), nn.Parameter(torch.zeros(2), requires_grad=False)],
        "wants grad": torch.ones(3, requires_grad=True),
        **quantised(),
    }


def tensor(draw: np.random.Generator, dtype: str) -> torch.Tensor:
    """Any bits, where any bits are values."""
    wanted = getattr(torch, dtype)
    if wanted is torch.bool:
        return torch.from_numpy(draw.random((3, 5)) > 0.5)
    return torch.from_numpy(draw.integers(0, 256, 15 * wanted.itemsize).astype("u1")).view(wanted).view(3, 5)


def quantised() -> dict[str, torch.Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = torch.linspace(-1, 1, 12).view(3, 4)
        scales, zeros = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([1, 2, 3])
        return {
            "qint8": torch.quantize_per_tensor(values, 0.1, 3, torch.qint8),
            "quint8": torch.quantize_per_tensor(values, 0.05, 9, torch.quint8),
            "qint32": torch.quantize_per_tensor(values, 0.001, 0, torch.qint32),
            "per channel": torch.quantize_per_channel(values, scales, zeros, 0, torch.qint8),
        }


def arrays(draw: np.random.Generator) -> dict[str, Any]:
    base = draw.random((4, 6))
    record = np.dtype([("id", "<i4"), ("name", "S3"), ("at", "<f8", (2,)), ("in", [("x", "u1")])])
    padded = np.dtype({"names": ["a", "b"], "formats": ["u1", "<i8"], "offsets": [0, 8], "itemsize": 24})
    numbers = {code: (draw.random((3, 2)) * 100).astype(code) for code in NUMBERS}
    both = draw.random(3)
    return {
        **numbers,
        "fixed bytes": np.array([b"ab", b"", b"\x00x"], dtype="S4"),
        "fixed text": np.array(["ab", "ü", ""], dtype="U5"),
        "times": np.array(["2026-11-17T02:00", "NaT"], dtype="M8[25s]"),
        "spans": np.array([1, -5], dtype="m8[ns]"),
        "record": np.frombuffer(draw.bytes(record.itemsize * 2), dtype=record).copy(),
        "padded": np.array([(1, 2), (3, 4)], dtype=padded),
        "raw": np.array([b"\x01\x02\x03"], dtype="V3"),
        "zero": [
            np.zeros((0,)),
            np.zeros((3, 0, 2), dtype="i2"),
            np.zeros((2,), dtype="S0"),
            np.zeros(0, "U3"),
        ],
        "no dimension": [np.array(1.5, dtype="f4"), np.array("x"), np.array(np.datetime64("2026"))],
        "fortran": np.asfortranarray(base),
        "turned": base[:2].T.copy(order="K"),
        "permuted": draw.random((2, 3, 4)).transpose(1, 2, 0),
        "gaps": base[::2, 1::2],
        "backwards": base[::-1],
        "broadcast": np.broadcast_to(base[0], (3, 6)),
        "read only": _read_only(draw.random(3)),
        "bits": np.array([0x7FF8000000000001, 0xFFF0000000000001], dtype="u8").view("f8"),
        "one object": [both, both],
    }


def _read_only(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    array.flags.writeable = False
    return array


def scalars(draw: np.random.Generator) -> list[Any]:
    return [
        *(np.dtype(code).type(draw.integers(0, 100)) for code in NUMBERS if code not in ("b1", ">i4", ">f8")),
        *(np.bool_(True), np.float32(1.5), np.float64(-0.0), np.float16(np.nan)),
        *(np.str_("ü"), np.bytes_(b"x\x00y"), np.datetime64("2026-11-17", "D"), np.timedelta64("NaT", "s")),
        np.array([(1, b"x")], dtype=[("a", "i4"), ("b", "S2")])[0],
    ]


def generators(seed: int) -> dict[str, Any]:
    """Each has drawn a little, so that what is left over from the last draw counts, too."""
    found: dict[str, Any] = {}
    for name in BIT_GENERATORS:
        bits = getattr(np.random, name)(seed + 1)
        bits.random_raw(3)
        found[name] = bits
        found[f"Generator {name}"] = made = np.random.Generator(getattr(np.random, name)(seed))
        made.integers(0, 9, 3, dtype="u4")
        made.bit_generator.seed_seq.spawn(2)
    found["RandomState"] = state = np.random.RandomState(seed)
    state.standard_normal()
    found["RandomState PCG64"] = np.random.RandomState(np.random.PCG64(seed))
    found["SeedSequence"] = np.random.SeedSequence(seed, spawn_key=(1,)).spawn(3)[2]
    found["python"] = python = random.Random(seed)
    python.gauss()
    found["torch"] = torch.Generator().manual_seed(seed)
    torch.randn(3, generator=found["torch"])
    found["shared"] = [state, found["torch"], python]
    return found


def differences(one: Any, other: Any) -> list[str]:
    """Where the two are not the same to the bit; nothing if they are."""
    ones: dict[int, int] = {}
    others: dict[int, int] = {}
    found = list(_differences(one, other, "state", ones, others))
    return found + list(_ties(one, other))


def _differences(a: Any, b: Any, at: str, ones: dict[int, int], others: dict[int, int]) -> Iterator[str]:
    if type(a) is not type(b):
        yield f"{at}: {type(a)} is now {type(b)}"
        return
    if isinstance(a, (dict, collections.deque, list, tuple)) and len(a) != len(b):
        yield f"{at}: {len(a)} items are now {len(b)}"
    elif isinstance(a, dict):
        if isinstance(a, collections.defaultdict) and a.default_factory is not b.default_factory:
            yield f"{at}: another default_factory"
        for (key, item), (its, there) in zip(a.items(), b.items(), strict=True):
            yield from _differences(key, its, f"{at} key {key!r}", ones, others)
            yield from _differences(item, there, f"{at}[{key!r}]", ones, others)
    elif isinstance(a, (list, tuple, collections.deque)) and not isinstance(a, torch.Size):
        if isinstance(a, collections.deque) and a.maxlen != b.maxlen:
            yield f"{at}: another maxlen"
        for n, (item, there) in enumerate(zip(a, b, strict=True)):
            yield from _differences(item, there, f"{at}[{n}]", ones, others)
    elif bits(a) != bits(b):
        yield f"{at}: {a!r} is now {b!r}"
    elif isinstance(a, OBJECTS) and ones.setdefault(id(a), len(ones)) != others.setdefault(
        id(b), len(others)
    ):
        yield f"{at}: it was one object with another, or is now"


def bits(value: Any) -> Any:
    """Something that is equal for two leaves if they are the same to the bit, and that Python can compare."""
    match value:
        case float():
            return struct.pack("<d", value) if not isinstance(value, np.float64) else value.tobytes()
        case torch.Tensor() if value.is_quantized:
            per_channel = value.qscheme() in (torch.per_channel_affine, torch.per_channel_symmetric)
            scale = (
                (
                    bits(value.q_per_channel_scales()),
                    bits(value.q_per_channel_zero_points()),
                    value.q_per_channel_axis(),
                )
                if per_channel
                else (value.q_scale(), value.q_zero_point())
            )
            return value.dtype, bits(value.int_repr()), scale
        case torch.Tensor():
            whole = value.detach().resolve_conj().resolve_neg().contiguous()
            raw = whole.reshape(-1).view(torch.uint8).numpy().tobytes()
            return (
                value.dtype,
                tuple(value.shape),
                order(value.shape, value.stride()),
                value.requires_grad,
                raw,
            )
        case np.ndarray() | np.generic() if value.dtype.char in "gG":  # some of their bytes mean nothing
            return value.dtype, value.shape, order(value.shape, value.strides), repr(value)
        case np.ndarray():
            return value.dtype, value.shape, order(value.shape, value.strides), value.tobytes()
        case np.generic():
            return value.dtype, value.tobytes()
        case np.random.Generator():
            return bits(value.bit_generator)
        case np.random.BitGenerator():
            return repr(value.state), bits(value.seed_seq)
        case np.random.RandomState():
            return repr(value.get_state(legacy=False)), bits(value._bit_generator)
        case np.random.SeedSequence():
            return repr(value.state)
        case torch.Generator():
            return bits(value.get_state())
        case random.Random():
            return value.getstate()
        case complex():
            return struct.pack("<2d", value.real, value.imag)
        case set() | frozenset():
            return frozenset((type(item), bits(item)) for item in value)
        case _:
            return value


def order(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """Which dimension lies outermost in memory, which next; what has one element has no place."""
    if 0 in shape:
        return ()
    long = [n for n, length in enumerate(shape) if length > 1]
    return tuple(sorted(long, key=lambda n: -abs(strides[n])))


def _ties(one: Any, other: Any) -> Iterator[str]:
    """Which tensors share memory with which."""
    mine, its = list(_tensors(one)), list(_tensors(other))
    if len(mine) != len(its):
        yield "another number of tensors"
        return
    lazy = {n for n, a in enumerate(mine) if a.is_conj() or a.is_neg()}  # these come back computed
    mine, its = ([t for n, t in enumerate(all_) if n not in lazy] for all_ in (mine, its))
    for n, (a, b) in enumerate(zip(mine, its, strict=True)):
        if [_overlap(a, x) for x in mine] != [_overlap(b, x) for x in its]:
            yield f"tensor {n} of {len(mine)}, {tuple(a.shape)} of {a.dtype}, shares memory with others now"


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    if not a.numel() or not b.numel() or a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
        return False
    (one, two), (three, four) = _range(a), _range(b)
    return one < four and three < two


def _range(a: torch.Tensor) -> tuple[int, int]:
    last = sum((length - 1) * stride for length, stride in zip(a.shape, a.stride(), strict=True))
    return a.data_ptr(), a.data_ptr() + (last + 1) * a.element_size()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if not value.is_quantized:
            yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple, collections.deque)):
        for item in value:
            yield from _tensors(item)
