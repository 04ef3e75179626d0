"""Async tests and the helpers of the other suites, for the attacks."""

from __future__ import annotations

import sys
from pathlib import Path

for suite in ("integration", "unit", "unit/weaver"):
    sys.path.insert(0, str(Path(__file__).parents[1] / suite))
