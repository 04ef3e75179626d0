"""The real packages: without one a test is skipped on a developer's machine and fails in CI."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def needs() -> Callable[[str], Any]:
    def find(module: str) -> Any:
        try:
            return importlib.import_module(module)
        except ImportError as error:
            why = f"{error}: make setup, or pip install -e '.[integrations]'"
            if os.environ.get("CI") == "true":
                pytest.fail(why)
            pytest.skip(why)

    return find
