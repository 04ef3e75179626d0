"""The supervisor behind `loom up`: starts nats-server, weaver and agent, and restarts any that dies.

The supervisor may die at any time: every part has its own session and a record in `parts/`; the next
supervisor adopts the living parts and starts the missing ones. It never touches a worker and decides nothing
about jobs; it only asks whether one is active, because a stack that `loom run` started ends with its last
job.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from torchloom import one_host
from torchloom.bus.cluster_nats import ClusterNats
from torchloom.bus.embedded import EmbeddedNats
from torchloom.cli.cluster.host_files import ClusterHost
from torchloom.cli.cluster.node_files import JoinedNode
from torchloom.cli.service import cleanup, own_logs, parts
from torchloom.cli.service.certificate_watch import CertificateWatch
from torchloom.cli.service.launch import open_port, start_part
from torchloom.cli.service.parts import PARTS, PartRecord
from torchloom.cli.service.plan import HOST, Plan, external_bus, make_token, node_name
from torchloom.cli.service.store_watch import StoreWatch
from torchloom.cli.service.supervised import Watched
from torchloom.client import Client, Endpoint
from torchloom.errors import LoomError, StoreInUse, TimedOut
from torchloom.home import Home

if TYPE_CHECKING:
    from torchloom.client.schema import Health

LOOK_EVERY_S = 0.1
"""How often a stack without a holder asks whether a job is active."""
HEALTH_EVERY_S, HEALTH_WITHIN_S, AGAIN_AFTER_S = 5.0, 3.0, 1.0
HUNG_AFTER_S = float(os.environ.get("LOOM_HUNG_AFTER_S") or 30.0)
"""A weaver that lives and has not answered for so long is killed and started again; no job notices."""
UNANSWERED = 3
"""So many questions in a row, besides: it may be this process that stood still."""
START_TRIES = 4
"""How often a part may die before the stack has ever answered."""


class Supervisor:
    def __init__(self, home: Home, port: int, any_port: bool) -> None:
        self._home = home
        self._wanted_port = port
        self._any_port = any_port
        self._node = node_name()
        self._cluster = ClusterHost.read(home)
        self._joined = JoinedNode.read(home)
        """A host that joined a cluster runs an agent and nothing else."""
        self._certificates = CertificateWatch.of(self._cluster) if self._cluster is not None else None
        self._store = StoreWatch(cluster=self._cluster is not None)
        self._told_to_end = 0
        """The process of the nats-server that was last asked to end because it stored nothing."""
        self._parts = {name: Watched(name) for name in PARTS}
        self._socket: socket.socket | None = None
        self._plan = Plan(port)
        self._ending = False
        self._health_due_s, self._renew_due_s = 0.0, 0.0
        self._answered_s = 0.0
        """When the API answered last, on the monotonic clock; 0 before it was first asked."""
        self._unanswered = 0
        """Questions in a row since then."""
        self._hung = 0
        """How often the weaver was killed since then. On a slow host it may need longer for its start than it
        is given: each one gets twice as long as the one before."""
        self._settled = False
        """Whether the API has answered once, or parts were adopted: there is a stack to keep alive. Until
        then, a part that cannot start is an error to report, and the supervisor gives up."""

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write)
        try:
            self._set_up()
            while not self._ending:
                self._start_due()
                self._wait(wake_read)
                self._look()
            say("ending everything" if not parts.stays(self._home) else "ending")
        except LoomError as error:
            say(f"cannot continue: {error}")
            parts.write_failure(self._home, "supervisor", str(error), error.exit_code)
            cleanup.end_parts(self._home)
            return error.exit_code
        cleanup.end_parts(self._home)
        return 0

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._ending = True

    # ---- set-up ----

    def _set_up(self) -> None:
        """Adopt the living parts; if there are none, choose a new port and bus."""
        make_token(self._home)
        alive = [name for name in PARTS if parts.living(self._home, name)]
        old = Plan.read(self._home)
        if old is not None and alive:
            self._plan = old
            self._settled = True
        else:
            # Clients that follow a job of a stack that died completely know its old port.
            port = old.port if old is not None and self._any_port else self._wanted_port
            bound, bus = self._listen(port), external_bus()
            if bus is not None:
                self._plan = Plan.of_bus(bound, bus)
            else:
                # An external server chosen for this stack stays in use until `loom down`.
                self._plan = replace(old, port=bound) if old is not None else Plan(bound)
            if self._cluster is not None:
                self._plan = replace(
                    self._plan, host=self._cluster.host.address, api_ca=str(self._cluster.ca)
                )
            self._plan.write(self._home)
        if not self._home.webhooks_file.exists():
            del self._parts["notify"]
        if self._joined is not None:
            self._parts = {"agent": self._parts["agent"]}
        elif self._cluster is not None and not self._cluster.agents:
            del self._parts["agent"]
        if self._plan.servers or self._joined is not None:
            self._parts.pop("nats", None)
        elif not alive:
            # The server's address and credentials exist before it runs, so all parts can start at once.
            self._nats().prepare()
        for watched in self._parts.values():
            record = parts.living(self._home, watched.name)
            if record is not None and watched.adopt(record):
                say(f"adopted {watched.name} (pid {record.pid})")
        PartRecord.of("supervisor", os.getpid()).write(self._home)

    def _listen(self, port: int) -> int:
        """Open the port of the API, if this host has one; returns its number."""
        if self._joined is not None:
            return 0
        host = HOST if self._cluster is None else self._cluster.host.address
        self._socket = open_port(port, self._any_port and self._cluster is None, host)
        bound: int = self._socket.getsockname()[1]
        return bound

    # ---- the loop ----

    def _start_due(self) -> None:
        now = time.monotonic()
        for watched in self._parts.values():
            if watched.process is None and watched.due_s <= now and not self._ending:
                self._start(watched)

    def _start(self, watched: Watched) -> None:
        try:
            if watched.name == "nats":
                self._start_nats(watched)
            else:
                if watched.name == "weaver" and self._socket is None:
                    self._listen(self._plan.port)
                child = start_part(self._home, watched.name, self._socket)
                watched.started(PartRecord.of(watched.name, child.pid), child)
                _note(self._home, PartRecord.of(watched.name, child.pid))
            say(f"started {watched.name} (pid {watched.pid})")
        except LoomError as error:
            self._failed(watched, str(error), error.exit_code)

    def _nats(self) -> EmbeddedNats:
        if self._cluster is not None:
            return cluster_nats(self._home, self._cluster)
        return EmbeddedNats(self._home.nats_dir, self._node)

    def _start_nats(self, watched: Watched) -> None:
        server = self._nats()
        try:
            if self._certificates is not None:
                self._certificates.starts()
            child = server.start()
            record = PartRecord.of("nats", child.pid)
            watched.started(record, child)
        except StoreInUse:
            # It was started just before its supervisor died, or is about to end.
            pid = server.pid()
            if pid is None:
                raise
            record = PartRecord.of("nats", pid)
            watched.adopt(record)
            if self._certificates is not None:
                self._certificates.adopted()
        _note(self._home, record)

    def _wait(self, wake: int) -> None:
        """Wait until a part ends, a signal arrives, or the next check is due."""
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        for watched in self._parts.values():
            if watched.process is not None:
                poll.register(watched.process.fd, select.POLLIN)
        due = [w.due_s for w in self._parts.values() if w.process is None]
        quiet_s = 5.0 if self._settled and parts.stays(self._home) else LOOK_EVERY_S
        if self._unanswered:
            due.append(self._health_due_s)
        until_s = min([quiet_s, *(max(0.0, d - time.monotonic()) for d in due)])
        if poll.poll(until_s * 1000):
            try:
                os.read(wake, 4096)
            except BlockingIOError:
                pass

    def _look(self) -> None:
        for watched in self._parts.values():
            how = watched.ended()
            if how:
                failure = parts.take_failure(self._home, watched.name)
                self._failed(watched, failure[0] if failure else how, failure[1] if failure else 0)
        if time.monotonic() > self._renew_due_s:
            self._renew_due_s = time.monotonic() + HEALTH_EVERY_S
            one_host.renew(self._home)
        if self._settled:
            self._look_after(time.monotonic())
        if not self._settled:
            self._settled = self._answers()
        elif not parts.stays(self._home) and not parts.holders(self._home):
            self._ending = self._ending or self._no_job_active()

    def _failed(self, watched: Watched, why: str, exit_code: int) -> None:
        """A part ended or could not start. Until the stack has answered once, the user sees its error."""
        if self._ending:
            return
        watched.failed(time.monotonic())
        # In a cluster it may be the other control hosts that are not up yet.
        waits = self._cluster is not None and exit_code in (0, TimedOut.exit_code)
        if not self._settled and not waits and (exit_code or watched.failures >= START_TRIES):
            raise _Fatal(why, exit_code or TimedOut.exit_code)
        say(f"{watched.name}: {why}; next try in {max(0.0, watched.due_s - time.monotonic()):.1f} s")

    def _look_after(self, now_s: float) -> None:
        """Restart what lives and does not work: a bus that stores nothing although the disk has room, and a
        weaver that has not answered for a long time."""
        if now_s < self._health_due_s or self._ending:
            return
        self._health_due_s = now_s + HEALTH_EVERY_S
        own_logs.rotate(self._home.logs_dir)
        if self._joined is not None:
            return
        self._renewed()
        weaver, nats = self._parts["weaver"], self._parts.get("nats")
        found: list[Health] = []

        def ask(api: Client) -> bool:
            found.append(api.health())
            return True

        if self._ask(ask, timeout_s=HEALTH_WITHIN_S) or weaver.process is None or not self._answered_s:
            self._answered_s, self._unanswered = now_s, 0
            self._hung = self._hung if weaver.process is None else 0
        else:
            self._unanswered += 1
            self._health_due_s = now_s + AGAIN_AFTER_S
            silent_s = now_s - max(self._answered_s, weaver.started_s)
            if self._unanswered >= UNANSWERED and silent_s > HUNG_AFTER_S * 2.0 ** min(self._hung, 5):
                say(f"weaver: has not answered for {silent_s:.0f} s; it is restarted")
                weaver.process.signal_group(signal.SIGKILL)
                self._hung += 1
            return
        stuck_s = found[0].get("stuck_s", 0.0) if found else 0.0
        if nats is None or nats.process is None or not found:
            return
        free, was_full = shutil.disk_usage(self._home.nats_dir).free, self._store.full
        if self._store.due(stuck_s, now_s - nats.started_s, free):
            say(f"nats: has stored nothing for {stuck_s:.0f} s with {free >> 20} MiB free; it is restarted")
            # A server that did not end when it was asked to may be stopped, or hang.
            nats.process.signal_group(signal.SIGKILL if self._told_to_end == nats.pid else signal.SIGTERM)
            self._told_to_end = nats.pid
        elif self._store.full and not was_full:
            say(f"nats: its disk is full ({free >> 20} MiB free)")

    def _renewed(self) -> None:
        """Tell the server when its certificate was replaced; the weaver notices by itself."""
        if self._cluster is None or self._certificates is None or "nats" not in self._parts:
            return
        if self._certificates.look(cluster_nats(self._home, self._cluster)):
            say("nats: its certificate was replaced; it reads it again")

    def _answers(self) -> bool:
        if self._joined is not None:
            return parts.is_ready(self._home, "agent")
        return self._ask(lambda api: bool(api.health()["ready"]), timeout_s=0.5)

    def _no_job_active(self) -> bool:
        return self._ask(lambda api: not api.jobs(active=True), timeout_s=2.0)

    def _ask(self, question: Callable[[Client], bool], timeout_s: float) -> bool:
        """Ask the API; no answer counts as no."""
        weaver = self._parts.get("weaver")
        if weaver is None or weaver.process is None:
            return False
        token = self._home.token_file.read_text().strip()
        api = Client(Endpoint(self._plan.url, token, os.geteuid(), self._plan.api_ca), timeout_s)
        try:
            return question(api)
        except LoomError:
            return False
        finally:
            api.close()


class _Fatal(LoomError):
    def __init__(self, why: str, exit_code: int) -> None:
        super().__init__(why)
        self.exit_code = exit_code  # type: ignore[misc] # the exit code of the part's own error


def cluster_nats(home: Home, cluster: ClusterHost) -> ClusterNats:
    """This host's server of the cluster."""
    return ClusterNats(
        home.nats_dir,
        cluster.this,
        cluster.host.address,
        cluster.host.nats_port,
        lambda: cluster.config(home.nats_dir),
        lambda role: cluster.bus(role, cluster.this),
    )


