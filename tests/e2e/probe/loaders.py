"""Loads data in the way argv[1] names; every sample takes a known time."""

import sys
import threading
import time

import torch
from torch.utils.data import DataLoader, Dataset

NAP_S = 0.02


class Slow(Dataset):
    def __getitem__(self, index: int) -> int:
        time.sleep(NAP_S)
        return index

    def __len__(self) -> int:
        return 8


class Nested(Dataset):
    def __getitem__(self, index: int) -> int:
        return sum(batch.item() for batch in DataLoader(Slow(), batch_size=1)) + index

    def __len__(self) -> int:
        return 2


def train(loader: DataLoader) -> None:
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    for _ in loader:
        parameter.grad = torch.ones(1)
        optimizer.step()


def single() -> None:
    train(DataLoader(Slow(), batch_size=2))


def forked() -> None:
    train(DataLoader(Slow(), batch_size=2, num_workers=1))


def spawned() -> None:
    train(DataLoader(Slow(), batch_size=4, num_workers=1, multiprocessing_context="spawn"))


def nested() -> None:
    train(DataLoader(Nested(), batch_size=1))


def prefetching_thread() -> None:
    thread = threading.Thread(target=lambda: list(DataLoader(Slow())))
    thread.start()
    thread.join()
    train(DataLoader(torch.arange(2)))


def broken() -> None:
    class Broken(Slow):
        def __getitem__(self, index: int) -> int:
            raise ValueError("bad sample")

    train(DataLoader(Broken()))


if __name__ == "__main__":
    torch.set_num_threads(1)
    globals()[sys.argv[1]]()
