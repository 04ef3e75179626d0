"""A slow rank takes fewer samples of each step: the training is that of the same batches, only faster."""

from __future__ import annotations

import ast
import os
import signal
from pathlib import Path

import pytest
import torch
from stack import Stack, lines_of, wait_until

from torchloom.data import ElasticLoader

SCRIPT = Path(__file__).parents[2] / "bench" / "workloads" / "shared_batch.py"
WORLD, SLOW = 4, 3
SAMPLES, BATCH = 40_000, 32


class Made:
    """What the ranks of shared_batch.py noted; of a step that was made again, the last time."""

    def __init__(self, folder: Path) -> None:
        self.indices: list[dict[int, list[int]]] = []
        self.losses: dict[int, float] = {}
        for rank in range(WORLD):
            mine: dict[int, list[int]] = {}
            for line in lines_of(folder / f"rank{rank}"):
                step, _, rest = line.partition(" ")
                rest, _, _ = rest.rpartition(" ")
                indices, _, loss = rest.rpartition(" ")
                mine[int(step)] = ast.literal_eval(indices)
                self.losses[int(step)] = float(loss)
            self.indices.append(mine)

    def whole(self) -> int:
        """The last step that all ranks have noted."""
        return min(max(mine, default=0) for mine in self.indices)

    def newest(self) -> list[int]:
        return self.shares(self.whole())

    def shares(self, step: int) -> list[int]:
        return [len(mine[step]) for mine in self.indices]


def undisturbed(steps: int) -> tuple[list[list[int]], list[float]]:
    """The samples and the losses of a run on one rank."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        data = torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(1))
        loader = ElasticLoader(list(data), BATCH, seed=7, rank=0, world=1)
        samples, losses = [], []
        for batch in loader:
            optimizer.zero_grad()
            loss = (model(batch) - 1.0).pow(2).mean()
            loss.backward()
            optimizer.step()
            samples.append(loader.indices())
            losses.append(float(loss.detach()))
            if len(losses) == steps:
                break
        return samples, losses
    finally:
        torch.set_default_dtype(default)


def test_a_slow_rank_takes_less_until_it_recovers_and_the_result_is_the_same(
    stack: Stack, tmp_path: Path
) -> None:
    pace, policy = tmp_path / "pace", tmp_path / "policy.toml"
    pace.write_text(f"{SLOW} 3.0")
    rules = "".join(f'[rules.{kind}]\nlikely = "rebalance"\n' for kind in ("compute-slow", "host-contention"))
    policy.write_text(f"cooldown_s = 0\nrebalances_per_hour = 50\n{rules}")
    stack.env["CHECKPOINT_DIR"] = str(tmp_path / "ckpt")
    job = stack.submit(str(SCRIPT), str(tmp_path), workers=WORLD, flags=("--policy", str(policy)))

    def told(words: str) -> bool:
        return any(words in i["decision"] for i in stack.json("incidents", job))

    wait_until(lambda: told("; steps went from "), f"what it gained: {stack.json('incidents', job)}")
    made = Made(tmp_path)
    assert made.shares(5) == [8, 8, 8, 8]
    uneven = made.newest()
    assert uneven[SLOW] == min(uneven) < 6 and sum(uneven) == BATCH, uneven

    # A restart keeps the shares: the rank is still slow.
    os.kill(stack.worker_pid(job, 0), signal.SIGKILL)
    wait_until(lambda: stack.status(job)["generation"] == 2 and stack.status(job)["state"] == "running", "2")
    last = made.whole()
    wait_until(lambda: Made(tmp_path).whole() > last + 30, "it trains again")

    (tmp_path / "faster").write_text(f"{SLOW} 1.0")
    (tmp_path / "faster").replace(pace)  # at no time is it empty
    wait_until(lambda: Made(tmp_path).newest() == [8, 8, 8, 8], "the samples are given back")
    stack.steer("stop", job)
    made = Made(tmp_path)
    samples, losses = undisturbed(made.whole())
    for step in range(1, made.whole() + 1):
        together = [index for mine in made.indices for index in mine[step]]
        assert together == samples[step - 1], step
        assert made.losses[step] == pytest.approx(losses[step - 1], rel=1e-9, abs=1e-12), step
