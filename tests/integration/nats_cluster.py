"""A real NATS cluster on loopback: three servers with JetStream, mutual TLS for clients and between servers.

Owns the processes, their certificates and one user's key.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import trustme
from loom_home import wait_for

from torchloom.bus.address import BusAddress, BusTls
from torchloom.bus.embedded import choose_port
from torchloom.bus.keys import new_seed, public_key
from torchloom.bus.nats_binary import find_server

HOST = "127.0.0.1"


class NatsCluster:
    def __init__(self, directory: Path, servers: int = 3, room: int = 0) -> None:
        self.directory = directory
        self._room = {"max_file_store": room} if room else {}
        self.files = {name: directory / f"{name}.pem" for name in ("ca", "certificate", "key")}
        self.ca = self.renew()
        self._seed = new_seed()
        self._ports = [choose_port() for _ in range(servers)]
        self._routes = [choose_port() for _ in range(servers)]
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def renew(self) -> trustme.CA:
        """An authority and certificates that have nothing in common with those before, in the same files."""
        self.ca = trustme.CA()
        self.ca.cert_pem.write_to_path(self.files["ca"])
        issued = self.ca.issue_cert(HOST, "localhost")
        issued.cert_chain_pems[0].write_to_path(self.files["certificate"])
        issued.private_key_pem.write_to_path(self.files["key"])
        return self.ca

    @property
    def tls(self) -> BusTls:
        return BusTls(*(str(self.files[name]) for name in ("ca", "certificate", "key")))

    def address(self, tls: BusTls | None = None) -> BusAddress:
        servers = tuple(f"tls://{HOST}:{port}" for port in self._ports)
        return BusAddress(servers, seed=self._seed, tls=tls or self.tls)

    def start(self, number: int) -> None:
        directory = self.directory / f"n{number}"
        directory.mkdir(exist_ok=True)
        tls = {
            "cert_file": str(self.files["certificate"]),
            "key_file": str(self.files["key"]),
            "ca_file": str(self.files["ca"]),
            "verify": True,
        }
        config = {
            "server_name": f"n{number}",
            "host": HOST,
            "port": self._ports[number],
            "tls": tls,
            "jetstream": {"store_dir": str(directory / "jetstream"), **self._room},
            "accounts": {"LOOM": {"jetstream": "enabled", "users": [{"nkey": public_key(self._seed)}]}},
        }
        if len(self._ports) > 1:
            routes = [f"nats-route://{HOST}:{port}" for port in self._routes]
            config["cluster"] = {
                "name": "loom",
                "host": HOST,
                "port": self._routes[number],
                "routes": routes,
                "tls": tls,
            }
        (directory / "nats.conf").write_text(json.dumps(config))
        with (directory / "log").open("ab") as log:
            self._running[number] = subprocess.Popen(
                [str(find_server()), "-c", str(directory / "nats.conf")], stdout=log, stderr=log
            )

    def start_all(self) -> None:
        for number in range(len(self._ports)):
            self.start(number)
        wait_for(lambda: all(self._is_ready(number) for number in self._running), "a cluster that stands")

    def _is_ready(self, number: int) -> bool:
        assert self._running[number].poll() is None, self._log(number)
        return "Server is ready" in self._log(number)

    def _log(self, number: int) -> str:
        return (self.directory / f"n{number}" / "log").read_text()

    def pid_at(self, port: int) -> int:
        """The process of the server that listens there."""
        return self._running[self._ports.index(port)].pid

    def kill(self, number: int) -> None:
        self._running[number].kill()
        self._running.pop(number).wait()

    def close(self) -> None:
        for number in list(self._running):
            self.kill(number)
