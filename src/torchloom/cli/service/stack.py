"""Ensures that a stack runs for a home, and waits until it answers. For `up`, `run` and `submit`."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchloom import one_host
from torchloom.cli.cluster.host_files import ClusterHost
from torchloom.cli.service import parts
from torchloom.cli.service.launch import start_supervisor
from torchloom.cli.service.plan import DEFAULT_PORT, Plan
from torchloom.client import Client, Endpoint, NotAnswering
from torchloom.client.endpoint import owner_of
from torchloom.errors import LoomError, NotAllowed, NotFound, TimedOut
from torchloom.home import Home

if TYPE_CHECKING:
    from torchloom.client.schema import Health

OTHERS_WITHIN_S = 10.0
"""After so long, a control host that waits for others counts as started."""
READY_WITHIN_S = 60.0
"""Limit for an overloaded host; a supervisor that gives up reports that much earlier."""
LOOK_EVERY_S = 0.02


def is_supervised(home: Home) -> bool:
    return parts.living(home, "supervisor") is not None


def begin(home: Home, port: int = DEFAULT_PORT, any_port: bool = True) -> subprocess.Popen[bytes] | None:
    """Start a supervisor unless one is running; returns at once. It adopts parts that still live. Raises
    Conflict if another host uses this home."""
    if is_supervised(home):
        return None
    one_host.refuse_elsewhere(home)
    return start_supervisor(home, port, any_port)


@dataclass
class Start:
    """A stack that is starting. `wait` returns when it is up, or raises the reason why it cannot start."""

    home: Home
    port: int = DEFAULT_PORT
    any_port: bool = True
    supervisor: subprocess.Popen[bytes] | None = None
    ready: bool = False
    """Whether it has read its history; a control host of a cluster may have to wait for others."""

    def begin(self) -> Start:
        self.supervisor = begin(self.home, self.port, self.any_port)
        return self

    @property
    def ours(self) -> bool:
        """Whether the running supervisor is the one started here."""
        return self.supervisor is not None and self.supervisor.poll() is None

    def wait(self) -> Endpoint:
        """Wait until the API answers and has caught up, or the supervisor reports why it cannot start."""
        began = time.monotonic()
        deadline = began + READY_WITHIN_S
        in_cluster = ClusterHost.read(self.home) is not None
        while time.monotonic() < deadline:
            self._check()
            health = _health(self.home)
            self.ready = health is not None and health["ready"]
            others = in_cluster and time.monotonic() - began > OTHERS_WITHIN_S
            if self.ready or (health is not None and others):
                return Endpoint.find(self.home)
            time.sleep(LOOK_EVERY_S)
        raise TimedOut(
            f"torchloom did not answer within {READY_WITHIN_S:g} s",
            hint=f"see the logs in {self.home.logs_dir}",
        )

    def _check(self) -> None:
        """Raise if our supervisor gave up; start one if the other process's was about to end."""
        from torchloom.cli.service.supervisor import ALREADY

        status = self.supervisor.poll() if self.supervisor is not None else ALREADY
        if status is not None and status != ALREADY:
            raise _why(self.home, status)
        if status == ALREADY and not is_supervised(self.home):
            self.begin()


def start_node(home: Home) -> None:
    """Start the agent of a host that joined a cluster, and wait until it serves."""
    one_host.refuse_elsewhere(home)
    supervisor = start_supervisor(home, 0, any_port=False)
    deadline = time.monotonic() + READY_WITHIN_S
    while not parts.is_ready(home, "agent"):
        status = supervisor.poll()
        if status is not None:
            parts.end_stay(home)
            raise _why(home, status)
        if time.monotonic() > deadline:
            raise TimedOut(
                f"the agent did not join within {READY_WITHIN_S:g} s", hint=f"see the logs in {home.logs_dir}"
            )
        time.sleep(LOOK_EVERY_S)


def _health(home: Home) -> Health | None:
    plan = Plan.read(home)
    if plan is None:
        return None
    api = Client(Endpoint(plan.url, "", owner_of(home), plan.api_ca), timeout_s=2.0)
    try:
        found = api.health()
        return found if "ready" in found else None
    except (LoomError, TypeError):
        return None
    finally:
        api.close()


class _StartFailed(LoomError):
    """The error the supervisor wrote before it gave up, with its exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]


def _why(home: Home, status: int) -> LoomError:
    failure = parts.take_failure(home, "supervisor")
    if failure is not None:
        return _StartFailed(*failure)
    return TimedOut(
        f"torchloom could not be started (status {status})", hint=f"see {home.logs_dir}/supervisor.log"
    )


def running(home: Home) -> Endpoint | None:
    """The stack that currently answers for this home (or at LOOM_ADDRESS), or None."""
    try:
        endpoint = Endpoint.find(home)
    except (NotFound, NotAllowed):
        return None
    api = Client(endpoint, timeout_s=5.0)
    try:
        api.health()
    except NotAnswering:
        return None
    finally:
        api.close()
    return endpoint