def say(text: str) -> None:
    """Write one line to the supervisor's log. A full disk costs the line, not the supervisor."""
    with contextlib.suppress(OSError):
        print(time.strftime("%Y-%m-%dT%H:%M:%S"), text, file=sys.stderr, flush=True)


def _note(home: Home, record: PartRecord) -> None:
    """Record a part. On a full disk it runs unrecorded, and its own lock prevents a second one."""
    try:
        record.write(home)
    except OSError as error:
        say(f"{record.name} cannot be recorded: {error.strerror}")


ALREADY = 75
"""Exit status of a supervisor that found another one running."""


def main() -> int:
    """Entry of the detached process. Options only; secrets come from the environment and from files."""
    parser = argparse.ArgumentParser(prog="loom-supervisor")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--any-port", action="store_true")
    options = parser.parse_args()
    return supervise(Home(options.home), options.port, options.any_port)


def supervise(home: Home, port: int, any_port: bool) -> int:
    """Supervise in this process until a signal ends it."""
    try:
        one_host.refuse_elsewhere(home)
        lock = one_host.take_lock(home, wait_s=0.3)
    except LoomError as error:
        say(f"cannot start: {error}")
        parts.write_failure(home, "supervisor", str(error), error.exit_code)
        return error.exit_code
    if lock is None:
        return ALREADY
    parts.take_failure(home, "supervisor")
    one_host.claim(home)
    try:
        return Supervisor(home, port, any_port).run()
    finally:
        one_host.release(home)
        parts.forget(home, "supervisor")
        os.close(lock)


if __name__ == "__main__":
    sys.exit(main())
