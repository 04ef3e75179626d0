"""The spawner's children: starting workers and store keepers, and keeping their exits until acknowledged.

Owns every fork of the spawner and every wait. It knows nothing of the agent's socket; `server` calls it. In
a new child `Become` is raised and unwinds through here, so a `finally` on that way runs in the child too.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torchloom import boottime
from torchloom.spawner import boxes, child, store
from torchloom.spawner.boxes import NewBox
from torchloom.spawner.log_files import open_logs
from torchloom.spawner.refusal import Refused
from torchloom.spawner.reserves import Reserve, Reserves, receive, wait_to_become
from torchloom.spawner.warm import Warmth, thread_count

_IDENTITY_KEYS = (
    "job",
    "replica",
    "rank",
    "world_size",
    "local_rank",
    "generation",
    "incarnation",
    "script",
    "module",
    "command",
    "argv",
    "cwd",
    "stdout",
    "stderr",
    "cpus",
)


@dataclass(frozen=True)
class Child:
    """A live child."""

    pid: int
    start_ticks: int
    kind: str
    """"worker" or "store"."""
    job: str | None
    asked: str | None
    """The box path the request named: what a repeated request is recognised by."""
    box: str | None
    generation: int
    port: int | None = None
    host: str | None = None


class Children:
    """Live children and kept exits."""

    def __init__(self, socket_path: Path, key: str) -> None:
        self._socket_path = socket_path
        self._key = key
        self.warmth = Warmth(cold=True)
        self.live: dict[int, Child] = {}
        self.exits: dict[int, dict[str, Any]] = {}
        """Unacknowledged exits by pid, in the order they happened."""
        self.reserves = Reserves()

    @property
    def way(self) -> Warmth:
        """How workers are started now: where this process has threads, which a fork would not keep, as by a
        spawner that has imported nothing."""
        threads = thread_count() - 1
        if self.warmth.cold or not (self.warmth.problem or threads):
            return self.warmth
        problem = self.warmth.problem or f"the spawner has {threads} more thread(s)"
        return replace(self.warmth, cold=True, problem=problem)

    def workers(self) -> list[Child]:
        return [c for c in self.live.values() if c.kind == "worker"]

    def stores(self) -> list[Child]:
        return [c for c in self.live.values() if c.kind == "store"]

    # -- starting -------------------------------------------------------------------------------
    def start(self, specs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Start each worker unless it was started before. One that fails does not stop the others."""
        answers = [self._start_or_say_why(spec) for spec in specs]
        _wait_for_sessions([answer["pid"] for answer in answers if answer["pid"] in self.live])
        return answers

    def _start_or_say_why(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        nothing: dict[str, Any] = {
            "pid": None,
            "start_ticks": None,
            "box": None,
            "already": False,
            "notes": [],
        }
        try:
            return self._start_one(spec)
        except (Refused, OSError) as error:
            return {**nothing, "error": str(error)}
        except Exception as error:  # noqa: BLE001  # a spec of a strange shape must not keep the others waiting
            return {**nothing, "error": f"bad request: {error!r}"}

    def _start_one(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        known = self._started_before(spec)
        if known is not None:
            return known
        self._check(spec)
        asked = spec.get("box")
        stdout, stderr, notes = open_logs(spec)
        try:
            box, box_notes = boxes.create(spec, self._identity(spec))
            path = None if box is None else str(box.path)
            named = {**spec, "box": path}
            pid = self._use_reserve(named, box, stdout, stderr) or self._fork_worker(
                named, box, stdout, stderr
            )
        finally:
            for descriptor in {stdout, stderr}:
                os.close(descriptor)
        ticks = boxes.start_ticks(pid)
        if box is not None:
            box.sign(pid, ticks)
            box.close()
        generation = int(spec.get("generation") or 0)
        self.live[pid] = Child(pid, ticks, "worker", spec.get("job"), asked, path, generation)
        return _answer(pid, ticks, path, already=False, notes=notes + box_notes)

    def _use_reserve(self, spec: Mapping[str, Any], box: NewBox | None, stdout: int, stderr: int) -> int:
        """The pid of a reserve that is this worker now; 0 if there is none."""
        while (reserve := self.reserves.take_worker()) is not None:
            if box is not None:  # before it knows: from then on the box is its own
                box.sign(reserve.pid, reserve.start_ticks)
                box.mark_forked()
            if reserve.become(spec, (stdout, stderr)):
                return reserve.pid
        return 0

    def _fork_worker(self, spec: Mapping[str, Any], box: NewBox | None, stdout: int, stderr: int) -> int:
        warmth = self.way
        try:
            pid = fork_quietly()
        except OSError:
            if box is not None:
                box.discard()
            raise
        if pid == 0:
            _or_end(lambda: child.sign_in(box))
            _or_end(lambda: child.adopt_stdio(stdout, stderr))
            raise child.Become(lambda: child.run(spec, warmth))
        return pid

    def _started_before(self, spec: Mapping[str, Any]) -> dict[str, Any] | None:
        asked = spec.get("box")
        if asked:
            for one in self.live.values():
                if one.asked == asked:
                    return _answer(one.pid, one.start_ticks, one.box, already=True)
        journal = boxes.find(spec)
        if journal is None:
            return None
        if journal.pid == 0:
            raise Refused(f"{journal.path} exists but names no process: an earlier start was cut short")
        return _answer(journal.pid, journal.start_ticks, str(journal.path), already=True)

    def _check(self, spec: Mapping[str, Any]) -> None:
        """Say now, in a sentence, what would otherwise be a riddle in a log file."""
        if not isinstance(spec.get("env"), dict):
            raise Refused("a worker needs its environment")
        if sum(bool(spec.get(key)) for key in ("script", "module", "command")) != 1:
            raise Refused("a worker needs exactly one of script, module and command")
        if spec.get("fence") and boottime.now_ns() > spec["fence"][1]:
            raise Refused("the lease of this host ran out before the worker was started")
        if spec.get("cwd") and not os.path.isdir(spec["cwd"]):
            raise Refused(f"the working directory {spec['cwd']} does not exist")
        if spec.get("command"):
            program = str(spec["command"][0])
            if os.sep in program and spec.get("cwd"):
                program = os.path.join(spec["cwd"], program)
            if shutil.which(program, path=spec["env"].get("PATH")) is None:
                raise Refused(f"there is no program {spec['command'][0]}")
        if self.warmth.learned.unsafe:
            raise Refused(f"importing {self.warmth.learned.unsafe} made this spawner unsafe to fork")

    def _identity(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        known = {key: spec[key] for key in _IDENTITY_KEYS if spec.get(key) is not None}
        return {**known, "spawner": os.getpid(), "key": self._key}

    # -- reserves ---------------------------------------------------------------------------------
    def prepare(self, workers: int, host: str | None) -> dict[str, Any]:
        """Have so many reserve workers, and a reserve store on `host` if one is named; say what there is."""
        unsafe = self.way.cold or bool(self.warmth.learned.unsafe)
        workers, host = (0, None) if unsafe else (workers, host)
        self.reserves.drop(workers, host)
        while len(self.reserves.workers) < workers:
            self.reserves.workers.append(self._fork_reserve())
        if host and self.reserves.store is None:
            self.reserves.store = self._fork_reserve_store(host)
        return {"workers": len(self.reserves.workers), "store": self.reserves.store is not None}

    def _fork_reserve(self) -> Reserve:
        ours, theirs = socket.socketpair()
        with theirs:
            if (pid := fork_quietly()) == 0:
                warmth, mine = self.warmth, theirs.dup()
                ours.close()
                _or_end(lambda: child.sign_in(None))
                raise child.Become(lambda: wait_to_become(mine, warmth))
        return Reserve(pid, boxes.start_ticks(pid), ours)

    def _fork_reserve_store(self, host: str) -> Reserve:
        ours, theirs = socket.socketpair()
        with theirs, store.listen(host, 0) as listener:
            bound = int(listener.getsockname()[1])
            pid = self._fork_keeper(listener, host, bound, os.environ, theirs)
        return Reserve(pid, boxes.start_ticks(pid), ours, host, bound)

    # -- stores ---------------------------------------------------------------------------------
    def keep_store(
        self, job: str, generation: int, host: str, port: int, env: Mapping[str, str] | None
    ) -> dict[str, Any]:
        """A store keeper for a generation, or the one it has. `env` is for a new interpreter (cold)."""
        for one in self.stores():
            if (one.job, one.generation) == (job, generation):
                return _keeper(one, already=True)
        reserve = self.reserves.take_store(host) if not port else None
        if reserve is not None:
            pid, bound = reserve.pid, reserve.port
        else:
            try:
                listener = store.listen(host, port)
            except OSError as error:
                raise Refused(f"no store on {host} port {port}: {error.strerror or error}") from error
            with listener:
                bound = int(listener.getsockname()[1])
                pid = self._fork_keeper(listener, host, bound, os.environ if env is None else env)
        _wait_for_sessions([pid])
        ticks = boxes.start_ticks(pid)
        self.live[pid] = Child(pid, ticks, "store", job, None, None, generation, bound, host)
        return _keeper(self.live[pid], already=False)

    def _fork_keeper(
        self,
        listener: socket.socket,
        host: str,
        port: int,
        env: Mapping[str, str],
        wanted: socket.socket | None = None,
    ) -> int:
        """`wanted`: a reserve, which is told through it that it is in use."""
        spawner, cold = os.getpid(), self.way.cold
        pid = fork_quietly()
        if pid:
            return pid
        try:
            child.sign_in(None)
            descriptor = listener.detach()
            kept = (descriptor,) if wanted is None else (descriptor, wanted.fileno())
            child.leave_spawner(kept, for_exec=cold)
            if not cold:
                told = None if wanted is None else partial(receive, wanted)
                store.keep(descriptor, host, port, spawner, told)
            os.set_inheritable(descriptor, True)
            program = [sys.executable, *child.interpreter_flags(), "-m", "torchloom.spawner.store"]
            program += [str(descriptor), host, str(port), str(spawner), str(self._socket_path)]
            os.execve(sys.executable, program, env)
        except BaseException as error:  # noqa: BLE001  # top of a process
            print(f"spawner: a store keeper failed to start: {error!r}", file=sys.stderr, flush=True)
        finally:
            os._exit(127)  # never back into the spawner's loop, whatever went wrong

    def end_stores(self) -> None:
        """For a spawner that leaves with no worker left."""
        for one in self.stores():
            os.kill(one.pid, signal.SIGTERM)

    # -- exits ----------------------------------------------------------------------------------
    def fence(self) -> None:
        """End workers past the deadline their agent set, should it have died (agent/processes/fencing.py)."""
        now_ns = boottime.now_ns()
        for one in self.workers():
            fence_ns, until_ns = boxes.fence_of(one.box) if one.box else (0, 0)
            if fence_ns and now_ns > until_ns:
                with contextlib.suppress(OSError):
                    os.killpg(one.pid, signal.SIGKILL)

    def reap(self) -> list[dict[str, Any]]:
        """Wait for whatever has ended; the new exits, which are kept until forgotten."""
        new: list[dict[str, Any]] = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return new
            if pid == 0:
                return new
            one = self.live.pop(pid, None)
            if one is None:
                self.reserves.ended(pid)
                continue
            code = os.waitstatus_to_exitcode(status)
            self.exits[pid] = {
                "pid": pid,
                "start_ticks": one.start_ticks,
                "code": code if code >= 0 else None,
                "signal": -code if code < 0 else None,
                "at_ns": time.time_ns(),
                "kind": one.kind,
                "box": one.box,
                "job": one.job,
                "core_dumped": os.WCOREDUMP(status),
            }
            new.append(self.exits[pid])

    def forget(self, pids: Sequence[int]) -> None:
        for pid in pids:
            self.exits.pop(pid, None)


def fork_quietly() -> int:
    """Fork with every signal held back: the child must not run the spawner's handlers.

    Where there are other threads, the caller sees to it that the child becomes another program at once.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pid = -1
    try:
        pid = os.fork()
    finally:
        if pid != 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid


def _or_end(first: Callable[[], object]) -> None:
    """In a new child, which must not continue as a second spawner whatever goes wrong."""
    try:
        first()
    except BaseException as error:  # noqa: BLE001
        print(f"spawner: a worker failed to start: {error!r}", file=sys.stderr, flush=True)
        os._exit(127)


def _wait_for_sessions(pids: Sequence[int]) -> None:
    """Wait until every child leads its own process group: a client may kill the group once it has a pid."""
    give_up = time.monotonic() + 1.0
    for pid in pids:
        while os.getpgid(pid) != pid and time.monotonic() < give_up:
            time.sleep(0.0002)


def _answer(
    pid: int, ticks: int, box: str | None, already: bool, notes: Sequence[str] = ()
) -> dict[str, Any]:
    return {
        "pid": pid,
        "start_ticks": ticks,
        "box": box,
        "already": already,
        "error": None,
        "notes": list(notes),
    }


def _keeper(one: Child, already: bool) -> dict[str, Any]:
    where = {"host": one.host, "port": one.port}
    return {"pid": one.pid, "start_ticks": one.start_ticks, **where, "already": already}
