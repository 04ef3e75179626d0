"""A stand-in for torchvision, which has no build for this CPU: as much of it as torchft's train_ddp.py uses.

The images are noise: a test needs no download and looks at steps and weights, not at accuracy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchvision import transforms

__all__ = ["datasets", "transforms"]


class datasets:
    class CIFAR10(torch.utils.data.Dataset):
        def __init__(
            self,
            root: str,
            train: bool = True,
            download: bool = False,
            transform: Callable[..., Any] | None = None,
        ) -> None:
            noise = torch.Generator().manual_seed(0)
            self._images = torch.randint(0, 256, (2048, 3, 32, 32), dtype=torch.uint8, generator=noise)
            self._labels = torch.randint(0, 10, (2048,), generator=noise).tolist()
            self._transform = transform

        def __len__(self) -> int:
            return len(self._labels)

        def __getitem__(self, index: int) -> tuple[Any, int]:
            image = self._images[index]
            return (self._transform(image) if self._transform else image), self._labels[index]
