"""The attacks use the stages of the other suites."""

from __future__ import annotations

import sys
from pathlib import Path

for suite in ("integration", "unit/stories"):
    sys.path.insert(0, str(Path(__file__).parents[1] / suite))
