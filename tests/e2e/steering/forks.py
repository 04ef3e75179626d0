"""Imports torch once, then forks the workers of a job per line of stdin; the tests' own small spawner.

{"start": [{"spec": …, "cwd": …, "log": path, "env": {…}}, …]} is answered by the pids, {"wait": pid} by the
exit code.
"""

import gc
import json
import os
import sys

import torch._dynamo
import torch.distributed.optim
import torch.nn.parallel

from torchloom.probe import worker


def next_order() -> dict | None:
    """Returns only in a child, with what it is to do; None at the end of the parent's input."""
    for line in sys.stdin:
        asked = json.loads(line)
        if "wait" in asked:
            print(os.waitstatus_to_exitcode(os.waitpid(asked["wait"], 0)[1]), flush=True)
            continue
        pids = []
        for order in asked["start"]:
            pid = os.fork()
            if pid == 0:
                return order
            pids.append(pid)
        print(json.dumps(pids), flush=True)
    return None


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
