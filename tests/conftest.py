"""What holds for all tests: hypothesis draws the same examples on every run and never looks at the clock;
whatever is restored is read back from the script's objects and compared, to the last byte; and nothing that a
test started outlives the session, even if that is interrupted (session_guard.py).

A test that fails once in a hundred runs tells nobody anything, and a machine that stands still for a second
is no failure. Whoever wants other examples raises the number of them (LOOM_TEST_EXAMPLES where it is read).
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

import session_guard

os.environ.setdefault("LOOM_RESTORE_CHECK", "all")
# A test host has few cores, and tests share stacks.
os.environ.setdefault("LOOM_SLOTS", "64")

settings.register_profile(
    "torchloom", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("torchloom")


def pytest_configure(config: pytest.Config) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:  # a worker of xdist has the mark from whoever started it
        session_guard.begin()
