"""What people run: one small training of each kind (argv[1]), as in tutorials. It knows no torchloom."""

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TextIO

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

CASE = sys.argv[1]
OUT = Path(sys.argv[2])
STEPS = 12


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))


def loss_of(net: nn.Module) -> torch.Tensor:
    return net(torch.ones(4, 8)).square().mean()


def simple(net: nn.Module, steps: int = STEPS) -> None:
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(net).backward()
        optimizer.step()


def lbfgs() -> None:
    net = model()
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(net)
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)


def gan() -> None:
    nets = [model(), model()]
    optimizers = [torch.optim.Adam(net.parameters()) for net in nets]
    for _ in range(STEPS):
        for net, optimizer in zip(nets, optimizers, strict=True):
            optimizer.zero_grad()
            loss_of(net).backward()
            optimizer.step()


def compiled() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    @torch.compile(backend="eager")
    def step() -> None:
        optimizer.step()

    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(net).backward()
        step()


def fsdp2() -> None:
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    net = model()
    fully_shard(net, mesh=mesh)
    simple(net)
    dist.destroy_process_group()


def in_child(rank: int, world: int, port: int) -> None:
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    total = torch.ones(1)
    dist.all_reduce(total)
    (OUT / f"spawned-{rank}").write_text(f"{total.item()}")
    dist.destroy_process_group()


def spawn() -> None:
    """As the tutorial of DDP does it: processes and a store of the script's own."""
    mp.spawn(in_child, args=(2, int(sys.argv[3])), nprocs=2)


def saver() -> None:
    """Saves in its handler of SIGTERM or SIGUSR1, and ends by itself."""
    dist.init_process_group("gloo")
    leaving: list[int] = []
    for handled in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(handled, lambda number, frame: leaving.append(number))
    net = nn.parallel.DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    done = 0
    while not leaving:
        optimizer.zero_grad()
        loss_of(net).backward()
        optimizer.step()
        done += 1
        time.sleep(0.01)
    (OUT / f"saved-{dist.get_rank()}").write_text(f"{done} {signal.Signals(leaving[0]).name}")
    dist.destroy_process_group()


def logged() -> None:
    """Logs its own learning rate, in each run into another file, and ends when the test says so."""
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    with open(OUT / f"lr-{os.environ['TORCHELASTIC_RESTART_COUNT']}", "a", buffering=1) as log:
        while not (OUT / "end").exists():
            optimizer.zero_grad()
            loss_of(net).backward()
            optimizer.step()
            log.write(f"{optimizer.param_groups[0]['lr']}\n")
            time.sleep(0.01)


def odd() -> None:
    """Closes files that it did not open, lets a timer interrupt it, forks, removes the directory it is in,
    and writes through a stdout of its own."""
    os.closerange(3, 256)
    rings: list[int] = []
    signal.signal(signal.SIGALRM, lambda number, frame: rings.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    gone = OUT / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    simple(model())
    codes = []
    for code in (0, 3):
        if (pid := os.fork()) == 0:
            os._exit(code)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    while not rings:
        time.sleep(0.01)
    signal.setitimer(signal.ITIMER_REAL, 0)
    sys.stdout = Loud(sys.stdout)
    print("odd", codes, *sys.argv[3:], flush=True)


class Loud(io.TextIOBase):
    def __init__(self, beneath: TextIO) -> None:
        self._beneath = beneath

    def write(self, text: str) -> int:
        return self._beneath.write(text.upper())

    def flush(self) -> None:
        self._beneath.flush()


def detached() -> None:
    """Leaves a process behind that is in a session of its own."""
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    (OUT / "new").write_text(f"{child.pid}")
    (OUT / "new").rename(OUT / "detached")


if __name__ == "__main__":
    print("case", CASE, flush=True)
    globals()[CASE]()
    print("done", CASE, flush=True)
