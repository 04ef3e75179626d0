"""Random numbers that belong to a sample, not to the process that happens to read it.

While a sample is read, the global generators of Python, NumPy (if it is there) and torch start from a seed
made of (seed, epoch, sample). An augmentation then gives the same picture in whichever data worker, world
size or incarnation it runs. In the training process itself the generators are put back afterwards, because
dropout draws from them. Code with a generator of its own takes `sample_seed()`.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import get_worker_info

_current: int | None = None


def sample_seed() -> int:
    """The seed of the sample that is being read; 0 outside of one."""
    return _current or 0


def seed_all(seed: int) -> None:
    """Let the generators start from `seed`, until the next sample's."""
    global _current
    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed & 0xFFFF_FFFF)
    _current = seed


@contextmanager
def drawing_alone() -> Iterator[None]:
    """Keep draws inside from affecting the outside; in a data worker nothing else draws."""
    global _current
    if get_worker_info() is not None:
        yield
        return
    numpy: Any = sys.modules.get("numpy")
    python_state = random.getstate()
    numpy_state = numpy.random.get_state() if numpy is not None else None
    torch_state = torch.default_generator.get_state()
    try:
        yield
    finally:
        _current = None
        random.setstate(python_state)
        torch.default_generator.set_state(torch_state)
        if numpy_state is not None:
            numpy.random.set_state(numpy_state)
