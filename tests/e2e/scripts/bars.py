"""Bars of tqdm and rich that stop half way until they may continue: `bars.py DIRECTORY`."""

import sys
import time
from pathlib import Path

from rich.progress import Progress
from tqdm import tqdm


def wait(name: str) -> None:
    while not (Path(sys.argv[1]) / name).exists():
        time.sleep(0.02)


print("begins", flush=True)
with tqdm(range(10), desc="tqdm", mininterval=0) as bar:
    for number in bar:
        if number == 5:
            bar.refresh()
            wait("tqdm")
with Progress(auto_refresh=False) as progress:
    task = progress.add_task("rich", total=10)
    for number in range(10):
        progress.advance(task)
        progress.refresh()
        if number == 5:
            wait("rich")
print("ends", flush=True)
