"""Trees and images: what goes in comes out, block by block or whole, and damage is found."""

from __future__ import annotations

import enum
from collections import OrderedDict
from typing import Any

import pytest
import torch

from torchloom.checkpoint.memory.header import BLOCK, block_count
from torchloom.checkpoint.state.decoding import Decoder
from torchloom.checkpoint.state.image import Image, Reading, plan, sum_blocks
from torchloom.checkpoint.state.region import Region, anonymous
from torchloom.checkpoint.state.tree import tensors_of
from torchloom.errors import CheckpointDamaged, UsageError


class Colour(enum.IntEnum):
    RED = 3


TREE = {
    "plain": [1, 2.5, None, True, "text", float("inf"), 2**70],
    "keys": {0: "zero", "$odd": 1, (1, 2): torch.ones(2)},
    "tuple": (1, (2, torch.arange(5))),
    "set": {1, 2},
    "bytes": b"\x00\xff",
    "complex": 1 + 2j,
    "dtype": torch.bfloat16,
    "size": torch.Size([2, 3]),
    "enum": Colour.RED,
    "ordered": OrderedDict(a=torch.zeros(3, dtype=torch.bfloat16)),
    "scalar": torch.tensor(7),
    "empty": torch.empty(0, 3),
    "bool": torch.tensor([True, False]),
    "strided": torch.arange(12.0).view(3, 4).t(),
    "large": torch.arange(900_000, dtype=torch.float32),
}


def staged(image: Image, sums: bool) -> tuple[Region, torch.Tensor | None]:
    region = anonymous(block_count(image.size) * BLOCK)
    image.copy_into(region)
    return region, sum_blocks(region, image.size) if sums else None


def read(region: Region, size: int, sums: torch.Tensor | None) -> Any:
    reading = Reading(region, size, sums)
    decoder = Decoder(reading.records, reading.objects, lambda record, path: reading.view(record).clone())
    return decoder.decode(reading.trees["x"], ("x",))


@pytest.mark.parametrize("sums", [False, True])
def test_what_goes_in_comes_out(sums: bool) -> None:
    image = plan({"x": TREE})
    region, made = staged(image, sums)
    tree = read(region, image.size, made)
    before, after = dict(tensors_of(TREE, ("x",))), dict(tensors_of(tree, ("x",)))
    assert before.keys() == after.keys() and len(before) == 8
    for path, tensor in before.items():
        assert tensor.dtype == after[path].dtype and torch.equal(tensor, after[path]), path
    for name in ("plain", "set", "bytes", "complex", "dtype"):
        assert tree[name] == TREE[name]
    assert tree["keys"][0] == "zero" and tree["size"] == (2, 3) and tree["enum"] is Colour.RED


def test_equal_memory_is_kept_once() -> None:
    weight = torch.randn(1000)
    assert plan({"x": {"a": weight, "b": weight}}).size < plan({"x": {"a": weight, "b": weight.clone()}}).size


def test_what_cannot_be_saved_is_named_with_its_place() -> None:
    with pytest.raises(
        UsageError, match=r'x\["deep"\]\[0\]: an object of type builtins.object cannot be saved'
    ):
        plan({"x": {"deep": [object()]}})
    with pytest.raises(UsageError, match="not a plain tensor"):
        plan({"x": torch.eye(3).to_sparse()})


@pytest.mark.parametrize("where", ["first", "last"])
def test_one_flipped_bit_is_found(where: str) -> None:
    image = plan({"x": TREE})
    region, sums = staged(image, True)
    region.bytes[40 if where == "first" else image.size - 70] ^= 4
    with pytest.raises(CheckpointDamaged):
        read(region, image.size, sums)


@pytest.mark.parametrize("damage", [b"", b"nonsense", b"LOOMIMG2\xff\xff\xff\xff\xff\xff\xff\x7f"])
def test_nonsense_is_refused(damage: bytes) -> None:
    region = anonymous(BLOCK)
    region.bytes[: len(damage)] = damage
    with pytest.raises(CheckpointDamaged):
        Reading(region, BLOCK)


def test_a_record_that_points_outside_is_refused() -> None:
    image = plan({"x": torch.zeros(100)})
    region, _ = staged(image, False)
    with pytest.raises(CheckpointDamaged, match="outside"):
        Reading(region, image.size - 128)


@pytest.mark.parametrize(
    "hostile",
    [
        {"$tensor": 99},
        {"$tensor": "x"},
        {"$evil": ["os.system", "echo"]},
        {"$dict": [[[1], 2]]},
        {"$dict": 3},
        {"$bytes": 5},
        {"$dtype": "system"},
        {"$object": 0},
        {"$ndarray": 0},
        {"$scalar": ["O", "AAAAAAAAAAA="]},
        {"$scalar": ["<f8", "AA=="]},
        {"$enum": ["os", "system", ["x"]]},
        {"$enum": ["enum", "Enum", ["__init__"]]},
        {"$default": ["eval", {}]},
        {"$set": [{"$tensor": 0}]},
        {"$set": [[1]]},
        {"$int": "rubbish"},
        {"$nan": "00"},
        {"$complex": "zz"},
    ],
)
def test_a_hostile_tree_is_refused(hostile: Any) -> None:
    def no_leaf(record: Any, path: str) -> Any:
        raise AssertionError("there is no tensor")

    with pytest.raises(CheckpointDamaged):
        Decoder([], [], no_leaf).decode(hostile, ("x",))
