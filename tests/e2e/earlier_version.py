"""An earlier torchloom beside this one, and a fleet whose parts can be swapped from one to the other.

`PREVIOUS` is a commit of this repository. Its wheel is built from `git archive` and unpacked before the
packages of this environment, so that nothing is downloaded and torch is the same. What it names is version
N−1: raise it to the last release with every release.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from forked import free_port
from stack import HANG_S, Stack, wait_until

from torchloom.bus.nats_binary import find_server
from torchloom.client import Client, Endpoint
from torchloom.errors import LoomError

PREVIOUS = "e9ec596602e3c1a0307497e2d667c07f4a8e655c"
ROOT = Path(__file__).resolve().parents[2]
BUILD = "from setuptools.build_meta import build_wheel; build_wheel('dist')"
NEW = Path(sys.executable)


def _git(*args: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(ROOT), *args], capture_output=True, check=False)


def earlier_python(place: Path) -> Path:
    """An interpreter that has the previous version's wheel, and everything else as this one."""
    if _git("cat-file", "-e", f"{PREVIOUS}^{{commit}}").returncode:
        why = f"ROLLING UPGRADE NOT TESTED: commit {PREVIOUS} is not in this clone"
        pytest.skip(f"{why}; get the history with `git fetch --unshallow`")
    source, unpacked = place / "source", place / "packages"
    (source / "dist").mkdir(parents=True)
    archive = _git("archive", PREVIOUS, "src", "pyproject.toml", "README.md", "LICENSE")
    assert archive.returncode == 0, archive.stderr
    subprocess.run(["tar", "-x", "-C", str(source)], input=archive.stdout, check=True)
    subprocess.run([sys.executable, "-c", BUILD], cwd=source, check=True, capture_output=True)
    (wheel,) = (source / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        content.extractall(unpacked)
    venv = place / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    (site,) = (venv / "lib").glob("python*/site-packages")
    beside = sysconfig.get_path("purelib")
    (site / "earlier.pth").write_text(f"{unpacked}\nimport site; site.addsitedir({beside!r})\n")
    python = venv / "bin" / "python"
    asked = [str(python), "-c", "import torchloom; print(torchloom.__file__)"]
    found = subprocess.run(asked, capture_output=True, text=True, check=True, cwd=place).stdout
    assert found.startswith(str(unpacked)), f"{found} is not the earlier version"
    return python


class Swapped:
    """A NATS server, control services and an agent, each of the version that is asked for."""

    def __init__(self, root: Path, old: Path) -> None:
        self.root, self.old = root, old
        self.stack = Stack(root / "home")
        self.stack.home.root.mkdir(parents=True)
        self.parts: dict[str, subprocess.Popen[bytes]] = {}
        self.address = ""

    # -- parts ----------------------------------------------------------------------------------------
    def start_bus(self) -> None:
        port = free_port()
        command = [
            str(find_server()),
            "-js",
            "-sd",
            str(self.root / "js"),
            "-a",
            "127.0.0.1",
            "-p",
            str(port),
        ]
        self._start("nats", command)
        self.stack.env |= {"LOOM_NATS_URL": f"nats://127.0.0.1:{port}", "LOOM_NODE": "n1"}

    def start_weaver(self, name: str, python: Path) -> None:
        """A control service; commands go to it from now on."""
        port = free_port()
        self._start(name, [str(python), "-P", "-m", "torchloom.cli", "weaver", "--port", str(port)])
        self.address = f"http://127.0.0.1:{port}"
        self.stack.env["LOOM_ADDRESS"] = self.address
        wait_until(lambda: self._health(name).get("ready"), f"{name} answers")

    def start_agent(self, name: str, python: Path) -> None:
        self._start(name, [str(python), "-P", "-m", "torchloom.cli", "agent"])

    def _start(self, name: str, command: list[str]) -> None:
        with (self.root / f"{name}.log").open("ab") as log:
            self.parts[name] = subprocess.Popen(
                command, env=self.stack.env, stdout=log, stderr=log, cwd=self.root
            )

    def end(self, name: str) -> None:
        part = self.parts.pop(name)
        part.send_signal(signal.SIGTERM)
        part.wait(timeout=HANG_S)

    def wait_leads(self, name: str) -> None:
        wait_until(lambda: self._health(name).get("active"), f"{name} leads")

    def _health(self, name: str) -> dict[str, Any]:
        assert self.parts[name].poll() is None, f"{name} has ended:\n{self.logs()}"
        try:
            with self.client() as client:
                return dict(client.health())
        except (LoomError, OSError):
            return {}

    # -- commands -------------------------------------------------------------------------------------
    def client(self) -> Client:
        return Client(Endpoint(self.address, self.stack.home.token_file.read_text().strip()))

    def loom(self, *args: str, python: Path = NEW) -> subprocess.CompletedProcess[str]:
        command = [str(python), "-P", "-m", "torchloom.cli", *args]
        done = subprocess.run(
            command, env=self.stack.env, capture_output=True, text=True, timeout=HANG_S, cwd=self.root
        )
        assert done.returncode == 0, f"{args}: {done}\n{self.logs()}"
        return done

    def job(self, job: str) -> dict[str, Any]:
        try:
            with self.client() as client:
                return dict(client.job(job))
        except LoomError:
            return {}

    def pids(self, job: str) -> list[int]:
        return [worker["pid"] for worker in self.job(job).get("workers", ()) if worker["state"] == "running"]

    def wait_trains(self, job: str, generation: int) -> list[int]:
        """Until all ranks of a generation make steps that this service sees; their pids."""

        def steps() -> int:
            found = self.job(job)
            if found.get("state") != "running" or found["generation"] != generation:
                return 0
            return min(worker["steps"] for worker in found["workers"])

        try:
            before = wait_until(steps, f"{job} trains")
            wait_until(lambda: steps() > before, f"{job} makes further steps")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.job(job)}\n{self.logs()}") from error
        return self.pids(job)

    def logs(self) -> str:
        found = sorted(self.root.glob("*.log"))
        return "\n".join(f"=== {path.name}\n{path.read_text(errors='replace')[-4000:]}" for path in found)

    def close(self) -> None:
        for name in sorted(self.parts, reverse=True):  # weavers, nats, agents
            self.parts[name].kill()
            self.parts[name].wait(timeout=HANG_S)
        for process in self.stack.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        wait_until(lambda: not self.stack.processes(), "everything has ended")
        for place in (self.stack.home.sockets, self.stack.home.boxes):  # as `loom down` does
            shutil.rmtree(place, ignore_errors=True)


@contextlib.contextmanager
def swapped(root: Path, old: Path) -> Iterator[Swapped]:
    fleet = Swapped(root, old)
    try:
        fleet.start_bus()
        yield fleet
    finally:
        fleet.close()


def kill(pid: int) -> None:
    assert pid > 1
    os.kill(pid, signal.SIGKILL)
