"""A spawner in miniature for the probe's tests: imports torch once, then forks a worker for each order.

An order is {"spec": …, "cwd": …, "out": path, "err": path, "env": {…}}; see forker.py.
"""

import gc
import os
import sys
from pathlib import Path

import torch._dynamo
import torch.distributed.optim  # noqa: F401 – the warmth

from torchloom.probe import worker

sys.path.append(str(Path(__file__).parents[1]))
from forker import next_order

sys.path.pop()  # a worker has the path that it would have without us

gc.collect()
gc.freeze()  # as the spawner does: a child that ends would else copy every page of torch's objects
order = next_order()
if order is not None:
    for path, descriptor in ((order["out"], 1), (order["err"], 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    worker.run(order["spec"])
