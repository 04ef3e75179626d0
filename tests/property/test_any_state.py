"""Any nested state of what can be saved comes back to the bit; saved again, it is the same bytes."""

from __future__ import annotations

import collections
import os
import string
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchloom.checkpoint.state.filling import Filling, Images
from torchloom.checkpoint.state.image import Reading, plan
from torchloom.checkpoint.state.region import Region, anonymous
from torchloom.checkpoint.state.training_parts import State

sys.path.append(str(Path(__file__).parents[1] / "states"))
from every_leaf import Colour, Holder, Level, Point, Rights, differences

EXAMPLES = int(os.environ.get("LOOM_TEST_EXAMPLES", "150"))
DTYPES = (torch.bool, torch.int8, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.complex64)
CODES = ("b1", "u1", "i2", "u8", "f2", "f4", "c16", ">f8", "S3", "U2", "M8[s]", "m8[ns]", "V5")


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    size = int(np.prod(shape)) * dtype.itemsize
    data = draw(st.binary(min_size=size, max_size=size))
    if dtype is torch.bool:
        data = bytes(byte & 1 for byte in data)
    made = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
    made = made.view(shape)
    return made.permute(draw(st.permutations(range(made.dim()))))


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    dtype = np.dtype(draw(st.sampled_from(CODES)))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    size = int(np.prod(shape)) * dtype.itemsize
    if dtype.kind == "U":
        text = draw(st.lists(st.text(string.printable, max_size=2), min_size=size, max_size=size))
        made = np.array(text[: int(np.prod(shape))], dtype).reshape(shape)
    else:
        raw = draw(st.binary(min_size=size, max_size=size))
        raw = bytes(byte & 1 for byte in raw) if dtype.kind == "b" else raw
        made = np.frombuffer(bytearray(raw), dtype).reshape(shape)
    made = made.transpose(draw(st.permutations(range(made.ndim))))
    return made[()] if not shape and draw(st.booleans()) else made


def generators(seed: int) -> Any:
    kinds = (np.random.default_rng, np.random.RandomState, np.random.SFC64, torch.Generator().manual_seed)
    return kinds[seed % len(kinds)](seed)


hashable = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.sampled_from([*Colour, *Level, Rights.READ | Rights.RUN]),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
leaves = (
    hashable
    | st.floats()
    | st.complex_numbers()
    | st.binary().map(bytearray)
    | tensors()
    | arrays()
    | st.integers(0, 1000).map(generators)
)
states = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.tuples(inner, inner).map(lambda pair: Point(*pair))
        | st.dictionaries(st.text(max_size=3) | hashable, inner, max_size=4)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3).map(collections.OrderedDict)
        | st.lists(inner, max_size=3).map(lambda items: collections.deque(items, 5))
        | st.sets(hashable, max_size=4)
        | inner.map(lambda item: [item, item])  # one object, twice
    ),
    max_leaves=12,
)  # fmt: skip


def image_of(state: State) -> Region:
    image = plan(state.snapshot())
    region = anonymous(image.size)
    image.copy_into(region)
    return region.part(0, image.size)


@given(states)
@settings(max_examples=EXAMPLES)
def test_any_state_comes_back_and_is_saved_again_as_it_was(value: Any) -> None:
    saved = image_of(State({"part": Holder(value)}, None))
    holder = Holder(None)
    state = State({"part": holder}, None)
    reading = Reading(saved, saved.size)
    Filling(state, Images(reading, None, same_world=True, everyone=lambda: iter(()))).run()
    assert differences(value, holder.state) == []
    assert bytes(image_of(state).bytes) == bytes(saved.bytes)
