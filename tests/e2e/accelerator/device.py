"""Programs on the simulated accelerator: that it computes like the CPU, and runs behind its host.

python device.py <program>: prints one line of JSON.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from torchloom.chaos import accelerator
from torchloom.probe.observe.device import describe
from torchloom.probe.observe.metrics import Metrics
from torchloom.probe.observe.parameter_hashes import ParameterHashes
from torchloom.wire import blackbox as bb

DEVICE = "loomsim"


def until(condition: Any, limit_s: float = 60) -> bool:
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def collectives() -> dict[str, Any]:
    """Every collective on the device beside the same one of gloo."""
    me, world = dist.get_rank(), dist.get_world_size()
    results: dict[str, list[Any]] = {"cpu": [], DEVICE: []}
    for device, seen in results.items():

        def numbers(count: int, device: str = device) -> torch.Tensor:
            return torch.arange(count, dtype=torch.float32, device=device) * 0.37 + me

        def see(*tensors: torch.Tensor, seen: list[Any] = seen) -> None:
            seen.append([tensor.cpu().tolist() for tensor in tensors])

        x = numbers(6)
        dist.all_reduce(x)
        see(x, x * 2)
        dist.broadcast(x := numbers(6), 1)
        see(x)
        dist.reduce(x := numbers(6), 0)
        see(x if me == 0 else x * 0)
        dist.all_gather(parts := [torch.empty(6, device=device) for _ in range(world)], numbers(6))
        see(*parts)
        out = torch.empty(6 * world, device=device)
        dist.all_gather_into_tensor(out, numbers(6))
        see(out)
        small = torch.empty(6, device=device)
        dist.reduce_scatter_tensor(small, numbers(6 * world))
        see(small)
        dist.all_to_all_single(out := torch.empty(6 * world, device=device), numbers(6 * world))
        see(out)
        if me == 0:
            dist.send(numbers(6), 1)
        else:
            dist.recv(small, 0)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, numbers(6), 1 - me),
                dist.P2POp(dist.irecv, got := torch.empty(6, device=device), 1 - me),
            ]
        )
        for work in works:
            work.wait()
        see(small if me else got, got)
    return {"same": results["cpu"] == results[DEVICE], "count": len(results["cpu"])}


def training() -> dict[str, Any]:
    """DDP on the device ends with the weights of DDP on the CPU, bit for bit."""
    digests = {}
    for device in ("cpu", DEVICE):
        torch.manual_seed(3)
        net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to(device)
        ddp = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.0005)
        optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.01)
        random = torch.Generator().manual_seed(dist.get_rank())
        for _ in range(20):
            batch = torch.randn(4, 8, generator=random).to(device)
            optimizer.zero_grad()
            ddp(batch).square().mean().backward()
            optimizer.step()
        bits = hashlib.sha256()
        for parameter in net.parameters():
            bits.update(parameter.detach().cpu().numpy().tobytes())
        digests[device] = bits.hexdigest()
    return {"same": digests["cpu"] == digests[DEVICE], "weights": digests[DEVICE]}


def behind() -> dict[str, Any]:
    """The host is ahead: calls return, works and events are not done, and then they are, in order."""
    x = torch.ones(4, device=DEVICE)
    before, after = (torch.Event(DEVICE, enable_timing=True) for _ in range(2))
    accelerator.stick()
    before.record()
    work = dist.all_reduce(x, async_op=True)
    assert work is not None
    work.wait()
    doubled = x * 2
    after.record()
    told: dict[str, Any] = {
        "ahead": [before.query(), work.is_completed(), after.query()],
        "future": work.get_future().done(),
        "pending": accelerator.pending() > 0,
    }
    accelerator.release()
    told["value"] = doubled.sum().item()
    told["over"] = [before.query(), work.is_completed(), after.query()]
    before.record()
    accelerator.busy(30)
    after.record()
    torch.accelerator.synchronize()
    told["busy"] = before.elapsed_time(after) / 30
    return told


def values() -> dict[str, Any]:
    """The probe fetches numbers from whatever device there is, hashes parameters there, and never waits."""
    told: dict[str, Any] = {"device": describe().get("accelerator")}
    x = torch.ones(4, device=DEVICE, requires_grad=True)
    view = bb.View(memoryview(bytearray(bb.SIZE)))
    hashing = ParameterHashes(view, lambda *finite: None)
    metrics, optimizer = Metrics(view), torch.optim.SGD([x], lr=0.1)
    torch.accelerator.synchronize()
    accelerator.stick()
    total = (x * 3).sum()
    metrics.log({"loss": total}, 1, time.monotonic_ns())
    hashing._hash(8, optimizer)
    told["before"] = [b'"loss": 12' in (view.read_blob(bb.METRICS) or b""), len(view.hashes())]
    accelerator.release()
    torch.accelerator.synchronize()
    metrics.write(time.monotonic_ns(), at_once=True)
    hashing._take_arrived()
    told["after"] = [b'"loss": 12' in (view.read_blob(bb.METRICS) or b""), len(view.hashes()) > 0]
    return told


def faults() -> dict[str, Any]:
    """A collective that fails says so; communication that stalls ends when it may; a lost device fails."""
    told: dict[str, Any] = {}
    x = torch.ones(4, device=DEVICE)
    accelerator.fail()
    work = dist.all_reduce(x, async_op=True)
    assert work is not None
    told["failed"] = until(work.is_completed) and not work.is_success()
    accelerator.stall()
    work = dist.all_reduce(x, async_op=True)
    assert work is not None
    told["stalled"] = not until(work.is_completed, 0.05)
    accelerator.stall(False)
    told["went on"] = until(work.is_completed) and work.is_success()
    dist.barrier(device_ids=[0])
    accelerator.lose()
    try:
        (x + 1).cpu()
    except RuntimeError as error:
        told["lost"] = str(error).splitlines()[0]
    return told


def main() -> None:
    torch.set_num_threads(1)
    accelerator.load()
    dist.init_process_group("cpu:gloo,loomsim:loomsim")
    told = {name: globals()[name]() for name in sys.argv[1].split(",")}
    told["accelerator"] = str(torch.accelerator.current_accelerator())
    print(json.dumps(told))


if __name__ == "__main__":
    main()
