"""Examples, each to be read from top to bottom: char_gpt is what `loom demo` and a job without a program run;
hf_trainer, lightning_fit and accelerate_loop have no line of torchloom in them."""

from __future__ import annotations

from pathlib import Path


def char_gpt_path() -> Path:
    """The example script. A path, not an import: it runs as a program of its own."""
    return Path(__file__).with_name("char_gpt.py")
