"""A control host and some nodes, each in a network namespace of its own; needs root. Measures nothing."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.launchers import BIN, environment, wait_for
from torchloom.bus.nats_binary import find_server
from torchloom.chaos.hosts import INTERFACE, Hosts
from torchloom.home import Home

WITHIN_S = 120.0
PORT = 4222


class Fleet:
    """Host 0 has the control service; nodes `n1`, `n2` … are hosts 1, 2 …"""

    def __init__(self, hosts: Hosts, root: Path, **more: str) -> None:
        self.hosts, self.root = hosts, root
        self.names = [f"n{host}" for host in range(1, hosts.count)]
        url = f"nats://{hosts.address(0)}:{PORT}"
        self._env = environment(LOOM_NATS_URL=url, NO_COLOR="1", **more)
        self._started: list[subprocess.Popen[bytes]] = []

    def env(self, host: int) -> dict[str, str]:
        return self._env | {"LOOM_HOME": str(self.home(host).root), "LOOM_NODE": f"n{host}"}

    def home(self, host: int) -> Home:
        return Home(self.root / f"n{host}")

    def start(self) -> None:
        server = ["-js", "-sd", str(self.root / "js"), "-a", self.hosts.address(0), "-p", str(PORT)]
        self._begin(0, [str(find_server()), *server])
        self.loom("up", "--port", "0", "--slots", "1")
        for host in range(1, self.hosts.count):
            words = ("agent", "--slots", "1", "--address", self.hosts.address(host), "--interface", INTERFACE)
            self._begin(host, [str(BIN / "loom"), *words])
        if not wait_for(lambda: set(self.names) <= set(self.ready()), WITHIN_S):
            raise SystemExit(f"not all nodes are ready: {self.ready()}\n{self.logs()}")
        self.loom("node", "drain", "n0")

    def ready(self) -> list[str]:
        return [node["id"] for node in self.ask("nodes") if node["state"] == "ready"]

    def ask(self, *words: str) -> Any:
        return json.loads(self.loom(*words, "--json"))

    def loom(self, *words: str) -> str:
        command = self.hosts.command(0, [str(BIN / "loom"), *words])
        done = subprocess.run(command, env=self.env(0), capture_output=True, text=True, timeout=WITHIN_S)
        if done.returncode:
            raise SystemExit(f"loom {' '.join(words)} failed: {done.stderr}{done.stdout}\n{self.logs()}")
        return done.stdout

    def lose(self, host: int) -> None:
        """Cut the host off and end everything on it at once, as a loss of power does."""
        self.hosts.cut(host)
        for pid in self.hosts.processes(host):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def logs(self) -> str:
        found = sorted(self.root.glob("log-*"))
        return "\n".join(f"== {path.name}\n{path.read_text(errors='replace')[-2000:]}" for path in found)

    def close(self) -> None:
        with contextlib.suppress(SystemExit, subprocess.TimeoutExpired):
            self.loom("down", "--stop-jobs")
        for process in reversed(self._started):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for host in range(self.hosts.count):
            for pid in self.hosts.processes(host):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            shutil.rmtree(self.home(host).boxes, ignore_errors=True)

    def _begin(self, host: int, argv: list[str]) -> None:
        with (self.root / f"log-{host}-{Path(argv[0]).name}").open("ab") as log:
            self._started.append(
                self.hosts.start(
                    host, argv, env=self.env(host), stdout=log, stderr=log, start_new_session=True
                )
            )


@contextlib.contextmanager
def fleet(nodes: int, **more: str) -> Iterator[Fleet]:
    """A fleet of so many nodes; `more` is in the environment of everything."""
    root = Path(tempfile.mkdtemp(prefix="loom-bench-"))
    with Hosts(nodes + 1, name="loomb", network="10.79.0") as hosts:
        made = Fleet(hosts, root, **more)
        try:
            made.start()
            yield made
        finally:
            made.close()
            shutil.rmtree(root, ignore_errors=True)
