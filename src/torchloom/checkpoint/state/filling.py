"""Giving a saved state back: each tensor is copied once, straight to where it is wanted.

Owns the way from images to live objects. Parameters, buffers and optimizer states that exist are written in
place; others are made. A shard that lies elsewhere now, because the world or the mesh changed, is put
together from the shards of all ranks (resharding). Then every object's own `load_state_dict` is called, and
last of all the random number generators are set.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn

from torchloom.checkpoint import reporting
from torchloom.checkpoint.leaves.arrays import inverse
from torchloom.checkpoint.leaves.sharing import Runs
from torchloom.checkpoint.state import readback, rng
from torchloom.checkpoint.state.decoding import Decoder, no_tensor
from torchloom.checkpoint.state.image import Reading
from torchloom.checkpoint.state.new_memory import NewMemory
from torchloom.checkpoint.state.readback import ComparedPart
from torchloom.checkpoint.state.region import large_pages
from torchloom.checkpoint.state.resharding import Box
from torchloom.checkpoint.state.streaming import Streamed
from torchloom.checkpoint.state.training_parts import (
    ABOUT,
    DIFFERING,
    WRITES,
    Component,
    State,
    same_memory_kind,
)
from torchloom.checkpoint.state.tree import (
    DTYPES,
    Leaf,
    Path,
    Record,
    is_shard,
    local_part,
    offset_of,
    tensors_of,
    told,
)
from torchloom.errors import CheckpointDamaged, UsageError

Empty: TypeAlias = Callable[..., torch.Tensor]
"""Makes a tensor that is not filled yet. Those of models and optimizers come from NewMemory; objects of the
script may do with theirs what only torch's own memory allows, such as resizing it."""


@dataclass
class Images:
    """What a rank restores from."""

    own: Reading | Streamed
    shared: Reading | Streamed | None
    same_world: bool
    everyone: Callable[[], Iterator[Reading]]
    """All images of all ranks that saved, one after another; asked only when shards must be put together."""

    def find(self, name: str) -> Reading | Streamed | None:
        for reading in (self.shared, self.own):
            if reading is not None and name in reading.trees:
                return reading
        return None


