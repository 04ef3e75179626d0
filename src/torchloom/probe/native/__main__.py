"""`python -m torchloom.probe.native [--beside]`: build what is native and say in one line what came of it.

That is the recorder, and the copier of checkpoints, without which a save only takes longer. Exits with 0 in
every case: without the library the Python fallback records. `--beside`: as a spawner calls it (beside.py).
"""

from __future__ import annotations

import os
import sys

from torchloom import compiled
from torchloom.checkpoint.native import COPIER
from torchloom.probe.native import BuildOutcome, beside, build

FALLBACK = (
    "the Python fallback samples collectives instead (60 to 90 µs for each one recorded, at most 0.5 % of a "
    "step, no completion times)"
)


def main() -> None:
    compiled.build(COPIER)
    result = build()
    match result.outcome:
        case BuildOutcome.BUILT | BuildOutcome.THERE:
            line = f"native recorder {result.outcome.value}: {result.library}"
        case BuildOutcome.NO_COMPILER:
            line = f"native recorder not built: no C++ compiler found (g++, clang++ or $CXX); {FALLBACK}"
        case BuildOutcome.NO_TORCH:
            line = "native recorder not built: torch is not installed here"
        case BuildOutcome.FAILED:
            line = f"native recorder not built: {result.detail}; {FALLBACK}"
    print(line)


if __name__ == "__main__":
    if beside.FLAG in sys.argv[1:]:
        beside.run(main)
    else:
        try:
            main()
        except KeyboardInterrupt:
            os._exit(130)  # nothing to flush, and torch's finalisers take half a second
