"""Plans of one image, save after save: what did not change since the save before is not laid out again.

Owns the rule for that. Tensors are most of a state, and most of them are the same ones in every save: same
path, same memory, same kind. A planner notes them while it encodes a tree (its tape). Where the leading trees
of two saves had equal tapes, their records, places and copies are kept, and the next save only compares: any
difference, however small, and everything is encoded anew. So a kept plan never decides what is saved, only
how quickly. The script's `state_dict()` was called before, and plain values (learning rates, counters) and
containers are encoded in every save; a tape holds no tensors, so it keeps no memory alive.

Not kept is a tree with an array, a generator, a quantised tensor or one of a class that torch does not know
(their bytes are elsewhere in every save), with an empty tensor (only the object identifies it), or with keys
other than texts and whole numbers (True equals 1).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from torchloom.checkpoint.state.image import Image, LaidOut, aligned, as_items, lay_out
from torchloom.checkpoint.state.moving import Moves, is_for_torch, prepare
from torchloom.checkpoint.state.tree import PLAIN_KINDS, Encoder, Path, is_shard

Identity: TypeAlias = tuple[object, ...]
"""All that a tensor's record, its copy and what it shares with others depend on."""
Tape: TypeAlias = list[tuple[Path, Identity]]
"""The tensors of a tree in the order in which they are met."""
_KEYS = (str, int)


class _Changed(Exception):
    """This state is not the one that the kept plan is of."""


@dataclass(frozen=True)
class _Kept:
    """What is known of the leading trees of an image."""

    names: list[str] = field(default_factory=list)
    tapes: list[Tape] = field(default_factory=list)
    encoded: list[list[Any]] = field(default_factory=list)
    """For each tensor of each tape, what stands for it in its tree."""
    for_torch: dict[tuple[int, int], int] = field(default_factory=dict)
    """The places of those that torch copies, by tree and position on its tape."""
    known: dict[tuple[object, ...], int] = field(default_factory=dict)
    storages: set[int] = field(default_factory=set)
    leading: LaidOut = field(default_factory=LaidOut)


class Planner:
    """Plans the images of one kind, one after another."""

    def __init__(self, fresh: Collection[str] = ()) -> None:
        """`fresh`: trees that are never kept."""
        self._fresh = fresh
        self._kept = _Kept()
        self._tapes: dict[str, Tape | None] = {}

    def plan(self, trees: Mapping[str, Any]) -> Image:
        """Lay out the trees, exactly as image.plan does. Raises UsageError for what cannot be saved."""
        with torch.no_grad():
            if self._kept.names:
                try:
                    return self._follow(trees, self._kept)
                except _Changed:
                    self._kept = _Kept()
            return self._anew(trees)

    def _follow(self, trees: Mapping[str, Any], kept: _Kept) -> Image:
        names = list(trees)
        if names[: len(kept.names)] != kept.names:
            raise _Changed
        encoder = _Tracker()
        encoded = {name: encoder.follow(trees[name], number, kept) for number, name in enumerate(kept.names)}
        encoder.continue_after(kept)
        later = names[len(kept.names) :]
        tapes = self._encode_rest(encoder, encoded, {name: trees[name] for name in later})
        if any(tensor.untyped_storage().data_ptr() in kept.storages for tensor in encoder.tensors):
            raise _Changed
        leading = kept.leading
        if encoder.others:
            moves = leading.moves
            moves = Moves(moves.small, moves.pieces, encoder.others, moves.end)
            leading = LaidOut(leading.records, leading.text, leading.runs, moves, leading.end)
        if later and self._is_steady(later[0], tapes[later[0]]):
            self._kept = _Kept()  # more can be kept: it is noted when all is encoded anew
        self._tapes |= tapes
        return lay_out(encoded, encoder, leading, trees)

    def _anew(self, trees: Mapping[str, Any]) -> Image:
        encoder, encoded = _Tracker(), dict[str, Any]()
        tapes = self._encode_rest(encoder, encoded, trees)
        steady: list[str] = []
        for name, tape in tapes.items():
            if not self._is_steady(name, tape):
                break
            steady.append(name)
        self._tapes = tapes
        image = lay_out(encoded, encoder, LaidOut(), trees)
        if steady:
            self._kept = _keep(encoder, steady, [tapes[name] or [] for name in steady])
        return image

    def _encode_rest(
        self, encoder: _Tracker, encoded: dict[str, Any], trees: Mapping[str, Any]
    ) -> dict[str, Tape | None]:
        tapes: dict[str, Tape | None] = {}
        for name, tree in trees.items():
            encoded[name] = encoder.encode(tree, (name,))
            tapes[name] = encoder.end_tape()
        return tapes

    def _is_steady(self, name: str, tape: Tape | None) -> bool:
        return name not in self._fresh and tape is not None and self._tapes.get(name) == tape


