"""`python -m torchloom.cli`: the same as `loom`, for whoever has no script on its PATH (our own parts)."""

from torchloom.cli.main import main

main()
