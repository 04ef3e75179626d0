"""`python -m torchloom.probe.native`: build the native recorder and say in one line what came of it.

Exits with 0 in every case: without the library the Python fallback records.
"""

from __future__ import annotations

from torchloom.probe.native import BuildOutcome, build

FALLBACK = (
    "the Python fallback samples collectives instead (60 to 90 µs for each one recorded, at most 0.5 % of a "
    "step, no completion times)"
)


def main() -> None:
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
    main()
