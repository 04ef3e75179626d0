"""A state is copied straight into tensors and compared on the way, from shared memory and from the store."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from torchloom.checkpoint.memory.header import BLOCK, HEADER
from torchloom.checkpoint.memory.slots import SlotFile, read
from torchloom.checkpoint.state import streaming
from torchloom.checkpoint.state.crc import combine
from torchloom.checkpoint.state.image import plan
from torchloom.checkpoint.state.new_memory import NewMemory
from torchloom.checkpoint.state.streaming import ImageSource, SlotSource, StoreSource, Streamed
from torchloom.checkpoint.store.commit import PartWriter, Target, commit
from torchloom.checkpoint.store.local import LocalStorage
from torchloom.checkpoint.store.manifest import Facts
from torchloom.checkpoint.store.names import CheckpointName
from torchloom.errors import CheckpointDamaged

NAME = CheckpointName(1, 10)


def tree() -> dict[str, Any]:
    """Tensors larger than blocks, smaller, odd, with gaps between them, of several kinds."""
    torch.manual_seed(1)
    random.seed(1)
    sizes = [900_001, 5, 1, 300_000, *(random.randrange(1, 40_000) for _ in range(40)), 1_500_000]
    tensors = {f"t{n}": torch.randn(size) for n, size in enumerate(sizes)}
    return {
        **tensors,
        "half": torch.randn(70_001).to(torch.bfloat16),
        "flags": torch.rand(1001) > 0.5,
        "scalar": torch.tensor(7),
        "none": torch.empty(0, 3),
        "turned": torch.randn(300, 500),
        "unaligned": torch.randn(600_000),
    }


def in_memory(path: Path) -> Callable[[], ImageSource]:
    image = plan({"x": tree()})
    file = SlotFile(path / "slot")
    image.copy_into(file.prepare(image.size))
    file.seal(NAME, 1)

    def again() -> ImageSource:
        sealed = read(path / "slot")
        assert sealed is not None
        return SlotSource(sealed.path, HEADER, sealed.size, sealed.sums.tolist())

    return again


def in_store(path: Path) -> Callable[[], ImageSource]:
    image = plan({"x": tree()})
    file = SlotFile(path / "slot")
    image.copy_into(file.prepare(image.size))
    storage, target = LocalStorage(path / "store"), Target("job", NAME, 1, 0)
    writer = PartWriter(storage, target, 0)
    writer.add("own", [file.payload()])
    manifest = commit(storage, target, [writer.finish()], Facts(), 0.0).manifest
    return lambda: StoreSource(storage, manifest, manifest.files[0])


KEPT = pytest.mark.parametrize("keep", [in_memory, in_store])


def copy_out(source: ImageSource) -> dict[str, torch.Tensor]:
    streamed = Streamed(source)
    targets: dict[str, tuple[Any, torch.Tensor]] = {}
    for record in streamed.records:
        name = record["path"].removeprefix('x["').removesuffix('"]')
        made = torch.full(record["shape"], 3, dtype=streaming.DTYPES[record["dtype"]])
        if name == "turned":
            made = torch.zeros(500, 300).t()
        if name == "unaligned":
            made = torch.zeros(600_001)[1:]
        targets[name] = record, made
    streamed.copy_out(list(targets.values()))
    return {name: made for name, (_, made) in targets.items()}


@KEPT
@pytest.mark.parametrize("threads", [1, 3])
def test_everything_comes_where_it_is_wanted(
    tmp_path: Path, keep: Any, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "at_once", lambda: threads)
    monkeypatch.setattr(streaming, "PIECE", 1 << 20)
    found = copy_out(keep(tmp_path)())
    expected = tree()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


@KEPT
def test_what_is_not_wanted_is_not_written_but_compared(tmp_path: Path, keep: Any) -> None:
    again = keep(tmp_path)
    streamed = Streamed(again())
    (record,) = (record for record in streamed.records if record["path"] == 'x["t3"]')
    target = torch.zeros(300_000)
    streamed.copy_out([(record, target)])
    assert torch.equal(target, tree()["t3"])
    flip(tmp_path, 9_000_000)
    with pytest.raises(CheckpointDamaged):
        Streamed(again()).copy_out([(record, target)])


@KEPT
@pytest.mark.parametrize("name", ["t0", "t1", "turned"])
def test_a_tensor_that_is_wanted_twice_comes_twice(tmp_path: Path, keep: Any, name: str) -> None:
    """Weights that were tied when they were saved and are not any more. The second was left as it was."""
    streamed = Streamed(keep(tmp_path)())
    (record,) = (record for record in streamed.records if record["path"] == f'x["{name}"]')
    targets = [
        torch.zeros(record["shape"]),
        torch.zeros(record["shape"]),
        torch.zeros(record["shape"][::-1]).t(),
    ]
    streamed.copy_out([(record, target) for target in targets[: 3 if name == "turned" else 2]])
    for target in targets[: 3 if name == "turned" else 2]:
        assert torch.equal(target, tree()[name])


def flip(path: Path, place: int) -> None:
    for file in [path / "slot", *path.glob("store/job/*/r0.*")]:
        data = bytearray(file.read_bytes())
        data[place] ^= 4
        file.write_bytes(data)


@KEPT
@pytest.mark.parametrize("place", [HEADER + 100, 1 << 20, 3_700_000, 9_000_000])
def test_one_flipped_bit_is_found(tmp_path: Path, keep: Any, place: int) -> None:
    again = keep(tmp_path)
    flip(tmp_path, place)
    with pytest.raises(CheckpointDamaged):
        copy_out(again())


def test_a_slot_that_is_gone_or_cut_short_is_damage(tmp_path: Path) -> None:
    source = in_memory(tmp_path)()
    (tmp_path / "slot").write_bytes((tmp_path / "slot").read_bytes()[: 2 * BLOCK])
    with pytest.raises(CheckpointDamaged):
        copy_out(source)
    (tmp_path / "slot").unlink()
    with pytest.raises(CheckpointDamaged):
        copy_out(source)


def test_threads_keep_their_number_to_themselves(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    copy_out(in_memory(tmp_path)())
    assert torch.get_num_threads() == before


def test_sums_of_pieces_make_the_sum_of_the_whole() -> None:
    random.seed(2)
    data = random.randbytes(200_000)
    for cut in (0, 1, 7, 65_536, 199_999, 200_000):
        first, second = zlib.crc32(data[:cut]), zlib.crc32(data[cut:])
        assert combine(first, second, len(data) - cut) == zlib.crc32(data)


@KEPT
@pytest.mark.parametrize("first", [24, 100, 1 << 16])
def test_an_index_of_any_length_is_read(
    tmp_path: Path, keep: Any, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "INDEX", first)
    source = keep(tmp_path)()
    asked: list[int] = []
    read = source.read
    source.read = lambda start, length: asked.append(length) or read(start, length)
    assert len(Streamed(source).records) == len(tree())
    assert len(asked) == (1 if first == 1 << 16 else 2)  # a far store takes a while for each


@KEPT
@pytest.mark.parametrize("threads", [1, 3])
def test_tensors_in_new_memory_are_filled(
    tmp_path: Path, keep: Any, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "at_once", lambda: threads)
    streamed, memory = Streamed(keep(tmp_path)()), NewMemory()
    made = [memory.empty(record["shape"], streaming.DTYPES[record["dtype"]]) for record in streamed.records]
    streamed.copy_out(list(zip(streamed.records, made, strict=True)), (), memory)
    expected = tree()
    for record, tensor in zip(streamed.records, made, strict=True):
        name = record["path"].removeprefix('x["').removesuffix('"]')
        assert torch.equal(tensor, expected[name]), name
    if memory._works:
        assert memory._made  # its pages were made by it
