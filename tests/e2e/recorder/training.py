"""Test programs that train: what DDP's C++ reducer and FSDP2 issue must be seen, and change nothing."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

import torch
import torch.distributed as dist
from rank import Rank
from torch import nn

STEPS = {"off": 200, "native": 300, "python": 300}
COMPARED_AFTER = 200


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def train(me: Rank, net: nn.Module) -> dict[str, Any]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    random_numbers = torch.Generator().manual_seed(me.rank)
    seen: Counter[str] = Counter()
    order: list[list[Any]] = []
    broken = 0
    weights = ""
    for step in range(1, STEPS[me.kind] + 1):
        batch = torch.randn(4, 8, generator=random_numbers)
        loss = net(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for record in me.new_records():
            seen[f"{record['op']} {record['bytes']} {record['dtype']}"] += 1
            order.append([record["op"], record["bytes"], record["group"], record["group_seq"]])
            broken += bool(record["finished_ns"] and record["finished_ns"] < record["entered_ns"])
        if step == COMPARED_AFTER:
            weights = digest(net)
    return {
        "weights": weights,
        "seen": dict(seen),
        "steps": step,
        "order": hashlib.sha256(repr(order).encode()).hexdigest(),
        "broken": broken,
        "progress": me.progress(),
    }


def digest(net: nn.Module) -> str:
    bits = hashlib.sha256()
    for parameter in net.parameters():
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        bits.update(local.detach().numpy().tobytes())
    return bits.hexdigest()


def ddp(me: Rank) -> dict[str, Any]:
    return train(me, nn.parallel.DistributedDataParallel(model()))


def fsdp(me: Rank) -> dict[str, Any]:
    from torch.distributed.fsdp import fully_shard

    mesh = dist.device_mesh.init_device_mesh("cpu", (me.world,))
    net = model()
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return train(me, fully_shard(net, mesh=mesh))
