"""Prints a million lines at once, then one more now and then."""

from __future__ import annotations

import itertools
import sys
import time

LINES = 1_000_000
for first in range(0, LINES, 10_000):
    sys.stdout.write("".join(f"line {n}\n" for n in range(first, first + 10_000)))
sys.stdout.flush()
for tick in itertools.count():
    print(f"tick {tick}", flush=True)
    time.sleep(0.5)
