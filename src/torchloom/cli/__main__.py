"""`python -m torchloom.cli`: the same as `loom`, for callers without `loom` on PATH (our own parts)."""

from torchloom.cli.main import main

main()
