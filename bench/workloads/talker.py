"""Prints many bytes a step and notes how long its steps took: does whoever reads the log slow it down?"""

import os
import sys
import time
from pathlib import Path

notes, steps, step_bytes = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
piece = (b"x" * 99 + b"\n") * (step_bytes // 100)
begin = time.monotonic()
worked = []
for _ in range(steps):
    start = time.process_time()
    os.write(1, piece)
    sum(i * i for i in range(20_000))
    worked.append(time.process_time() - start)
notes.write_text(f"{time.monotonic() - begin} {sorted(worked)[len(worked) // 2]}")
time.sleep(300)
