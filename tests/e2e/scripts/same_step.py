"""Two saves of one step, of which one rank has only the first in memory; prints what each rank gets back.

same_step.py DIR killed       saves twice, and ends in the middle of the second: rank 1 has not taken it
same_step.py DIR restored     restores, in the next life
same_step.py DIR rolled-back  saves twice, the second on rank 0 only, and goes back to that step
same_step.py DIR again        trains, restores and trains on, with the same Checkpoint; prints what was saved
"""

import os
import sys

import torch
import torch.distributed as dist

import torchloom as loom

directory, what = sys.argv[1:]
os.environ["LOOM_MEMORY_DIR"] = f"{directory}/memory"
os.environ["LOOM_GENERATION"] = "2" if what == "restored" else "1"
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = torch.nn.Linear(1, 1)  # unlike under DDP, each rank has its own


def hold(value: float) -> None:
    with torch.no_grad():
        model.weight.fill_(value)


def show() -> None:
    everyone: list[object] = [None] * world
    dist.all_gather_object(everyone, model.weight.item())
    if rank == 0:
        print(*everyone, flush=True)


ckpt = loom.Checkpoint(model=model, dir=directory, name="job", every=4 if what == "again" else 1000)
if what != "again":
    ckpt.restore()
if what == "again":
    for _ in range(2):
        first = ckpt.restore()
        for step in range(first + 1, first + 11):
            hold(step)
            ckpt.step(step)
            ckpt.wait()
elif what == "restored":
    assert ckpt.restored is not None and ckpt.restored.where == "memory"
else:
    hold(1.0)
    ckpt.save(10, wait=True)
    ckpt.look()  # the other rank may use the other slots now
    dist.barrier()
    hold(2.0)
    if rank == 0:
        ckpt._saver.take(10, {}, to_store=False)  # a save of which the other rank has nothing yet
        ckpt._staging.look(wait=True)
    if what == "killed":
        os._exit(0)
    ckpt.roll_back(10)
show()
dist.destroy_process_group()
