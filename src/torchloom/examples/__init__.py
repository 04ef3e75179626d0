"""The workload that `loom demo` and a job without a program run. Reads top to bottom."""

from __future__ import annotations

from pathlib import Path


def char_gpt_path() -> Path:
    """The example script. A path, not an import: it runs as a program of its own."""
    return Path(__file__).with_name("char_gpt.py")
