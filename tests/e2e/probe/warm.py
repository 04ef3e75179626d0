"""A spawner in miniature for the probe's tests: imports torch once, then forks a worker per line of stdin.

Each line is {"spec": …, "cwd": …, "out": path, "err": path, "env": {…}}; the answer is the wait status.
"""

import gc
import json
import os
import sys

import torch._dynamo
import torch.distributed.optim  # noqa: F401 – the warmth

from torchloom.probe import worker


def next_order() -> dict | None:
    """Returns only in a child, with what it is to do; None at the end of the parent's input."""
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            return order
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    return None


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
