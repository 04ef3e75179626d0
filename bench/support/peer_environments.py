"""Virtual environments for the launchers that bench/peers.py compares with: one each, in a cache directory.

They are made on request (`--make`), because they take up to a minute and 300 MB each, and stay in
LOOM_BENCH_PEERS (~/.cache/torchloom/peers without it): every checkout uses the same. torch and what we share
with them come from the environment that runs the benchmark, through a .pth file: all launchers run the same
torch.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

PLACE = Path(os.environ.get("LOOM_BENCH_PEERS") or Path.home() / ".cache" / "torchloom" / "peers")

PINS: dict[str, tuple[str, ...]] = {
    "nvrx": ("nvidia-resiliency-ext==0.4.1", "defusedxml==0.7.1", "pynvml==13.0.1"),
    "dlrover": (
        "dlrover==0.6.1",
        "deprecated==1.3.1",
        "wrapt==2.5.2",
        "pynvml==13.0.1",
        "kubernetes==37.0.2",  # its master imports it, also where there is none
        "aiohttp-retry==2.9.1",
        "durationpy==0.11",
        "oauthlib==4.0.1",
        "requests-oauthlib==2.0.0",
        "websocket-client==1.9.2",
        "python-dateutil==4.0.0",
        "tzdata==2026.6",
    ),
    "ray": (
        "ray==2.60.0",
        "msgpack",
        "pandas",
        "pyarrow",
        "tensorboardX",
        "python-dateutil",
        "pytz",
        "tzdata",
        "six",
        "jsonschema",
        "jsonschema-specifications",
        "referencing",
        "rpds-py",
    ),
}


def version(name: str) -> str:
    return PINS[name][0].partition("==")[2]


def bin_of(name: str) -> Path | None:
    """Where its commands are; None if it was not made, or was made of other versions."""
    place = PLACE / name
    try:
        made = (place / "ready").read_text()
    except OSError:
        return None
    if made != _made_of(name):
        return None
    (ours,) = place.glob("lib/python*/site-packages")
    _borrow_torch(ours)
    return place / "bin"


def make(name: str) -> None:
    place = PLACE / name
    venv.create(place, clear=True)
    python = place / "bin" / "python"
    (ours,) = place.glob("lib/python*/site-packages")
    _borrow_torch(ours)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps"]
    subprocess.run([*pip, *PINS[name]], check=True)
    (place / "ready").write_text(_made_of(name))


def _made_of(name: str) -> str:
    return "\n".join((sys.version, *PINS[name]))


def _borrow_torch(site_packages: Path) -> None:
    """Name our own packages, to be found after those of the peer."""
    link, wanted = site_packages / "zz_torch.pth", sysconfig.get_path("purelib") + "\n"
    if not link.exists() or link.read_text() != wanted:
        link.write_text(wanted)
