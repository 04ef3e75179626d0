"""Does nothing until it is ended, and notes where it runs: for tests that ask only for that."""

import json
import os
import sys
import time
from pathlib import Path

names = ("LOOM_JOB", "RANK", "LOCAL_RANK", "CUDA_VISIBLE_DEVICES")
note = {name: os.environ.get(name, "") for name in names} | {"pid": os.getpid()}
directory = Path(sys.argv[1])
part = directory / f".{os.getpid()}"
part.write_text(json.dumps(note))
part.rename(directory / f"{os.getpid()}.json")
while True:
    time.sleep(0.2)
