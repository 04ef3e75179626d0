"""Reports, once and after the first step, which installed modules the script has imported by then.

The agent reads it and has a spawner import the same modules, so that a restart need not. Only modules of
installed packages are named: the script's own files may be edited before the next start. Beside them stand
the names of environment variables that the script changed, because a module may have read one when it was
imported.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from types import ModuleType

PATH_VARIABLE = "LOOM_IMPORTS_FILE"
"""Where to write the report; unset: nobody wants one."""
INSTALLED = ("/site-packages/", "/dist-packages/")
OURS = "torchloom."
OUR_INTEGRATIONS = "torchloom.integrations."


class ImportReport:
    """Of one worker. Remembers how the process began; costs nothing until the report is written."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._path = environ.get(PATH_VARIABLE, "")
        self._before = frozenset(sys.modules) if self._path else frozenset()
        self._environ = dict(environ) if self._path else {}

    @property
    def is_due(self) -> bool:
        return bool(self._path)

    def write(self) -> None:
        """Write it, whole or not at all."""
        path, self._path = self._path, ""
        text = json.dumps(
            {
                "modules": installed(self._before, dict(sys.modules)),
                "changed": sorted(changed(self._environ, os.environ)),
            }
        )
        made = f"{path}.{os.getpid()}.tmp"
        descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        os.replace(made, path)


def installed(before: Iterable[str], modules: Mapping[str, ModuleType | None]) -> list[str]:
    """New modules of installed packages, in the order in which they were imported."""
    known = set(before)
    found = []
    for name, module in modules.items():
        if name in known or (name.startswith(OURS) and not name.startswith(OUR_INTEGRATIONS)):
            continue
        spec = getattr(module, "__spec__", None)
        origin = getattr(spec, "origin", None)
        if spec is None or spec.name != name or not isinstance(origin, str):
            continue
        if any(part in origin for part in INSTALLED) or name.startswith(OUR_INTEGRATIONS):
            found.append(name)
    return found


def changed(before: Mapping[str, str], now: Mapping[str, str]) -> set[str]:
    """Variables that are new, gone or different."""
    return {name for name in {*before, *now} if before.get(name) != now.get(name)}
