"""What is done to jobs on the simulated accelerator, and what should be reported of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

Named = Literal["rank", "both", "pair", "nobody"]
"""The culprit; it and the next rank; either of two that disagree, or nobody; nobody."""
UNSEEN = "device_unseen.py"


@dataclass(frozen=True)
class DeviceCase:
    """One fault, or one harmless thing that looks like one."""

    name: str
    meaning: str
    expected: tuple[str, ...]
    """Kinds that are right; none: nothing may be reported."""
    named: Named = "rank"
    harmless: bool = False
    """A restart would be wrong: it is listened to until it has ended."""
    timed: bool = False
    """It compares the times of ranks, so nothing runs beside it."""
    script: str = "on_device.py"
    workers: int = 2
    at: int = 60
    """The step at which it happens."""

    @property
    def horizon_s(self) -> float:
        return 60.0 if self.timed and self.expected else 30.0

    def is_right(self, kind: str, ranks: Iterable[int], rank: int, size: int) -> bool:
        named = sorted(ranks)
        if kind not in self.expected:
            return False
        match self.named:
            case "rank":
                return named == [rank]
            case "both":
                return named == sorted({rank, (rank + 1) % size})
            case "pair":
                return True
            case "nobody":
                # Of a job that is suspended as a whole all are named.
                return not named or len(named) == size


def _plain() -> Iterable[DeviceCase]:
    yield DeviceCase("kill", "killed", ("crash",))
    yield DeviceCase("stop", "SIGSTOP", ("hang",))
    yield DeviceCase("loop", "host stuck in a loop, device idle", ("hang",))
    yield DeviceCase("sync", "kernel stuck, host waits in `.item()`", ("hang",))
    yield DeviceCase("kernel", "kernel stuck, host continues", ("hang",))
    yield DeviceCase(
        "communication",
        "communication does not end (no rank is named)",
        ("communication-hang",),
        named="nobody",
    )
    yield DeviceCase("lost", "device lost, host does not notice", ("hang", "crash"))
    yield DeviceCase("slow-1.3", "kernels 1.3×", ("compute-slow",), timed=True)
    yield DeviceCase("slow-2", "kernels 2×", ("compute-slow",), timed=True)
    yield DeviceCase("launch", "host launches late", ("host-contention",), timed=True)
    yield DeviceCase("size", "reduces more than the others", ("desync", "crash"), named="pair")
    yield DeviceCase("another", "gathers where the others reduce", ("desync", "crash"), named="pair")
    yield DeviceCase("long", "a kernel of 20 s (harmless)", ("hang",), harmless=True)
    yield DeviceCase("eval", "evaluates for 20 s on its device (harmless)", ("hang",), harmless=True)
    yield DeviceCase("save", "its host writes for 20 s (harmless)", ("hang",), harmless=True)
    yield DeviceCase(
        "suspend",
        "somebody stops all ranks for 20 s (harmless)",
        ("hang", "no-progress"),
        named="nobody",
        harmless=True,
    )
    yield DeviceCase(
        "none", "nothing, for 30 s (right: no report)", (), named="nobody", harmless=True, timed=True
    )


def _unseen() -> Iterable[DeviceCase]:
    def stuck(name: str, meaning: str, workers: int = 3, at: int = 60) -> DeviceCase:
        return DeviceCase(name, meaning, ("hang",), script=UNSEEN, workers=workers, at=at)

    def harmless(name: str, meaning: str, *expected: str) -> DeviceCase:
        named: Named = "nobody" if "communication-hang" in expected or not expected else "rank"
        return DeviceCase(name, f"{meaning} (harmless)", expected, named, True, script=UNSEEN)

    yield DeviceCase("two-stuck", "two kernels stuck at once", ("hang",), "both", script=UNSEEN, workers=3)
    yield DeviceCase(
        "stuck-and-loop",
        "kernel stuck, and another host in a loop",
        ("hang",),
        "both",
        script=UNSEEN,
        workers=3,
    )
    yield stuck("pipeline-stuck", "pipeline, kernel of a stage stuck")
    yield stuck("pipeline-loop", "pipeline, host of a stage stuck")
    yield stuck("pipeline-batched", "ring of batched sends and receives, kernel stuck")
    yield stuck("grid", "tensor and data parallel, works never awaited, kernel stuck", workers=4)
    yield stuck("dropped", "works dropped at once, kernel stuck")
    yield stuck("second-thread", "a thread reduces in a group of its own, kernel stuck")
    yield DeviceCase(
        "other-order",
        "uses two groups in the other order",
        ("ordering-deadlock", "desync"),
        "pair",
        script=UNSEEN,
        workers=3,
    )
    yield stuck("barriers", "barrier on the device, kernel stuck")
    yield DeviceCase("barrier-left-out", "leaves out a barrier", ("desync",), script=UNSEEN, workers=3)
    yield stuck("empty", "tensors of no bytes, kernel stuck")
    yield stuck("regroup", "groups destroyed and made anew, kernel stuck")
    # Without an optimizer no step is ever made, so what hangs is reported as no progress.
    yield DeviceCase(
        "no-optimizer",
        "collectives only, kernel stuck",
        ("no-progress", "hang"),
        script=UNSEEN,
        workers=3,
        at=900,
    )
    yield stuck("mixed-host", "gloo beside the device, host stuck")
    yield stuck("mixed-device", "gloo beside the device, kernel stuck")
    yield stuck("monitored", "`monitored_barrier` on the host, kernel stuck")
    yield stuck("captured", "stream captures now and then, kernel stuck")
    yield stuck("becomes-another", "its process becomes another program")
    yield DeviceCase("remote-error", "a collective fails on its device", ("crash",), script=UNSEEN)
    yield DeviceCase(
        "silent-error", "its collectives fail and nobody looks", ("hang",), script=UNSEEN, workers=3
    )
    yield DeviceCase("lost-in-item", "device lost while its host waits for it", ("crash",), script=UNSEEN)
    yield DeviceCase("out-of-memory", "CUDA's out of memory", ("crash",), script=UNSEEN)
    yield DeviceCase(
        "every-fifth", "kernels 3× in every fifth step", ("compute-slow",), timed=True, script=UNSEEN
    )
    yield DeviceCase(
        "two-slow", "kernels 1.6× on two of four", ("compute-slow",), "both", False, True, UNSEEN, 4
    )
    yield from _more(stuck)
    yield harmless("error-then-pause", "a collective fails and is made again, later a host pauses", "hang")
    yield DeviceCase(
        "deep-queue",
        "kernels of 0.4 s on all devices, hosts as far ahead as they may be (harmless)",
        ("global-slowdown",),
        "nobody",
        harmless=True,
        script=UNSEEN,
    )
    yield harmless("sleepy-device", "its device stands still for 20 s", "hang")
    yield harmless("saved-by-one", "copies and writes for 20 s, the others in a barrier", "hang")
    yield harmless("all-long", "all devices run a kernel of 20 s", "communication-hang", "hang")
    yield harmless("forked-workers", "data workers forked again and again")


def _more(stuck: Callable[..., DeviceCase]) -> Iterable[DeviceCase]:
    def slow(name: str, meaning: str, kind: str) -> DeviceCase:
        return DeviceCase(name, meaning, (kind,), timed=True, script=UNSEEN)

    yield stuck("becomes-sleep", "its process becomes `sleep`")
    yield DeviceCase(
        "executes-itself", "it executes its script anew", ("hang", "crash"), script=UNSEEN, workers=3
    )
    yield stuck("dropped-error", "its collectives fail, works are dropped at once")
    yield DeviceCase(
        "two-errors", "collectives fail on two devices", ("hang",), "both", script=UNSEEN, workers=3
    )
    yield stuck("pair-error", "sends and receives fail and nobody looks")
    yield stuck("synchronizes", "kernel stuck, host waits in `synchronize()`")
    yield stuck("many-groups", "15 collectives a step in 5 groups, kernel stuck")
    yield stuck("deep-stuck", "2,400 collectives and more outstanding, kernel stuck", at=150)
    yield stuck("deep-loop", "2,400 collectives and more outstanding, host stuck", at=150)
    yield stuck("sharded", "all-gather, all-to-all and reduce-scatter, kernel stuck")
    yield stuck("rooted", "reduce and broadcast, kernel stuck")
    yield stuck("apart", "two groups of two, kernel stuck in one of them", workers=4)
    yield stuck("side-stream", "kernel stuck on a second stream")
    yield DeviceCase(
        "dropped-stall",
        "communication does not end, works dropped (no rank is named)",
        ("communication-hang",),
        "nobody",
        script=UNSEEN,
        workers=3,
        at=150,  # of a host that is far ahead, so that the device has made some steps by then
    )
    yield slow("every-seventh", "kernels 3× in every seventh step", "compute-slow")
    yield slow("every-tenth", "kernels 3× in every tenth step", "compute-slow")
    yield slow("slow-data", "its data come late", "data-slow")


CASES = {case.name: case for case in (*_plain(), *_unseen())}
