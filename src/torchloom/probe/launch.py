"""Cold start: `python -m torchloom.probe.launch`, the worker's spec as JSON on descriptor $LOOM_SPEC_FD."""

from __future__ import annotations

import json
import os
from typing import NoReturn

from torchloom.probe import streams, worker


def main() -> NoReturn:
    streams.guard()
    descriptor = int(os.environ.pop("LOOM_SPEC_FD"))
    with open(descriptor, "rb") as file:
        spec = json.load(file)
    worker.run(spec)


if __name__ == "__main__":
    main()
