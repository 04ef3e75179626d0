"""A training program of the kind people write for small language models, with nothing of torchloom in it.

Settings are module variables that `--name=value` replaces. Under a launcher it uses DDP, splits the gradient
accumulation between the ranks and synchronises on the last micro step only. The learning rate is computed for
every iteration and written into the param groups. Rank 0 keeps one checkpoint file of its own, and
`--init_from=resume` continues from it.
"""

import math
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

out_dir = "."
init_from = "scratch"
max_iters = 40
save_interval = 10
batch_size = 4
block_size = 16
gradient_accumulation_steps = 4
learning_rate = 0.01
warmup_iters = 5
nap_s = 0.0
for word in sys.argv[1:]:
    name, _, text = word.removeprefix("--").partition("=")
    globals()[name] = type(globals()[name])(text)

ddp = "RANK" in os.environ
rank = int(os.environ.get("RANK", 0))
if ddp:
    dist.init_process_group("gloo")
    gradient_accumulation_steps //= dist.get_world_size()
file = os.path.join(out_dir, "ckpt.pt")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        x = x + nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.mlp(x)


class Model(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, width)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.head = nn.Linear(width, 32)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.blocks(self.embed(tokens[:, :-1])))
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def learning_rate_of(iteration: int) -> float:
    if iteration < warmup_iters:
        return learning_rate * (iteration + 1) / warmup_iters
    return learning_rate * (0.55 + 0.45 * math.cos(math.pi * min(1.0, iteration / max_iters)))


torch.manual_seed(7)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
iteration = 0
if init_from == "resume" and os.path.exists(file):
    saved = torch.load(file)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    iteration = saved["iteration"]
    if rank == 0:
        print(f"resuming at iteration {iteration}", flush=True)
wrapped = DistributedDataParallel(model) if ddp else model
draw = torch.Generator().manual_seed(1000 * iteration + rank)

while iteration < max_iters:
    for group in optimizer.param_groups:
        group["lr"] = learning_rate_of(iteration)
    for micro_step in range(gradient_accumulation_steps):
        if ddp:
            wrapped.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        tokens = torch.randint(32, (batch_size, block_size + 1), generator=draw)
        (wrapped(tokens) / gradient_accumulation_steps).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    iteration += 1
    time.sleep(nap_s)
    if rank == 0 and iteration % save_interval == 0:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iteration": iteration}
        torch.save(state, file + ".new")
        os.replace(file + ".new", file)
        print(f"saved iteration {iteration}", flush=True)
if ddp:
    dist.destroy_process_group()
