"""torchft DDP that notes every step: appends "ns step replicas" to the file REPLICA.PID in its argument."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
from torch import nn

from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

TIMEOUT = timedelta(seconds=15)


def main() -> None:
    replica = os.environ["REPLICA_GROUP_ID"]
    torch.manual_seed(0)
    model = nn.Linear(64, 64)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=TIMEOUT),
        min_replica_size=1,
        load_state_dict=lambda state: (
            model.load_state_dict(state["m"]),
            optimizer.load_state_dict(state["o"]),
        ),
        state_dict=lambda: {"m": model.state_dict(), "o": optimizer.state_dict()},
        replica_id=f"bench_{replica}",
        timeout=TIMEOUT,
    )
    ddp = DistributedDataParallel(manager, model)
    optimizer = Optimizer(manager, torch.optim.SGD(ddp.parameters(), lr=0.001))
    with Path(sys.argv[1], f"{replica}.{os.getpid()}").open("a", buffering=1) as notes:
        while True:
            optimizer.zero_grad()
            ddp(torch.randn(8, 64)).square().mean().backward()
            time.sleep(0.02)
            optimizer.step()
            notes.write(f"{time.monotonic_ns()} {manager.current_step()} {manager.num_participants()}\n")


if __name__ == "__main__":
    main()
