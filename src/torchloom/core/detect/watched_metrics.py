"""Which of the numbers that a script tells are looked at by detectors, and by what name they go.

Standard library only: the probe imports it too. Judging them is for detect/numerics.py.
"""

from __future__ import annotations

CURVES = ("loss", "grad_norm")
"""Those whose spikes are told."""
PARAMETERS = "parameters"
"""Told beside the metrics, as NaN, while some of the parameters are no finite numbers."""


def is_watched(name: str) -> bool:
    """Losses and gradient norms. Other metrics may be NaN for good reasons."""
    return name in CURVES or name.endswith("_loss")
