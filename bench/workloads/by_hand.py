"""The limit of a start and a restart: import once, fork the ranks, join, make a step. Nobody watches.

Usage: by_hand.py RANKS SCRIPT NOTES_DIR [SCRIPT_ARGS…]. Runs the script in forked ranks; on SIGUSR1 it kills
all and forks new ones. On SIGUSR2 it imports what rank 0 has imported by then, and makes NOTES_DIR.ready:
what a launcher takes beyond this is its own.
"""

import contextlib
import importlib
import os
import runpy
import signal
import socket
import sys
import time
from pathlib import Path

from torchloom.spawner.warm import MODULES

for name in MODULES:
    importlib.import_module(name)

size, script, notes = int(sys.argv[1]), sys.argv[2], sys.argv[3]
learned, ready = Path(f"{notes}.modules"), Path(f"{notes}.ready")


def report(*_: object) -> None:
    fresh = learned.with_suffix(".new")
    fresh.write_text("\n".join(sys.modules))
    fresh.replace(learned)


def ranks() -> list[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pids = []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGUSR1, signal.SIG_DFL)
            signal.signal(signal.SIGUSR2, report)
            os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank)}
            os.environ |= {"LOCAL_WORLD_SIZE": str(size), "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "hand"}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            sys.argv = [script, *sys.argv[3:]]
            runpy.run_path(script, run_name="__main__")
            os._exit(0)
        pids.append(pid)
    return pids


running = ranks()


def again(*_: object) -> None:
    for pid in running:
        os.kill(pid, signal.SIGKILL)
    for pid in running:
        os.waitpid(pid, 0)
    running[:] = ranks()


def learn(*_: object) -> None:
    os.kill(running[0], signal.SIGUSR2)
    while not learned.exists():
        time.sleep(0.01)
    for module in learned.read_text().splitlines():
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    ready.touch()


signal.signal(signal.SIGUSR1, again)
signal.signal(signal.SIGUSR2, learn)
while True:
    signal.pause()
