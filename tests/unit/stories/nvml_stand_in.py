"""Builds the stand-in for libnvidia-ml.so.1 and writes its scenarios. The real nvidia-ml-py loads it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "nvml" / "stand_in.c"


class NvmlStandIn:
    """One library and one scenario; `env` makes processes load it."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory, self.scenario = directory, directory / "scenario"
        library = directory / "libnvidia-ml.so.1"
        command = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(SOURCE)]
        subprocess.run(command, check=True)

    @property
    def env(self) -> dict[str, str]:
        path = os.environ.get("LD_LIBRARY_PATH", "")
        found = f"{self.directory}:{path}" if path else str(self.directory)
        return {"LD_LIBRARY_PATH": found, "LOOM_TEST_NVML": str(self.scenario)}

    def write(self, count: int, more: Mapping[str, int] | None = None) -> None:
        """Replace the scenario at once: a reader sees the old or the new one."""
        lines = [f"count {count}", *(f"{key} {value}" for key, value in (more or {}).items())]
        part = self.scenario.with_suffix(".part")
        part.write_text("\n".join(lines) + "\n")
        part.replace(self.scenario)


def gpu(index: int) -> str:
    """The id of a GPU of the stand-in."""
    return f"GPU-{index:08d}-test"
