"""Rank 1 dies with the text in a file, by an exception or (`abort`) in C++; rank 0 waits to be ended."""

import os
import sys
import time

path, how = sys.argv[1:3]
if os.environ["RANK"] == "1":
    with open(path) as file:
        text = file.read()
    if how == "abort":
        print(text, file=sys.stderr, flush=True)
        os.abort()
    raise RuntimeError(text)
time.sleep(600)
