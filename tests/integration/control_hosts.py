"""A real cluster from `loom cluster init`: three control hosts, each on its own loopback address."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
from pathlib import Path

from loom_home import LOOM, LoomHome, wait_for

from torchloom.bus.embedded import choose_port
from torchloom.cli.cluster.host_files import ClusterHost
from torchloom.errors import TimedOut

NAMES = ("a", "b", "c")


class ControlHosts:
    def __init__(self, directory: Path, third_octet: int = 77) -> None:
        self.directory = directory
        self.made = directory / "prod"
        self.addresses = {name: f"127.0.{third_octet}.{place + 1}" for place, name in enumerate(NAMES)}
        self.ports = {flag: choose_port() for flag in ("port", "nats-port", "route-port")}
        flags = [f"--{flag}={port}" for flag, port in self.ports.items()]
        named = [f"--host={name}={address}" for name, address in self.addresses.items()]
        self.printed = subprocess.run(
            [LOOM, "cluster", "init", str(self.made), *named, *flags, "--control-only"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        self.homes = {name: self.home(name) for name in NAMES}
        self.nodes: list[LoomHome] = []
        for name in NAMES:
            self.copy(name)

    def home(self, name: str, **env: str) -> LoomHome:
        root = self.directory / f"home-{name}"
        root.mkdir(mode=0o700, exist_ok=True)
        return LoomHome(root, **env)

    def copy(self, name: str, *files: str) -> None:
        """What the printed `scp` does."""
        target = self.homes[name].home.cluster_dir
        if not files:
            shutil.copytree(self.made / name, target)
        for file in files:
            new = target / f".new-{file}"
            shutil.copyfile(self.made / name / file, new)
            new.replace(target / file)

    def start_all(self) -> None:
        starting = [home.start("up") for home in self.homes.values()]
        for name, process in zip(NAMES, starting, strict=True):
            out, err = process.communicate(timeout=240)
            assert process.returncode == 0, f"{name}: {out}\n{err}\n{self.homes[name].logs()}"

    def host(self, name: str) -> ClusterHost:
        found = ClusterHost.read(self.homes[name].home)
        assert found is not None
        return found

    def join(self, node: str, token: str, code: int = 0, at: str = "a", **env: str) -> str:
        """Run the command that `loom node token` printed; what it said."""
        home = self.home(node, **env)
        if code == 0:
            self.nodes.append(home)
        address = f"{self.addresses[at]}:{self.ports['port']}"
        done = home.loom("join", address, "--token", token, "--node", node, "--slots", "1", code=code)
        return done.stdout + done.stderr

    def token(self, *flags: str, at: str = "a") -> str:
        printed = wait_for(lambda: self._printed_token(at, flags), "a token is made")
        return printed.split("--token ")[1].strip()

    def _printed_token(self, at: str, flags: tuple[str, ...]) -> str:
        """Empty while the control plane asks to try again."""
        process = self.homes[at].start("node", "token", *flags)
        out, err = process.communicate(timeout=240)
        assert process.returncode in (0, TimedOut.exit_code), f"{out}\n{err}\n{self.homes[at].logs()}"
        return out if process.returncode == 0 else ""

    def certificate(self, name: str, what: str, ca: Path) -> int:
        """Serial number of the certificate with which a server (`nats-port`) or a service (`port`) proves
        itself to somebody who trusts these authorities."""
        context = ssl.create_default_context(cafile=str(ca))
        address = (self.addresses[name], self.ports[what])
        with socket.create_connection(address, timeout=60) as plain:
            if what == "nats-port":
                line = b""
                while not line.endswith(b"\n"):
                    line += plain.recv(1)
            with context.wrap_socket(plain, server_hostname=address[0]) as proven:
                found = proven.getpeercert()
        assert found is not None
        return int(str(found["serialNumber"]), 16)

    def close(self) -> None:
        ending = [home.start("down") for home in self.nodes]
        for process in ending:
            process.communicate(timeout=240)
        ending = [home.start("down") for home in self.homes.values()]
        for process in ending:
            process.communicate(timeout=240)