class _Tracker(Encoder):
    """An encoder that notes the tensors it meets, or compares them with those of a tape."""

    def __init__(self) -> None:
        super().__init__()
        self.others: list[tuple[int, torch.Tensor]] = []
        """Of the trees that were followed, what torch has to copy."""
        self.ends: list[int] = []
        """How many records there were after each tree that was encoded."""
        self.answers: list[list[Any]] = []
        self.for_torch: dict[tuple[int, int], int] = {}
        """Numbers of records, by the first that is met of each."""
        self._tape: Tape = []
        self._answered: list[Any] = []
        self._steady = True
        self._following: tuple[int, _Kept] | None = None
        self._met = 0

    def follow(self, tree: Any, number: int, kept: _Kept) -> Any:
        """Encode a tree whose tensors are those of a tape. Raises _Changed."""
        self._following, self._met = (number, kept), 0
        encoded = self.encode(tree, (kept.names[number],))
        if self._met != len(kept.tapes[number]):
            raise _Changed
        self._following = None
        return encoded

    def continue_after(self, kept: _Kept) -> None:
        """Number what is encoded from now on after what is kept."""
        self.records, self._known = list(kept.leading.records), dict(kept.known)

    def end_tape(self) -> Tape | None:
        """A tree has been encoded: its tape, or None if it cannot be kept."""
        self.ends.append(len(self.records))
        self.answers.append(self._answered)
        tape, steady = self._tape, self._steady
        self._tape, self._answered, self._steady = [], [], True
        return tape if steady else None

    def known_before(self, end: int) -> dict[tuple[object, ...], int]:
        return {key: number for key, number in self._known.items() if number < end}

    def _any_tensor(self, value: torch.Tensor, path: Path) -> dict[str, Any]:
        if self._following is None:
            return self._noted(value, path)
        (tree, kept), at = self._following, self._met
        tape = kept.tapes[tree]
        local = value if type(value) in PLAIN_KINDS else _local(value)
        met = path, _identity(value, local) if local is not None else ()
        if at == len(tape) or tape[at] != met:
            raise _Changed
        self._met += 1
        place = kept.for_torch.get((tree, at))
        if place is not None and local is not None:
            self.others.append((place, local.detach()))
        encoded: dict[str, Any] = kept.encoded[tree][at]
        return encoded

    def _noted(self, value: torch.Tensor, path: Path) -> dict[str, Any]:
        before = len(self.records)
        encoded = super()._any_tensor(value, path)
        local = value if type(value) in PLAIN_KINDS else _local(value)
        if local is None or local.is_quantized or not local.numel():
            self._steady = False
            return encoded
        if len(self.records) > before and is_for_torch(self.tensors[-1]):
            self.for_torch[len(self.ends), len(self._tape)] = before
        self._tape.append((path, _identity(value, local)))
        self._answered.append(encoded)
        return encoded

    def _hashable(self, value: Any, path: Path) -> Any:
        if type(value) not in _KEYS:
            self._not_kept()
        return super()._hashable(value, path)

    def _array(self, value: Any, path: Path) -> dict[str, Any]:
        self._not_kept()
        return super()._array(value, path)

    def _object(self, value: Any, parts: dict[str, Any]) -> int:
        self._not_kept()
        return super()._object(value, parts)

    def _not_kept(self) -> None:
        if self._following is not None:
            raise _Changed
        self._steady = False


def _local(value: torch.Tensor) -> torch.Tensor | None:
    """The memory of a shard; None if it is something else, or not there yet. Without gradients."""
    if not is_shard(value):
        return None
    local: torch.Tensor = value.to_local()
    return local if type(local) in PLAIN_KINDS else None


def _identity(value: torch.Tensor, local: torch.Tensor) -> Identity:
    if local.layout is not torch.strided or local.is_nested or local.is_quantized:
        return ()
    memory = (
        local.data_ptr(),
        local.storage_offset(),  # with it, where its storage begins
        local.dtype,
        local.shape,
        local.stride(),
        local.device,
        local.is_conj(),
        local.is_neg(),
    )
    if local is value:
        return (type(value), value.requires_grad, value.is_leaf, *memory)
    shard: Any = value
    return (type(value), shard.shape, shard.device_mesh, shard.placements, *memory)


def _keep(encoder: _Tracker, names: list[str], tapes: list[Tape]) -> _Kept:
    """What is known of the first trees, after all were encoded and laid out."""
    end = encoder.ends[len(names) - 1]
    records, tensors = encoder.records[:end], encoder.tensors[:end]
    storages = {tensor.untyped_storage().data_ptr() for tensor in tensors}
    if any(tensor.untyped_storage().data_ptr() in storages for tensor in encoder.tensors[end:]):
        return _Kept()  # their records name runs that later trees are part of
    moves = prepare([record["at"] for record in records], tensors)
    last = records[-1]["at"] + aligned(tensors[-1].numel() * tensors[-1].element_size()) if records else 0
    runs = 1 + max((record["share"][0] for record in records if "share" in record), default=-1)
    without = Moves(moves.small, moves.pieces, [], moves.end)
    return _Kept(
        names=names,
        tapes=tapes,
        encoded=encoder.answers[: len(names)],
        for_torch={
            where: int(records[number]["at"])
            for where, number in encoder.for_torch.items()
            if where[0] < len(names)
        },
        known=encoder.known_before(end),
        storages=storages,
        leading=LaidOut(records, as_items(records), runs, without, last),
    )
