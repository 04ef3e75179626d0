"""Imports torch once, then forks the workers of a job; the tests' own small spawner.

An order is {"spec": …, "cwd": …, "log": path, "env": {…}}; see forker.py.
"""

import gc
import os
import sys
from pathlib import Path

import torch._dynamo
import torch.distributed.optim
import torch.nn.parallel

from torchloom.probe import worker

sys.path.append(str(Path(__file__).parents[1]))
from forker import next_order

sys.path.pop()  # a worker has the path that it would have without us

gc.collect()
gc.freeze()
order = next_order()
if order is not None:
    descriptor = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    torch.set_num_threads(1)
    worker.run(order["spec"])
