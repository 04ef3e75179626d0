"""Transforms of the stand-in's images, which are tensors already."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch


class Compose:
    def __init__(self, transforms: Sequence[Callable[[torch.Tensor], torch.Tensor]]) -> None:
        self._transforms = transforms

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        for transform in self._transforms:
            image = transform(image)
        return image


class ToTensor:
    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return image.float() / 255


class Normalize:
    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self._mean = torch.tensor(mean).view(-1, 1, 1)
        self._std = torch.tensor(std).view(-1, 1, 1)

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return (image - self._mean) / self._std
