"""Which torchloom this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def installed_version() -> str:
    """The installed version; a source tree on PYTHONPATH has none."""
    try:
        return version("torchloom")
    except PackageNotFoundError:
        return "0+source"
