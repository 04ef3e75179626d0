"""All-reduces in a loop over gloo, with a thread that does what NCCL's monitor does on a GPU.

It makes the pipe of torch's Flight Recorder, and writes a dump when somebody has written to it (DumpPipe in
ProcessGroupNCCL.hpp). The dumps are real. Rank 1 stops calling after step 30: `monitored.py NOTES`.
"""

import os
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

rank = int(os.environ["RANK"])


def monitor() -> None:
    name = f"{os.environ['TORCH_NCCL_DEBUG_INFO_PIPE_FILE']}{rank}.pipe"
    os.mkfifo(name)
    pipe = os.open(name, os.O_RDONLY | os.O_NONBLOCK)
    stacks = os.environ["TORCH_INCLUDE_STACK_TRACE"] != "0"
    while True:
        time.sleep(0.2)
        try:
            if not os.read(pipe, 128):
                continue
        except BlockingIOError:
            continue
        with open(f"{os.environ['TORCH_FR_DUMP_TEMP_FILE']}{rank}", "wb") as file:
            file.write(c10d._dump_fr_trace(True, stacks, False))


threading.Thread(target=monitor, daemon=True).start()
dist.init_process_group("gloo")
step = 0
with open(sys.argv[1], "a", buffering=1) as notes:
    while True:
        step += 1
        if rank == 1 and step == 31:
            time.sleep(3600)
        dist.all_reduce(torch.ones(4))
        time.sleep(0.02)
        notes.write(f"{os.getpid()} {rank} {step}\n")
