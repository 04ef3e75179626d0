"""A small GPT over bytes, trained with DistributedDataParallel on text it makes itself or on yours.

    torchrun --standalone --nproc-per-node 2 char_gpt.py --steps 300
    loom run --nproc-per-node 2 char_gpt.py --steps 300

It is an ordinary PyTorch script with a few lines of torchloom: a loader that keeps its place, a
`loom.Checkpoint` that saves and restores, and two lines at the end of the loop that tell what nobody can
guess from outside (the script's own step number, its end, its loss). The same script runs without torchloom
around it; it then saves to CHECKPOINT_DIR or ./checkpoints.

Settings come from the command line or from the environment: MAX_STEPS, CHECKPOINT_DIR, CHECKPOINT_EVERY,
SLEEP_SEC, and DATASET_DIR: a directory or s3://bucket/prefix of .txt or .jsonl files to train on.
"""

import argparse
import math
import os
import random
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import torchloom as loom


def arguments() -> argparse.Namespace:
    env = os.environ
    parser = argparse.ArgumentParser(description="train a small GPT on bytes")
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
    parser.add_argument("--dataset", default=env.get("DATASET_DIR"), help="a directory or s3://bucket/prefix")
    parser.add_argument("--sleep", type=float, default=float(env.get("SLEEP_SEC", "0")))
    return parser.parse_args()


# -- data -----------------------------------------------------------------------------------------------

NOTHING = -100
"""What `cross_entropy` does not count: the places after the end of a short line."""


def made_up(seed: int) -> str:
    """Sentences of a small grammar: enough to see the loss fall."""
    rng = random.Random(seed)
    who = ["the weaver", "an agent", "the spawner", "a worker", "the probe", "an engineer", "the loom"]
    does = ["watches", "starts", "asks", "replaces", "remembers", "follows", "never loses", "restarts"]
    whom = ["a thread", "the step", "every rank", "the black box", "a gradient", "the last word", "a signal"]
    when = ["at dawn", "without a sound", "after the fall", "in one second", "twice", "when nobody looks"]
    parts = [
        f"{rng.choice(who)} {rng.choice(does)} {rng.choice(whom)} {rng.choice(when)}." for _ in range(4000)
    ]
    return " ".join(parts)


class Windows:
    """Overlapping windows of one text, as (inputs, targets)."""

    def __init__(self, content: str, context: int) -> None:
        self.data = torch.tensor(list(content.encode()), dtype=torch.long)
        self.context, self.stride = context, context // 4

    def __len__(self) -> int:
        return (len(self.data) - self.context - 1) // self.stride

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        window = self.data[index * self.stride :][: self.context + 1]
        return window[:-1], window[1:]


class Line:
    """From a line of a shard to (inputs, targets): its bytes, cut or filled up to one length."""

    def __init__(self, context: int) -> None:
        self.context = context

    def __call__(self, line: Any) -> tuple[Tensor, Tensor]:
        content = line["text"] if isinstance(line, dict) else line
        codes = list(f"\n{content}\n".encode())[: self.context + 1]
        inputs, targets = torch.zeros(self.context, dtype=torch.long), torch.full((self.context,), NOTHING)
        inputs[: len(codes) - 1] = torch.tensor(codes[:-1])
        targets[: len(codes) - 1] = torch.tensor(codes[1:])
        return inputs, targets


def open_data(args: argparse.Namespace, world: int) -> tuple[Any, str]:
    """A loader that knows how far it is, and what it reads, in words."""
    if not args.dataset:
        windows = Windows(made_up(args.seed), args.context)
        loader = loom.ElasticLoader(windows, args.batch * world, seed=args.seed, seed_samples=False)
        return loader, f"{len(windows.data):,} bytes of made-up text"
    lines = loom.ShardedDataset(args.dataset, seed=args.seed, transform=Line(args.context))
    return lines.loader(args.batch), f"{lines.lines:,} lines of {args.dataset}"


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

    loader, words = open_data(args, world)
    gpt = GPT(256, args.context, args.width, args.layers, args.heads)
    model = DistributedDataParallel(gpt)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    checkpoint = loom.Checkpoint(
        model=model,
        optimizer=optimizer,
        data=loader,
        every=args.checkpoint_every,
        keep=3,
        dir=args.checkpoint_dir,
    )
    step = checkpoint.restore()
    if rank == 0:
        size = sum(p.numel() for p in gpt.parameters())
        print(f"{size:,} parameters, {words}, {world} workers, from step {step}", flush=True)

    while step < args.steps:
        for inputs, targets in loader:
            step += 1
            logits = model(inputs).flatten(0, 1)
            loss = F.cross_entropy(logits, targets.flatten(), ignore_index=NOTHING)
            optimizer.zero_grad()
            (loss * loader.weight).backward()
            optimizer.step()
            loom.step(step, total=args.steps)
            loom.log(loss=loss)
            if args.sleep:
                time.sleep(args.sleep)
            if rank == 0 and step % 25 == 0:
                value = loss.item()
                print(f"step {step:5d}  loss {value:.3f}  perplexity {math.exp(value):.2f}", flush=True)
            checkpoint.step(step)
            if step == args.steps:
                break

    checkpoint.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
