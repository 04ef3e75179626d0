"""Which of the metrics that a script logs the detectors watch, and under which names.

Standard library only: the probe imports it too. Judging them is for detect/numerics.py.
"""

from __future__ import annotations

CURVES = ("loss", "grad_norm")
"""Those whose spikes are reported."""
PARAMETERS = "parameters"
"""Reported beside the metrics, as NaN, while some parameters are NaN or infinite."""


def is_watched(name: str) -> bool:
    """Losses and gradient norms. Other metrics may be NaN for good reasons."""
    return name in CURVES or name.endswith("_loss")
