"""torchtitan's own trainer on CPUs: its smallest Llama, FSDP2 on gloo, its checkpoints and metrics.

torchtitan 0.2 takes "cuda" where torch finds no accelerator, and asks the device for its number, name and
memory, which torch.cpu does not know. Both are given here, from outside; everything else is torchtitan's. Its
datasets are not in its wheel, so the samples are made here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
import torch._utils

torch._utils._get_available_device_type = lambda: "cpu"
torch.cpu.current_device = lambda: 0
torch.cpu.get_device_name = lambda device=None: "CPU"
torch.cpu.get_device_properties = lambda device=None: SimpleNamespace(total_memory=2**34)
torch.cpu.memory_stats = lambda device=None: {}
torch.cpu.reset_peak_memory_stats = torch.cpu.empty_cache = lambda: None

from torchtitan.components.dataloader import ParallelAwareDataloader  # noqa: E402
from torchtitan.models.llama3 import TransformerModelArgs, get_train_spec  # noqa: E402
from torchtitan.protocols.train_spec import register_train_spec  # noqa: E402
from torchtitan.train import Trainer, main  # noqa: E402


class Samples(torch.utils.data.IterableDataset[Any]):
    """Endless sequences; resumes where it was."""

    def __init__(self, rank: int, length: int) -> None:
        self._rank, self._length, self._at = rank, length, 0

    def __iter__(self) -> Iterator[Any]:
        while True:
            generator = torch.Generator().manual_seed(1000 * self._rank + self._at)
            self._at += 1
            tokens = torch.randint(64, (self._length + 1,), generator=generator)
            yield {"input": tokens[:-1]}, tokens[1:]

    def state_dict(self) -> dict[str, int]:
        return {"at": self._at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._at = state["at"]


def loader(dp_world_size: int, dp_rank: int, tokenizer: Any, job_config: Any) -> Any:
    training = job_config.training
    return ParallelAwareDataloader(
        dataset=Samples(dp_rank, training.seq_len),
        dp_rank=dp_rank,
        dp_world_size=dp_world_size,
        batch_size=training.local_batch_size,
    )


tiny = TransformerModelArgs(dim=32, n_layers=2, n_heads=2, vocab_size=64, rope_theta=500000)
spec = dataclasses.replace(
    get_train_spec(),
    model_args={"debugmodel": tiny},
    build_dataloader_fn=loader,
    build_tokenizer_fn=None,
    build_validator_fn=None,
    state_dict_adapter=None,
)
register_train_spec("tiny", spec)

if __name__ == "__main__":
    main(Trainer)
