"""The systemd unit of `loom up`, as text. Installs nothing."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from torchloom.errors import UsageError


def unit(home: Path, flags: Mapping[str, object]) -> str:
    """A user's unit; what of `flags` is None was not given. Workers outlive a restart of the unit, as they do
    any death of the supervisor."""
    loom = Path(sys.executable).parent / "loom"
    for text in (str(home), str(loom), *map(str, flags.values())):
        if not text.isprintable():
            raise UsageError(f"{text!r} cannot be part of a unit: it would be more than one line")
    if "@" in str(flags.get("nats")):
        raise UsageError(
            "a unit is no place for a password, and the list of processes would show it",
            hint="leave it out of --nats, and add an EnvironmentFile= with LOOM_NATS_USER and "
            "LOOM_NATS_PASSWORD to the unit",
        )
    words = ["up", "--foreground"]
    for flag, value in flags.items():
        words += [f"--{flag}", f'"{_escaped(str(value)).replace("$", "$$")}"'] if value is not None else []
    return f"""[Unit]
Description=torchloom ({_escaped(str(home))})

[Service]
Type=exec
Environment="LOOM_HOME={_escaped(str(home))}"
ExecStart="{_escaped(str(loom))}" {" ".join(words)}
Restart=on-failure
RestartSec=2
# Only the supervisor is stopped; workers train on and are adopted by the next one.
KillMode=process
TimeoutStopSec=60
NoNewPrivileges=yes
UMask=0077

[Install]
WantedBy=default.target
"""


def _escaped(text: str) -> str:
    """As systemd reads a quoted word: backslash, quote, and % doubled. Only in the arguments of a command
    a $ has a meaning, and is doubled, too."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
