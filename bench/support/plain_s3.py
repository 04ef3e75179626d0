"""The bound of an S3 server: a plain client that puts and gets slices of the state on some threads.

It knows no names, checksums, generations or commits: it reaches what the server and this machine give.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from torchloom.wire.object_store import opening

PART = 16 * 1024 * 1024
THREADS = 8
NOTHING = float("nan")


class PlainS3:
    """Its save blocks nobody and is whole when the last slice is in the store."""

    def __init__(self, tensors: Sequence[torch.Tensor], url: str) -> None:
        import obstore
        from obstore.store import from_url

        self._obstore = obstore
        how = opening(url, os.environ)
        config: Any = how.config
        self._store: Any = from_url(url, config=config, client_options={"allow_http": how.allow_http})
        self._tensors = tensors  # the slices are of their memory
        pieces = [bytes_of(tensor) for tensor in tensors]
        self._slices = [
            piece[start : start + PART] for piece in pieces for start in range(0, len(piece), PART)
        ]

    def save(self, step: int) -> tuple[float, float]:
        began = time.perf_counter()
        self._all(lambda n: self._obstore.put(self._store, f"{n}", self._slices[n], use_multipart=False))
        return NOTHING, time.perf_counter() - began

    def settle(self) -> None: ...

    def restore(self) -> float:
        began = time.perf_counter()
        self._all(self._get)
        return time.perf_counter() - began

    def restore_anew(self) -> float:
        return NOTHING

    def close(self) -> None:
        self._all(lambda n: self._obstore.delete(self._store, f"{n}"))

    def _get(self, n: int) -> None:
        self._slices[n][:] = memoryview(self._obstore.get(self._store, f"{n}").bytes())

    def _all(self, act: Any) -> None:
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(act, range(len(self._slices))))


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Its memory, which whoever holds the view must keep alive."""
    size = tensor.numel() * tensor.element_size()
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")
