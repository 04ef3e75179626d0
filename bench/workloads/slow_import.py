"""Stands for what real scripts import beside torch: two seconds of work at import time."""

import time

_end = time.perf_counter() + 2.0
while time.perf_counter() < _end:
    sum(i * i for i in range(1000))
