"""Data that survives restarts and resizes: deterministic order, shard dealing, elastic loaders, shard cache.

order, skipping      who gets which sample, and which are left out
randomness           random numbers for each sample; generators, twister: those of Python, NumPy and torch
loader, asked        `ElasticLoader`; loader_state, batch: its state, the global batch   shards/  sharded data
shares               ranks that take fewer samples of each step than the others
transforms, rates    a pipeline and a learning rate that follow a change                world    our rank
live                 what can be changed while it runs                                  demo     made-up data
Importing this room imports no torch; its names are loaded on first use. It knows nothing of checkpoints: a
loader gives its `state_dict` to its caller.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchloom.data.loader import ElasticLoader, Portion
    from torchloom.data.randomness import sample_seed
    from torchloom.data.rates import ScaledRate
    from torchloom.data.shards.dataset import ShardedDataset
    from torchloom.data.shards.loader import ShardedLoader
    from torchloom.data.transforms import Transforms

_HOMES = {
    "ElasticLoader": "loader",
    "Portion": "loader",
    "sample_seed": "randomness",
    "ScaledRate": "rates",
    "ShardedDataset": "shards.dataset",
    "ShardedLoader": "shards.loader",
    "Transforms": "transforms",
}

__all__ = [
    "ElasticLoader",
    "Portion",
    "ScaledRate",
    "ShardedDataset",
    "ShardedLoader",
    "Transforms",
    "sample_seed",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
