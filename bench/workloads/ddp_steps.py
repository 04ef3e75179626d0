"""A DDP (or FSDP2) job that notes the time of every completed step: what benchmarks run under every launcher.

Usage: ddp_steps.py NOTES_DIR [--fsdp2] [--imports] [--steps N]. Each process appends
`<rank> <step> <monotonic ns>` to NOTES_DIR/<pid>, after a line per phase of its start.
"""

import argparse
import os
import time

over_ns = {"fork_and_worker": time.monotonic_ns()}
parser = argparse.ArgumentParser()
parser.add_argument("notes")
parser.add_argument("--imports", action="store_true", help="import a module that takes 2 s")
parser.add_argument("--fsdp2", action="store_true", help="shard the model with fully_shard")
parser.add_argument("--steps", type=int, default=10**9)
parser.add_argument("--step-ms", type=float, default=5.0)
args = parser.parse_args()
if args.imports:
    import slow_import  # noqa: F401

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

over_ns["the_script's_imports"] = time.monotonic_ns()
dist.init_process_group("gloo")
over_ns["join"] = time.monotonic_ns()
rank = dist.get_rank()
model = torch.nn.Linear(64, 64)
if args.fsdp2:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
else:
    model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
over_ns["DDP_and_optimizer"] = time.monotonic_ns()
data = torch.ones(8, 64)
with open(os.path.join(args.notes, str(os.getpid())), "w", buffering=1) as notes:
    notes.write("".join(f"phase {name} {ns} over\n" for name, ns in over_ns.items()))
    for step in range(1, args.steps + 1):
        model(data).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        notes.write(f"{rank} {step} {time.monotonic_ns()}\n")
        time.sleep(args.step_ms / 1000)
dist.destroy_process_group()
