"""Facts about one worker process: who it is, how it ended, what it was doing."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class WorkerRef(Struct, frozen=True, order=True):
    """One incarnation of one rank. What comes from an older incarnation has no effect."""

    job: str
    rank: int
    generation: int
    incarnation: int


class DeviceUse(Struct, frozen=True):
    """A device that a worker runs on. On a host without GPUs, a set of CPU cores."""

    device: str
    """Unique in the fleet: a GPU's UUID, or `cpu-<node>-<cores>`."""
    kind: Literal["gpu", "cpu"]
    name: str = ""


class LogLoss(Struct, frozen=True, array_like=True):
    """Output of a worker that is not in its log, because there was no room on the disk."""

    lines: int
    bytes: int

    def __add__(self, other: LogLoss) -> LogLoss:
        return LogLoss(self.lines + other.lines, self.bytes + other.bytes)


class EndRecord(Struct, frozen=True):
    """What the probe wrote as its script ended."""

    how: str
    code: int | None = None
    exception: str = ""
    message: str = ""
    traceback: str = ""
    connection_lost: bool = False
    """The script died of a peer's death: a secondary exit."""
    store_away: bool = False
    """The script died because its checkpoint store could not be reached when it wanted to restore."""
    at_ns: int = 0
    """Wall-clock time of the exception, which comes before the exit of the process."""
    certain: bool = False
    """The process is certain to end with it: no thread of the script keeps running."""
    taken_over: bool = False
    """The script died because another run of the job's name has begun in its checkpoint store."""


class Exit(Struct, frozen=True):
    """How a process ended, and the source of that knowledge."""

    code: int | None
    signal: int | None
    source: Literal["spawner", "pidfd", "end-record", "inventory", "operator", "fence", "unknown"]
    """`operator`: nobody saw it, but a person said that its host is gone. `fence`: its host had to end it by
    now, because it has lost the control plane."""
    out_of_memory: bool = False
    """The kernel's OOM killer has killed it, or another process of its cgroup, just before."""
    foreign: bool = False
    """It died of a signal that its agent had not sent."""

    @property
    def ok(self) -> bool:
        return self.code == 0

    @property
    def unseen(self) -> bool:
        """Its end was not observed: it is only known, or believed, to be gone."""
        return self.code is None and self.signal is None

    def describe(self) -> str:
        if self.signal == 9 and self.out_of_memory:
            return "was killed by the kernel because memory ran out (OOM killer, SIGKILL)"
        if self.signal is not None:
            return f"was killed by signal {self.signal} ({signal_name(self.signal)})"
        if self.code and self.out_of_memory:
            return f"exited with code {self.code} after the kernel's OOM killer ended a process of its cgroup"
        if self.code is not None:
            return f"exited with code {self.code}"
        if self.source == "operator":
            return "was lost with its host"
        if self.source == "fence":
            return "was ended by its host, which has lost the control plane"
        return "ended, nobody saw how"


_SIGNALS = {1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE",
            9: "SIGKILL", 11: "SIGSEGV", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM", 24: "SIGXCPU",
            25: "SIGXFSZ", 31: "SIGSYS"}  # fmt: skip


def signal_name(number: int) -> str:
    """Linux names of the signals that end processes (this module may not import `signal` to stay pure)."""
    return _SIGNALS.get(number, f"signal {number}")