class Filling:
    """One restore of one rank.

    First it is found out where each tensor goes, then all are filled, and only then are trees built: whatever
    is made from a tensor, such as a NumPy array, is made from one that holds its values.
    """

    def __init__(self, state: State, images: Images) -> None:
        self._state, self._images = state, images
        self._targets: dict[int, list[tuple[Record, torch.Tensor]]] = {}
        self._boxes: list[Box] = []
        self._made: dict[int, torch.Tensor] = {}
        self._runs: dict[int, Runs] = {}
        self._leaves: dict[tuple[int, Path], Any] = {}
        self._dtensors: dict[int, Any] = {}
        self._memory = NewMemory()
        self._planned = False
        self.differs: list[str] = []
        """Where objects of the script hold something else than was saved, once it has run."""

    @property
    def about(self) -> Mapping[str, Any]:
        """Plain facts of this rank's image: step and the like; its tensors are not read yet."""
        found = self._images.own.trees.get(ABOUT)
        if not isinstance(found, dict):
            raise CheckpointDamaged("an image has no description of itself")
        return found

    def plan(self) -> None:
        """Find where everything goes, and change nothing. Raises UsageError if the images lack a part."""
        self._trees(dry=True)
        self._planned = True

    def run(self) -> None:
        """Give everything back. Raises CheckpointDamaged if shards are missing."""
        if not self._planned:
            self.plan()
        large_pages(self._made.values())
        for reading in self._readings():
            if targets := self._targets.get(id(reading)):
                if isinstance(reading, Streamed):
                    some = readback.how_much() == "sample"
                    keep = readback.sampled(reading.records, self._seed) if some else ()
                    reading.copy_out(targets, keep, self._memory)
                else:
                    reading.copy_out(targets)
        everyone: dict[str, list[Any]] = {}
        if self._boxes or not self._images.same_world:
            everyone = self._put_together()
        trees = self._trees(dry=False)
        for component in self._state.components:
            tree = trees[component.name]
            if isinstance(tree, dict) and tree.get("kind") == "lines" and everyone.get(component.name):
                tree = everyone[component.name]  # positions in lines are dealt anew from those of all ranks
            _load(component, tree, trees[ABOUT].get(WRITES, {}).get(component.name))
        if readback.how_much() != "off":
            self._read_back([self._held(component) for component in self._state.components])
        rng.put(trees[ABOUT]["rng"])
        if readback.how_much() != "off":
            self._read_back([self._held_rng()])

    def _read_back(self, parts: list[ComparedPart]) -> None:
        """Does the script have what was saved? Raises RestoreDiffers."""
        images = self._images
        for place in readback.compare(parts, images.same_world, images.everyone, self._seed):
            sentence = f"after the restore {place} is not what was saved"
            reporting.say(sentence)
            reporting.ports.log(restore_differs=sentence)
            self.differs.append(place)

    @property
    def _seed(self) -> str:
        """Of the places that are compared: others with every checkpoint."""
        return f"{self.about.get('step')}/{self._images.own.size}"

    def _held(self, component: Component) -> ComparedPart:
        reading = self._images.find(component.name)
        assert reading is not None, "it was loaded from it"
        own, tree = self._images.own, reading.trees[component.name]
        return ComparedPart(
            component.name,
            tree,
            reading,
            component.state(),
            surely=readback.loaded_by_torch(component.inner),
            plain=self._images.same_world,
            own={
                name: (own, own.records[held["$tensor"]]) for name, held in self._differing(component).items()
            },
        )

    def _held_rng(self) -> ComparedPart:
        now, tree = rng.take(), self.about["rng"]
        # Generators of another number of devices were not set.
        now = {
            name: held
            for name, held in now.items()
            if not isinstance(held, list) or len(held) == len(tree.get(name, ()))
        }
        tree = {name: held for name, held in tree.items() if name in now}
        return ComparedPart('loom["rng"]', tree, self._images.own, now, surely=True, whole=True)

    def _differing(self, component: Component) -> Mapping[str, Any]:
        """Which tensors of a replicated model this rank has for itself."""
        own = self._images.own
        if self._images.find(component.name) is own:
            return {}
        found = own.trees.get(DIFFERING, {}).get(component.name, {})
        return found if isinstance(found, dict) else {}

    def _readings(self) -> list[Reading | Streamed]:
        return [reading for reading in (self._images.own, self._images.shared) if reading is not None]

    def _trees(self, *, dry: bool) -> dict[str, Any]:
        """What is given to the parts of the training; `dry`: the same, with nothing in it yet."""
        decoders = {id(reading): self._decoder(reading, dry) for reading in self._readings()}
        trees: dict[str, Any] = {}
        for component in self._state.components:
            reading = self._images.find(component.name)
            if reading is None:
                raise UsageError(
                    f"the checkpoint holds no {component.name}",
                    hint="restore with the parts it was saved with",
                )
            tree = reading.trees[component.name]
            leaf = None
            if component.in_place:
                leaf = self._in_place(reading, component) if dry else self._chosen
            elif any("whole" in record for record in reading.records):
                leaf = self._own_shards(reading, component)
            trees[component.name] = decoders[id(reading)].decode(tree, (component.name,), leaf)
        trees[ABOUT] = decoders[id(self._images.own)].decode(self.about, (ABOUT,))
        return trees

    def _decoder(self, reading: Reading | Streamed, dry: bool) -> Decoder:
        if id(reading) not in self._runs:
            self._runs[id(reading)] = Runs(reading.records, DTYPES)

        def leaf(record: Record, path: Path) -> torch.Tensor:
            return self._new(reading, record)

        return Decoder(reading.records, reading.objects, leaf, dry=dry)

    def _in_place(self, reading: Reading | Streamed, component: Component) -> Leaf:
        """Choose for each tensor of a part that has tensors where it goes."""
        existing = dict(tensors_of(component.state(), (component.name,)))
        own, mine = self._images.own, self._differing(component)

        def leaf(record: Record, path: Path) -> Any:
            source, saved = reading, record
            if len(path) == 2 and str(path[1]) in mine:
                source, saved = own, own.records[mine[str(path[1])]["$tensor"]]
            found = self._wanted(source, component, saved, path, existing.get(path))
            self._leaves[id(record), path] = found
            return found

        return leaf

    def _chosen(self, record: Record, path: Path) -> Any:
        return self._leaves[id(record), path]

    def _own_shards(self, reading: Reading | Streamed, component: Component) -> Leaf:
        """The DTensors of an object of the script: made anew, on the mesh of the one that it has there."""
        existing: dict[Path, Any] = {}

        def leaf(record: Record, path: Path) -> Any:
            if "whole" not in record:
                return self._new(reading, record)
            if id(record) not in self._dtensors:
                if not existing:
                    existing.update(tensors_of(component.state(), (component.name,)))
                template: Any = existing.get(path)
                if not is_shard(template) or list(template.shape) != record["whole"]:
                    raise UsageError(
                        f"{told(path)} was saved as a DTensor of shape {tuple(record['whole'])}, "
                        f"and the object has none there whose mesh it could get",
                        hint="make the object with its DTensors before restore()",
                    )
                self._dtensors[id(record)] = self._shard(reading, record, path, None, template)
            return self._dtensors[id(record)]

        return leaf

    def _new(self, reading: Reading | Streamed, record: Record, empty: Empty = torch.empty) -> torch.Tensor:
        """A new tensor, one for each record, filled when the image is copied out."""
        if id(record) not in self._made:
            if "share" in record:
                made = self._runs[id(reading)].view(record)
            else:
                order = record.get("order") or list(range(len(record["shape"])))
                back = inverse(order, len(record["shape"]))
                shape = [record["shape"][n] for n in order]
                made = empty(shape, dtype=DTYPES[record["dtype"]]).permute(back)
            self._made[id(record)] = made
            self._targets.setdefault(id(reading), []).append((record, made))
        return self._made[id(record)]

    def _wanted(
        self, reading: Reading | Streamed, component: Component, record: Record, path: Path, current: Any
    ) -> Any:
        template = current if current is not None else component.parameter(path)
        if is_shard(template) and list(template.shape) == record.get("whole", record["shape"]):
            return self._shard(reading, record, path, current, template)
        if "whole" in record:  # it was sharded and is whole now
            fits = current is not None and list(current.shape) == record["whole"]
            target = current if fits else self._memory.empty(record["whole"], DTYPES[record["dtype"]])
            self._boxes.append(Box(record["path"], target, (0,) * target.dim()))
            return target
        if current is not None and not is_shard(current) and same_memory_kind(current, record):
            self._targets.setdefault(id(reading), []).append((record, current.detach()))
            return current
        return self._new(reading, record, self._memory.empty)

    def _shard(
        self, reading: Reading | Streamed, record: Record, path: Path, current: Any, template: Any
    ) -> torch.Tensor:
        from torch.distributed.tensor import DTensor

        offset = offset_of(template)
        if current is not None:
            wanted, target = current, local_part(current)
        else:
            target = self._like(local_part(template), DTYPES[record["dtype"]])
            wanted = DTensor.from_local(
                target,
                template.device_mesh,
                template.placements,
                run_check=False,
                shape=template.shape,
                stride=template.stride(),
            )
        as_saved = list(offset) == record.get("offset") and same_memory_kind(target, record)
        if self._images.same_world and as_saved:
            self._targets.setdefault(id(reading), []).append((record, target))
        else:
            self._boxes.append(Box(record["path"], target, offset))
        return wanted

    def _like(self, local: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if local.device.type == "cpu" and local.is_contiguous():
            return self._memory.empty(local.shape, dtype)
        return torch.empty_like(local, dtype=dtype)

    def _put_together(self) -> dict[str, list[Any]]:
        """Fill the boxes from everybody's images; also everybody's positions in the data."""
        positions: dict[str, list[Any]] = {}
        wanted: dict[str, list[Box]] = {}
        for box in self._boxes:
            wanted.setdefault(box.path, []).append(box)
        for reading in self._images.everyone():
            for record in reading.records:
                for box in wanted.get(record["path"], []):
                    box.take(reading.view(record), tuple(record.get("offset", [0] * box.target.dim())))
            for name, tree in reading.trees.items():
                if isinstance(tree, dict) and tree.get("kind") == "lines":
                    position = Decoder([], [], no_tensor).decode(tree, (name,))
                    positions.setdefault(name, []).append(position)
        for box in self._boxes:
            if not box.whole:
                raise CheckpointDamaged(f"parts of {box.path} are missing")
        return positions


def _load(component: Component, tree: Any, writes: Any) -> None:
    inner = component.inner
    if isinstance(inner, nn.Module):
        ordered: Any = OrderedDict(tree)
        ordered._metadata = getattr(component.state(), "_metadata", None)
        tree = ordered
    try:
        with reporting.ports.own_values(True):
            inner.load_state_dict(tree)
            if isinstance(writes, Mapping):
                reporting.ports.restored_writes(inner, writes)
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"the checkpoint does not fit {component.name}: {error}",
            hint="restore with the model and optimizer it was saved with",
        ) from error
