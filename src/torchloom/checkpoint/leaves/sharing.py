"""Tensors that share memory without being one: a base and its views, made again as views of one memory.

Owns the note of it in the records (`share`: number of the run, first byte in it, strides) and the runs of
memory that are made on restore. Each view is saved whole and filled by itself; where two overlap both bring
the same bytes. Only tensors that are made need this: a model's own are written where they are.
"""

from __future__ import annotations

from typing import Any

import torch

from torchloom.errors import CheckpointDamaged

_ALIGN = 16
_MOST = 2
"""A run is at most this many times the bytes saved of it: views with wide gaps between are made apart."""


def mark(records: list[dict[str, Any]], tensors: list[torch.Tensor], runs: int = 0) -> int:
    """Note in the records which tensors share memory with others. `runs`: how many runs are known already;
    returns how many are known now."""
    by_storage: dict[int, list[int]] = {}
    for number, tensor in enumerate(tensors):
        by_storage.setdefault(tensor.untyped_storage().data_ptr(), []).append(number)
    for numbers in by_storage.values():
        views = [n for n in numbers if _plain(records[n], tensors[n])] if len(numbers) > 1 else []
        for run in _runs(views, tensors):
            first = min(_start(tensors[number]) for number in run) // _ALIGN * _ALIGN
            size = max(_stop(tensors[number]) for number in run) - first
            saved = sum(tensors[number].numel() * tensors[number].element_size() for number in run)
            if len(run) < 2 or size > _MOST * saved:
                continue
            for number in run:
                tensor = tensors[number]
                records[number]["share"] = [runs, _start(tensor) - first, list(tensor.stride())]
            runs += 1
    return runs


class Runs:
    """The runs of one image, made when the first of their views is wanted."""

    def __init__(self, records: list[dict[str, Any]], dtypes: dict[str, torch.dtype]) -> None:
        self._records, self._dtypes = records, dtypes
        self._made: dict[int, torch.Tensor] = {}

    def view(self, record: dict[str, Any]) -> torch.Tensor:
        """A view of its run, not filled yet. Raises CheckpointDamaged."""
        try:
            run, start, strides = record["share"]
            if run not in self._made:
                self._made[run] = torch.empty(self._size(run), dtype=torch.uint8)
            dtype = self._dtypes[record["dtype"]]
            if start % dtype.itemsize:
                raise ValueError("a view begins within an element")
            storage = self._made[run].untyped_storage()
            view = torch.empty(0, dtype=dtype)
            return view.set_(storage, start // dtype.itemsize, record["shape"], strides)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise CheckpointDamaged(f"shared memory of {record.get('path')} is not valid") from error

    def _size(self, run: int) -> int:
        size, saved = 0, 0
        for record in self._records:
            if "share" in record and record["share"][0] == run:
                _, start, strides = record["share"]
                item = self._dtypes[record["dtype"]].itemsize
                counts = zip(record["shape"], strides, strict=True)
                if start < 0 or any(stride < 0 for stride in strides):
                    raise ValueError("a view lies outside")
                size = max(size, start + (sum((length - 1) * stride for length, stride in counts) + 1) * item)
                saved += torch.Size(record["shape"]).numel() * item
        if size > _MOST * saved + _ALIGN:
            raise ValueError("a run is too long")
        return size


def _runs(numbers: list[int], tensors: list[torch.Tensor]) -> list[list[int]]:
    """Those of one storage, apart where no bytes are common."""
    found: list[list[int]] = []
    reached = -1
    for number in sorted(numbers, key=lambda n: (_start(tensors[n]), n)):
        if not found or _start(tensors[number]) >= reached:
            found.append([])
        found[-1].append(number)
        reached = max(reached, _stop(tensors[number]))
    return found


def _plain(record: dict[str, Any], tensor: torch.Tensor) -> bool:
    """One that is made as a view of a run: no shard, no array, and each element has a place of its own."""
    if not tensor.numel() or "whole" in record or "array" in record or tensor.is_conj() or tensor.is_neg():
        return False
    return all(stride or length < 2 for length, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _start(tensor: torch.Tensor) -> int:
    return int(tensor.storage_offset() * tensor.element_size())


def _stop(tensor: torch.Tensor) -> int:
    last = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return _start(tensor) + int((last + 1) * tensor.element_size())
