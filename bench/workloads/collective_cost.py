"""CPU time of the training thread for one all_reduce of 64 bytes, in a group of one rank.

Usage: collective_cost.py STORE_FILE off|profiler|torchloom. TORCH_FR_BUFFER_SIZE switches Flight Recorder.
Prints the median over blocks, in µs.
"""

import ctypes
import mmap
import statistics
import sys
import time

import torch
import torch.distributed as dist

OPERATIONS, BLOCKS = 300, 30

torch.set_num_threads(1)
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], 1), rank=0, world_size=1)
how, tensor, taken = sys.argv[2], torch.ones(16), []
profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
if how == "profiler":
    profiler.start()
elif how == "torchloom":
    from torchloom.probe.observe import recorder
    from torchloom.wire.blackbox import SIZE, View

    memory = mmap.mmap(-1, SIZE)
    recorder.load()
    running = recorder.start(View(memoryview(memory)), ctypes.addressof(ctypes.c_char.from_buffer(memory)))
for _ in range(BLOCKS):
    began = time.thread_time_ns()
    for _ in range(OPERATIONS):
        dist.all_reduce(tensor)
    taken.append((time.thread_time_ns() - began) / 1000 / OPERATIONS)
print(statistics.median(taken[1:]))
sys.stdout.flush()
if how == "profiler":
    profiler.stop()
dist.destroy_process_group()
