"""A rank that ends while its device still runs: `ending.py BOX STORE`. It stays in its last exit handler.

What libc calls last is `pause`, so that whoever started it can look at what the recorder wrote by then.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

libc = ctypes.CDLL(None)
libc.__cxa_atexit(libc.pause, None, None)  # glibc exports no plain atexit

import torch.distributed as dist  # noqa: E402
from recorded import Box, ones, until  # noqa: E402

from torchloom.chaos import accelerator  # noqa: E402
from torchloom.wire import blackbox as bb  # noqa: E402

box = Box(Path(sys.argv[1]))  # before the device is used, as in a worker
accelerator.load()
dist.init_process_group("loomsim", store=dist.FileStore(sys.argv[2], 1), rank=0, world_size=1)
accelerator.stick()
work = dist.all_reduce(ones(), async_op=True)
until(lambda: box.view.progress(bb.Progress.DEVICE_STATE) == bb.DeviceState.BUSY, "nobody looks")
