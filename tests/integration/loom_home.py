"""A home of its own for tests of `loom up` and of the API: real commands, real parts, no torch."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchloom.agent.processes.process import is_alive, start_ticks
from torchloom.home import Home

LOOM = str(Path(sys.executable).parent / "loom")


def wait_for(condition: Callable[[], Any], what: str, timeout_s: float = 150.0, every_s: float = 0.02) -> Any:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(every_s)
    raise AssertionError(f"not within {timeout_s:g} s: {what}")


class LoomHome:
    def __init__(self, root: Path, **env: str) -> None:
        self.home = Home(root)
        self.env = {
            k: v for k, v in os.environ.items() if not k.startswith(("LOOM_", "JOB_ID", "WORLD_SIZE"))
        }
        # No spawner ahead of time: nothing here needs torch.
        self.env |= {"LOOM_HOME": str(root), "NO_COLOR": "1", "LOOM_PREWARM": "0"} | env

    def start(self, *args: str, cwd: Path | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [LOOM, *args],
            env=self.env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # Whoever starts the tests in the background lets them, and so us, ignore Ctrl-C.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    def loom(self, *args: str, code: int = 0, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        process = self.start(*args, cwd=cwd)
        out, err = process.communicate(timeout=240)
        assert process.returncode == code, f"{args}: {process.returncode}\n{out}\n{err}\n{self.logs()}"
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    def json(self, *args: str) -> Any:
        return json.loads(self.loom(*args, "--json").stdout)

    def sleeper(self, *flags: str, name: str = "sleeper") -> str:
        """A job without Python, let alone torch, that ends only when it is ended."""
        words = ("submit", "--name", name, "--spawn", "cold", *flags, "--no-python", "sleep", "100000")
        job = self.loom(*words).stdout.strip()
        wait_for(lambda: self.request("GET", f"/jobs/{job}")[2]["running_workers"] > 0, f"{job} runs")
        return job

    def pid(self, part: str) -> int:
        try:
            return int(json.loads((self.home.parts_dir / f"{part}.json").read_bytes())["pid"])
        except (OSError, ValueError):
            return 0

    def kill(self, part: str) -> int:
        """SIGKILL, and wait until it is dead."""
        pid = self.pid(part)
        ticks = start_ticks(pid)
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not is_alive(pid, ticks), f"{part} is dead")
        return pid

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        token: str | None = None,
        **headers: str,
    ) -> tuple[int, dict[str, str], Any]:
        """One bare HTTP request: status, headers, decoded body."""
        port = json.loads((self.home.parts_dir / "plan.json").read_bytes())["port"]
        given = self.home.token_file.read_text().strip() if token is None else token
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=240)
        sent = {"Authorization": f"Bearer {given}"} | {k.replace("_", "-"): v for k, v in headers.items()}
        try:
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, found, json.loads(data) if data else None

    def logs(self) -> str:
        found = sorted(self.home.logs_dir.glob("*.log")) if self.home.logs_dir.is_dir() else []
        return "\n".join(f"== {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in found)

    def processes(self) -> list[str]:
        """Command lines of living processes that belong to this home."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal() or int(entry.name) == os.getpid():
                continue
            try:
                command = (entry / "cmdline").read_bytes()
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            marks = (os.fsencode(self.home.root), os.fsencode(self.home.sockets))
            if command and any(mark in command or mark in environment for mark in marks):
                found.append(command.replace(b"\0", b" ").decode(errors="replace"))
        return found

    def leftovers(self) -> list[str]:
        found = self.processes()
        found += [str(path) for path in (self.home.sockets, self.home.boxes) if path.exists()]
        if self.home.parts_dir.is_dir():
            found += [str(path) for path in self.home.parts_dir.iterdir() if path.suffix != ".lock"]
        return found
