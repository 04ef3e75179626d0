"""A training of many shapes (argv[1]) that logs, per step, what the optimizer really used and what its
param groups hold after the step.

One line of JSON a step: {"step": count, "used": {address: value}, "seen": {…}, "dropout": …}.
"""

import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn

import torchloom as loom

CASE = sys.argv[1]
STEPS = int(os.environ.get("STEPS", "100000"))
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LOG = open(os.environ["VALUES"], "a", buffering=1)  # noqa: SIM115 – for the whole life of the process
NAMES = ("lr", "weight_decay", "momentum", "betas")

if WORLD > 1 and CASE != "apart":
    dist.init_process_group("gloo")
torch.manual_seed(0)
model: Any = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
if WORLD > 1 and CASE in ("ddp", "checkpoint", "zero"):
    model = nn.parallel.DistributedDataParallel(model)
params = list(model.parameters())


def plain(value: object) -> object:
    return round(value.item(), 9) if isinstance(value, torch.Tensor) else value


def values(optimizers: list[Any]) -> dict[str, object]:
    return {
        f"optimizer{n}.{name}@{g}": plain(group[name])
        for n, optimizer in enumerate(optimizers)
        for g, group in enumerate(optimizer.param_groups)
        for name in NAMES
        if name in group
    }


def make() -> tuple[list[Any], Any]:
    sched = torch.optim.lr_scheduler
    groups = [{"params": params[:2]}, {"params": params[2:], "lr": 0.02}]
    sgd = torch.optim.SGD(groups, lr=0.01, momentum=0.9)
    match CASE:
        case "lambda":
            return [sgd], sched.LambdaLR(sgd, lambda n: 0.999**n)
        case "exponential":
            return [sgd], sched.ExponentialLR(sgd, 0.999)
        case "onecycle":
            return [sgd], sched.OneCycleLR(sgd, max_lr=[0.1, 0.2], total_steps=100_000)
        case "tensor" | "compiled":
            adam = torch.optim.Adam(params, lr=torch.tensor(0.01), foreach=False)
            return [adam], sched.ExponentialLR(adam, 0.999)
        case "zero":
            zero = dist.optim.ZeroRedundancyOptimizer(params, torch.optim.AdamW, lr=0.01)
            return [zero], sched.ExponentialLR(zero, 0.999)
        case "two":
            first, second = torch.optim.SGD(params[:2], lr=0.01), torch.optim.Adam(params[2:], lr=0.02)
            return [first, second], None
        case "adamw" | "ddp" | "checkpoint":
            return [torch.optim.AdamW(params, lr=0.01)], None
        case _:
            return [sgd], None


optimizers, scheduler = make()
used: dict[str, object] = {}
for number, each in enumerate(optimizers):
    # Of this one only: the others hold their values for the time of their own step.
    mine = f"optimizer{number}."
    each.register_step_pre_hook(
        lambda *_, mine=mine: used.update({k: v for k, v in values(optimizers).items() if k.startswith(mine)})
    )
state = {"dropout": 0.1, "calls": [], "mode": "fast", "size": 2, "noise": None}


class Colour(Enum):
    RED = 1
    BLUE = 2


@dataclass
class Noise:
    scale: float
    seed: int | None = None


@loom.handler("dropout", minimum=0.0, below=1.0, description="how much is left out")
def set_dropout(p: float = 0.1) -> None:
    state["calls"].append(p)
    if p == 0.77 and RANK == WORLD - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if p == 0.66 and RANK == WORLD - 1:
        raise ValueError("this rank does not like it")
    state["dropout"] = p


@loom.handler("colour")
def set_colour(colour: Colour = Colour.RED) -> None:
    state["mode"] = colour.name


@loom.handler("mode")
def set_mode(mode: Literal["fast", "exact"] = "fast") -> None:
    state["mode"] = mode


@loom.handler("noise", value=None)
def set_noise(noise: Noise | None) -> None:
    state["noise"] = None if noise is None else noise.scale


class Told(Exception):
    """What a script's own signal handler raises."""


def raise_told(*_: object) -> None:
    raise Told("please save and go")


signal.signal(signal.SIGUSR1, raise_told)
clip = loom.setting("clip", 1.0, minimum=0.0)
step_of: Any = optimizers[0].step
if CASE == "compiled":
    step_of = torch.compile(step_of, backend="eager")
scaler = torch.amp.GradScaler("cpu", enabled=CASE == "scaler")
ckpt: Any = None
first = 0
if CASE == "checkpoint":
    ckpt = loom.Checkpoint(model=model, optimizer=optimizers[0], every=1000, dir=os.environ["CKPT"])
    first = ckpt.restore()
hand = 0.01
count = 0
training = first
while training < STEPS:
    if CASE == "apart":
        time.sleep(0.002 * (1 + RANK))
    time.sleep(0.003)
    loss = model(torch.ones(4, 8)).square().mean()
    for optimizer in optimizers:
        optimizer.zero_grad()
    scaler.scale(loss).backward()
    if CASE == "hand":
        hand *= 0.999
        for group in optimizers[0].param_groups:
            group["lr"] = hand
    if CASE == "raises" and count == 5 and not state.get("raised"):
        state["raised"] = True
        kept = optimizers[0].param_groups[0]["params"]
        optimizers[0].param_groups[0]["params"] = [None]
        try:
            optimizers[0].step()
        except (AttributeError, TypeError):
            pass
        optimizers[0].param_groups[0]["params"] = kept
    if CASE == "scaler":
        scaler.step(optimizers[0])
        scaler.update()
    elif CASE == "signals":
        try:
            step_of()
        except Told:
            print("told", flush=True)
            continue
    else:
        step_of()
    for optimizer in optimizers[1:]:
        optimizer.step()
    count += 1
    if WORLD > 1 and CASE not in ("ddp", "apart", "checkpoint", "zero"):
        dist.all_reduce(torch.ones(1))
    line = {
        "step": count,
        "used": dict(used),
        "seen": values(optimizers),
        "dropout": state["dropout"],
        "clip": clip.value,
        "noise": state["noise"],
        "mode": state["mode"],
        "weight": float(params[0].detach().sum()),
    }
    training = ckpt.step(training + 1) if ckpt is not None else training + 1
    LOG.write(json.dumps({**line, "training": training}) + "\n")
    if scheduler is not None:
        scheduler.step()
print("finished", training, flush=True)
