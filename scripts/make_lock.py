"""Writes requirements.lock: every package of the development environment with the hashes of its files.

    python scripts/make_lock.py            # after a change of pyproject.toml or constraints.txt
    python scripts/make_lock.py --check    # does it have the versions of constraints.txt?

The hashes are those of the files that pip chooses on this platform, from the configured indexes and from
pip's default index alone. torch is not in it: which of its builds is right differs from machine to machine.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
TORCHFT = ROOT / "requirements-torchft-stable.lock"
APART = {"torch", "torchloom", "triton"}
LIBRARIES = ("nvidia-", "cuda-")
"""What a build of torch for CUDA brings along: pip takes it when it installs torch."""


def name_of(text: str) -> str:
    """As PyPI compares names."""
    return re.sub(r"[-_.]+", "-", text).lower()


def is_locked(name: str) -> bool:
    return name == "nvidia-ml-py" or not (name in APART or name.startswith(LIBRARIES))


def here() -> str:
    """The platform that files are chosen for."""
    return f"{sys.implementation.cache_tag} {platform.system()} {platform.machine()}"


def chosen(requirements: list[str], **environment: str) -> dict[tuple[str, str], str]:
    """The sha256 of each file that pip would install, by name and version."""
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        command = [sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed"]
        command += ["--report", report.name, *requirements]
        subprocess.run(command, cwd=ROOT, env=os.environ | environment, check=True)
        found = json.loads(Path(report.name).read_text())["install"]
    return {
        (name_of(one["metadata"]["name"]), one["metadata"]["version"]): one["download_info"]["archive_info"][
            "hashes"
        ]["sha256"]
        for one in found
        if "archive_info" in one["download_info"]
    }


def with_default_index(requirements: list[str]) -> dict[tuple[str, str], set[str]]:
    """The same, and what pip's default index alone has of these versions."""
    configured = {key: value for key, value in chosen(requirements).items() if is_locked(key[0])}
    hashes = {key: {value} for key, value in configured.items()}
    pinned = ["--no-deps", *(f"{name}=={version}" for name, version in configured)]
    plain = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": ""}
    for key, value in chosen(pinned, **plain).items():
        hashes.setdefault(key, set()).add(value)
    return hashes


def text(hashes: dict[tuple[str, str], set[str]]) -> str:
    lines = [f"# made by scripts/make_lock.py for: {here()}"]
    for (name, version), found in sorted(hashes.items()):
        lines.append(" ".join([f"{name}=={version}", *(f"--hash=sha256:{one}" for one in sorted(found))]))
    return "\n".join(lines) + "\n"


def pins(file: Path) -> dict[str, str]:
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", file.read_text(), re.MULTILINE)
    return {name_of(name): version for name, version in found}


def main() -> int:
    if "--check" in sys.argv[1:]:
        constraints, locked = pins(ROOT / "constraints.txt"), pins(LOCK)
        wrong = {name for name, version in locked.items() if constraints.get(name, version) != version}
        missing = set(constraints) - set(locked) - APART
        for name in sorted(wrong | missing):
            print(f"{name}: constraints.txt and requirements.lock differ; run python scripts/make_lock.py")
        return bool(wrong or missing)
    LOCK.write_text(
        text(
            with_default_index(
                ["-c", "constraints.txt", "torch==2.13.0", "setuptools", "-e", ".[dev,integrations]"]
            )
        )
    )
    TORCHFT.write_text(text(with_default_index(["--no-deps", "torchft==0.2.0"])))
    print(f"{LOCK.name}: {len(pins(LOCK))} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
