"""Rank 0 waits for ever once the file says so; rank 1 ends at once. Usage: never_ends.py FILE"""

import os
import sys
import time
from pathlib import Path


def stuck_for_ever() -> None:
    Path(sys.argv[1]).write_text("stuck")
    while True:
        time.sleep(3600)


if os.environ["RANK"] == "0":
    stuck_for_ever()
