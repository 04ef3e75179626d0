"""A small character GPT, trained with DistributedDataParallel on text it makes itself.

    torchrun --standalone --nproc-per-node 2 char_gpt.py --steps 300
    loom run --nproc-per-node 2 char_gpt.py --steps 300

It is an ordinary PyTorch script with four lines of torchloom: `loom.Checkpoint` saves and restores, and the
two lines at the end of the loop tell what nobody can guess from outside (the script's own step number, its
end, its loss). The same script runs without torchloom around it; it then saves to CHECKPOINT_DIR or
./checkpoints.

Settings come from the command line or from the environment: MAX_STEPS, CHECKPOINT_DIR, CHECKPOINT_EVERY,
SLEEP_SEC, DATASET_DIR (a directory of .txt files to train on instead of the made-up text).
"""

import argparse
import math
import os
import random
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import torchloom as loom


def arguments() -> argparse.Namespace:
    env = os.environ
    parser = argparse.ArgumentParser(description="train a small character GPT")
    parser.add_argument("--steps", type=int, default=int(env.get("MAX_STEPS", "300")))
    parser.add_argument("--batch", type=int, default=16, help="sequences per worker")
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoint-dir", default=None, help="a directory or s3://bucket/prefix")
    parser.add_argument(
        "--checkpoint-every", default=env.get("CHECKPOINT_EVERY", "25"), help="steps, or auto"
    )
    parser.add_argument("--sleep", type=float, default=float(env.get("SLEEP_SEC", "0")))
    return parser.parse_args()


# -- data -----------------------------------------------------------------------------------------------


def text(seed: int) -> str:
    """Files of DATASET_DIR, or sentences of a small made-up grammar: enough to see the loss fall."""
    folder = os.environ.get("DATASET_DIR")
    if folder:
        return "\n".join(path.read_text(errors="replace") for path in sorted(Path(folder).glob("*.txt")))
    rng = random.Random(seed)
    who = ["the weaver", "an agent", "the spawner", "a worker", "the probe", "an engineer", "the loom"]
    does = ["watches", "starts", "asks", "replaces", "remembers", "follows", "never loses", "restarts"]
    whom = ["a thread", "the step", "every rank", "the black box", "a gradient", "the last word", "a signal"]
    when = ["at dawn", "without a sound", "after the fall", "in one second", "twice", "when nobody looks"]
    parts = [
        f"{rng.choice(who)} {rng.choice(does)} {rng.choice(whom)} {rng.choice(when)}." for _ in range(4000)
    ]
    return " ".join(parts)


class Characters:
    """Random windows of the text. The batch of a step depends on seed, step and rank only."""

    def __init__(self, content: str, context: int, seed: int) -> None:
        self.alphabet = sorted(set(content))
        index = {c: i for i, c in enumerate(self.alphabet)}
        self.data = torch.tensor([index[c] for c in content], dtype=torch.long)
        self.context, self.seed = context, seed

    def batch(self, step: int, rank: int, size: int) -> tuple[Tensor, Tensor]:
        rng = torch.Generator().manual_seed(hash((self.seed, step, rank)) % 2**31)
        starts = torch.randint(len(self.data) - self.context - 1, (size,), generator=rng)
        windows = torch.stack([self.data[i : i + self.context + 1] for i in starts])
        return windows[:, :-1], windows[:, 1:]


# -- model ----------------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (
            part.view(b, t, self.heads, c // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(c, dim=2)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary: int, context: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, idx: Tensor) -> Tensor:
        x = self.tokens(idx) + self.positions(torch.arange(idx.shape[1], device=idx.device))
        return self.head(self.norm(self.blocks(x)))


# -- training -------------------------------------------------------------------------------------------


def main() -> None:
    args = arguments()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)

    data = Characters(text(args.seed), args.context, args.seed)
    gpt = GPT(len(data.alphabet), args.context, args.width, args.layers, args.heads)
    model = DistributedDataParallel(gpt)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    checkpoint = loom.Checkpoint(
        model=model, optimizer=optimizer, every=args.checkpoint_every, keep=3, dir=args.checkpoint_dir
    )
    first = checkpoint.restore()
    if rank == 0:
        size = sum(p.numel() for p in gpt.parameters())
        print(
            f"{size:,} parameters, {len(data.data):,} characters, {world} workers, from step {first}",
            flush=True,
        )

    for step in range(first + 1, args.steps + 1):
        inputs, targets = data.batch(step, rank, args.batch)
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loom.step(step, total=args.steps)
        loom.log(loss=loss)
        if args.sleep:
            time.sleep(args.sleep)
        if rank == 0 and step % 25 == 0:
            value = loss.item()
            print(f"step {step:5d}  loss {value:.3f}  perplexity {math.exp(value):.2f}", flush=True)
        checkpoint.step(step)

    checkpoint.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
