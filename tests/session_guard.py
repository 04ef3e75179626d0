"""Ends whatever the tests of one session have started, once the session is over, however it ended.

Ctrl-C, a kill or a crash of pytest runs no fixture to its end, and stacks are made to outlive whoever started
them. So everything that tests start carries a mark in its environment, and a process of its own waits for the
end of pytest and then ends what has the mark, and its descendants. It touches nothing else.

The mark is also an entry of PATH, a directory that does not exist: our nats-server is given only PATH and
HOME, and once its parent is gone nothing else shows whose it is.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

MARK = "TORCHLOOM_TEST_SESSION"
GUARD = "TORCHLOOM_TEST_GUARD"
"""The mark of those who wait: tests of this file run pytest in pytest, and each has to do its work."""
GRACE_S = 3.0
"""For fixtures of xdist's workers that are ending things themselves."""
LONGEST_S = 60.0


def begin() -> None:
    """Mark this process and so all that it starts, and have somebody wait for its end."""
    os.environ[MARK] = mark = uuid.uuid4().hex
    os.environ["PATH"] = os.pathsep.join((os.environ.get("PATH", os.defpath), f"/nonexistent/{mark}"))
    env = {name: value for name, value in os.environ.items() if name != MARK} | {GUARD: "1"}
    command = [sys.executable, __file__, str(os.getpid()), mark]
    quiet = subprocess.DEVNULL
    subprocess.Popen(command, env=env, start_new_session=True, stdin=quiet, stdout=quiet, stderr=quiet)


def watch(pid: int, mark: str) -> None:
    with contextlib.suppress(ProcessLookupError):
        held = os.pidfd_open(pid)
        select.select([held], [], [])
    homes: set[str] = set()
    until = time.monotonic() + GRACE_S
    while marked(mark, homes) and time.monotonic() < until:
        time.sleep(0.1)
    until = time.monotonic() + LONGEST_S
    # A supervisor may have begun a part anew just before it was ended: look until nothing is left.
    while (found := marked(mark, homes)) and time.monotonic() < until:
        for victim in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(victim, signal.SIGKILL)
        time.sleep(0.1)
    for home in homes:
        remove_boxes(home)


def marked(mark: str, homes: set[str]) -> set[int]:
    """Living processes with the mark, and what descends from them; the homes that they use are added."""
    found: set[int] = set()
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdecimal() or int(entry) == os.getpid():
            continue
        try:
            state, parent = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[:2]
            if state == "Z":
                continue
            environment = Path("/proc", entry, "environ").read_bytes()
            words = environment.split(b"\0")
            if f"{GUARD}=1".encode() in words:
                continue
            children.setdefault(int(parent), []).append(int(entry))
        except (OSError, ValueError):
            continue  # ended meanwhile, or somebody else's
        if mark.encode() in environment:
            found.add(int(entry))
            homes |= {word[10:].decode() for word in words if word.startswith(b"LOOM_HOME=")}
    new = list(found)
    while new:
        new = [child for pid in new for child in children.get(pid, ()) if child not in found]
        found |= set(new)
    return found


def remove_boxes(home: str) -> None:
    """Shared memory of a home that tests made; a directory is removed by whoever owns it."""
    from torchloom.home import Home

    if Path(home) != Home.default().root:
        shutil.rmtree(Home(Path(home)).boxes, ignore_errors=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watch(int(sys.argv[1]), sys.argv[2])
