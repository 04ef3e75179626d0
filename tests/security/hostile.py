"""A neighbour on this host: another real user (`nobody`), where the tests run as root.

Owns how code is run as that user. Where it cannot be, a test that needs it is skipped, and says so.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Sequence

import pytest

USER = "nobody"


def neighbour() -> int:
    """The user id of the neighbour; skips the test where we cannot become that user."""
    if os.geteuid() != 0:
        pytest.skip("SECURITY NOT TESTED: only root can play a second user")
    return pwd.getpwnam(USER).pw_uid


def as_neighbour(code: str, *args: str, pass_fds: Sequence[int] = ()) -> subprocess.Popen[str]:
    """Run Python code as the neighbour. Its imports are made before it becomes that user, who may not read
    the interpreter's files."""
    uid, gid = neighbour(), pwd.getpwnam(USER).pw_gid
    become = "import json, os, socket, sys, time, encodings.idna\n"
    become += f"os.setgroups([]); os.setgid({gid}); os.setuid({uid})\n"
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", become + code, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd="/",
        env={"PATH": os.defpath},
        pass_fds=pass_fds,
    )
