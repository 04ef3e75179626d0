"""The faults of the benchmark and what should be told of them. Runs nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

NOBODY = 10**6
"""`names_from` of a fault that is nobody's."""


@dataclass(frozen=True)
class Case:
    """A fault to inject, and what should be told of it."""

    name: str
    fault: str
    """A kind of `loom inject`; empty: the script does it to itself, see `args`."""
    expected: tuple[str, ...]
    """The first is the best."""
    amounts: tuple[float, ...] = ()
    more: dict[str, Any] = field(default_factory=dict)
    """Of the request; a `peer` is counted from the culprit."""
    horizon_s: float = 30.0
    names_from: int = 2
    """Workers from which on one can tell whose fault it is: two that disagree may each be right."""
    workers: int = 2
    """The fewest with which it can be seen at all."""
    everybody: bool = False
    busy: bool = False
    """The workload computes for a part of its step instead of sleeping: contention needs that."""
    of_demand: bool = False
    """The amount is a share of the CPU time that the worker wants, told in percent of a core: a quota above
    that is none."""
    warm_s: float = 0.0
    """What is usual must be known first, and curves are looked at twice a second."""
    args: tuple[str, ...] = ()
    """Of the workload; `{rank}` is the culprit."""
    act_s: float | None = None
    """The job's own limit for acting."""
    harmless: bool = False
    """It ends by itself or is at work: it is listened to until the end, and a restart is wrong."""
    two: bool = False
    """The next rank does the same: both must be named."""
    three: bool = False
    """The next two do."""
    script: str = "watched.py"
    recorder: str = "native"
    """LOOM_RECORDER of the job."""

    @property
    def alone(self) -> bool:
        """Whether it compares the times of ranks, which other jobs on the same cores would change; or nothing
        is to be reported, also not that these jobs make it slower, which would be true."""
        return not self.expected or bool({*self.expected} & SLOWNESS) or self.busy


SLOWNESS = frozenset(
    {
        "compute-slow", "data-slow", "host-contention", "global-slowdown", "data-imbalance", "sender-slow",
        "receiver-slow", "link-slow", "communication-slow",
    }
)  # fmt: skip


def _case(name: str, fault: str, *expected: str, **more: Any) -> Case:
    return Case(name, fault, expected, **more)


_NETWORK: dict[str, Any] = {
    "amounts": (5, 10),
    "horizon_s": 90,
    "names_from": 4,
    "args": ("--wide", "8192"),
}
"""Slow transfers are told first, then the ranks are asked to measure whose they are. They want gradients that
take time: of a few kB the kernel paces nothing."""


def _odd(name: str, *expected: str, **more: Any) -> Case:
    """What the workload does to itself (workloads/odd.py), once it has trained for a while."""
    return Case(name, "", expected, args=_at(name), **more)


def _at(name: str) -> tuple[str, ...]:
    return ("--odd", name, "--odd-rank", "{rank}")


_OF_DEMAND: dict[str, Any] = {"horizon_s": 60, "busy": True, "of_demand": True}

_ENDS: dict[str, Any] = {"horizon_s": 50, "harmless": True}
_HOSTILE = (
    # workloads/hostile.py: what ends by itself …
    *(
        _odd(name, "hang", **_ENDS)
        for name in (
            "disk_wait", "frozen", "full_pipe", "sleeps_in_child", "sleeps", "polls", "event_from_thread",
            "event_from_signal", "held_by_gdb", "hook",
        )
    ),
    # … or shows life all the time, for longer than the limit for acting …
    *(
        _odd(name, "hang", act_s=10.0, **_ENDS)
        for name in (
            "computes_in_child", "collects", "compiles", "prints_in_a_loop", "downloads", "validates",
            "writes", "endless",
        )
    ),
    # … is not worth a word …
    *(_odd(name, names_from=NOBODY, **_ENDS) for name in ("objects", "all_sleep")),
    _odd("under_strace", "host-contention", **_ENDS),
    # … and what does not end.
    *(_odd(name, "crash") for name in ("leaves_at_once", "segfault", "aborts", "overflows", "exit_text",
                                       "terminated", "interrupted", "kills_child")),
    *(
        _odd(name, "hang", horizon_s=60)
        for name in ("lock_order", "lost_thread", "stops_child", "flock_of_peer")
    ),
    _odd("fewer_batches", "desync", names_from=3),
    _odd("shape", "desync", "crash", names_from=3),
    _odd("wrong_group", "ordering-deadlock", "hang", names_from=NOBODY),
    _odd("two_groups", "hang", names_from=3),
)  # fmt: skip

_UNSEEN = (
    # workloads/unseen.py: what does not end …
    *(
        _odd(name, "hang", horizon_s=60)
        for name in (
            "import_lock", "full_queue", "joins_before_reading", "logging_lock", "blocked_stdout",
            "destructor", "handler_wants_lock", "forked_lock", "main_thread_gone", "becomes_another",
            "store_key", "fcntl_of_peer",
        )
    ),
    _odd("short_timeout", "hang", horizon_s=45),
    *(
        Case(name, "", ("hang", "no-progress"), args=(*_at(name), "--steps", "80"), horizon_s=100)
        for name in ("at_exit", "thread_at_exit")
    ),
    *(
        _odd(name, "crash")
        for name in ("disk_full", "no_memory", "no_descriptors", "nccl_text", "cgroup_oom")
    ),
    _odd("seccomp", "crash", "hang"),
    # … or ranks that do not agree …
    _odd("all_to_all", "desync", names_from=NOBODY),
    _odd("gather_for_all_gather", "desync", names_from=3),
    _odd("recv_from_nobody", "hang", names_from=NOBODY),
    _odd("more_batches", "desync", names_from=3),
    _odd("unused", "desync", names_from=3),
    _odd("new_group_left_out", "desync", "hang", "no-progress", horizon_s=60, names_from=3),
    # … and what ends by itself, or is nothing.
    *(_odd(name, "hang", **_ENDS) for name in ("dns", "silent_server", "posix_lock", "in_pdb", "pickles",
                                               "monitored")),
    *(_odd(name, "hang", act_s=10.0, **_ENDS) for name in ("profiles", "sorts", "copies")),
    _odd("suspended", "hang", "no-progress", names_from=NOBODY, **_ENDS),
    _odd("lr_finder", names_from=NOBODY, **_ENDS),
    _odd("stopped_and_continued", "host-contention", "compute-slow", **_ENDS),
)  # fmt: skip


def _script(script: str, kind: str, *expected: str, flags: tuple[str, ...] = (), **more: Any) -> Case:
    """A script of its own, with its kind and the rank."""
    name = f"{script}-{kind}" + "".join(flags).replace("--", "-")
    return Case(name, "", expected, args=(kind, "--rank", "{rank}", *flags), script=f"{script}.py", **more)


_UNCOMMON = (
    # workloads/uncommon.py: what another process, a timer or a person ends …
    *(
        _odd(name, "hang", **_ENDS)
        for name in (
            "eventfd", "inotify", "timer", "signal_wait", "system_v", "shared_mutex", "manager",
            "timed_waits", "alarm", "fuse", "event_loop", "asks", "backward_hook", "many_children",
            "waiter_traced", "tensor_parallel",
        )
    ),
    *(_odd(name, "hang", act_s=10.0, **_ENDS) for name in ("pool", "grandchild")),
    *(_odd(name, names_from=NOBODY, **_ENDS) for name in ("floods", "broken_thread", "reversed_group",
                                                              "saves_alone")),
    # … and what does not end.
    *(
        _odd(name, "hang", horizon_s=60)
        for name in ("lock_of_the_dead", "nested_pool", "full_socket", "semaphore_of_peer")
    ),
    _odd("flock_circle", "hang", horizon_s=60, two=True),
    *(_odd(name, "crash") for name in ("exits_well", "loader_ends", "closes_sockets", "bus_error",
                                       "cpu_limit", "hook_raises")),
    _odd("all_killed", "crash", everybody=True),
    *(_odd(name, "crash", two=True, workers=3) for name in ("two_killed", "same_error")),
    *(_odd(name, "desync", names_from=3) for name in ("cleanup", "other_type", "one_more")),
    # The same as `max` and `root` where there is no compiler for the native recorder. It does not record a
    # broadcast that never ends: that all stand still is all that can be seen.
    Case("max-sampled", "", ("divergence",), args=_at("max"), workers=3, recorder="python", horizon_s=60),
    Case("root-sampled", "", ("divergence", "hang"), args=_at("root"), names_from=NOBODY, recorder="python",
         horizon_s=60),
    # Slowness.
    *(_odd(name, "compute-slow", horizon_s=60) for name in ("seventh", "drifts")),
    *(_odd(name, "compute-slow", "host-contention", horizon_s=60) for name in ("gil_hog", "slow_disk")),
    _odd("two_slow", "compute-slow", horizon_s=60, two=True, workers=4),
    _odd("healed", "compute-slow", **_ENDS),
    # workloads/pipelined.py
    *(_script("pipelined", "stop", "hang", flags=flags) for flags in ((), ("--interleaved",))),
    *(_script("pipelined", "two-stopped", "hang", flags=flags, two=True, workers=3)
      for flags in ((), ("--interleaved",))),
    _script("pipelined", "fifo", "hang", **_ENDS),
    _script("pipelined", "left-out", "desync", names_from=3),
    _script("pipelined", "slow", "compute-slow", horizon_s=90, workers=3),
    _script("pipelined", "uneven", "data-imbalance", horizon_s=60, workers=3),
    _script("pipelined", "both-slow", "global-slowdown", horizon_s=90, names_from=NOBODY),
    # workloads/plain.py
    _script("plain", "no-optimizer", "hang", "no-progress", horizon_s=110),
    _script("plain", "spawned", "no-progress", "hang", horizon_s=110),
    _script("plain", "same-start", "crash", two=True, workers=3),
    _script("plain", "ended", "hang", **_ENDS),
    _script("plain", "export", names_from=NOBODY, **_ENDS),
    _script("plain", "epochs", names_from=NOBODY, **_ENDS),
    *(_script("plain", kind, "hang", horizon_s=60) for kind in ("local-sgd", "ahead")),
    # A root that gathers waits for the one; of pairs the partner waits, and the others wait for it.
    *(_script("plain", kind, "hang", horizon_s=60, workers=3) for kind in ("server", "hierarchical")),
    _script("plain", "any-source", "hang", "communication-hang", horizon_s=60, workers=3),
)  # fmt: skip

_RARE = (
    # workloads/rare.py: what does not end …
    *(_odd(name, "hang", "no-progress", horizon_s=60) for name in ("gil_futex", "restarts_itself")),
    _odd("two_stopped", "hang", two=True, workers=3),
    _odd("exit_in_thread", "crash"),
    _odd("swapped", "desync", names_from=3, workers=3),
    # … what ends by itself, or is nothing …
    *(_odd(name, "hang", **_ENDS) for name in ("saves_on_term", "thread_sleeps", "late_group")),
    _odd("computes_in_thread", "hang", act_s=10.0, **_ENDS),
    _odd("profiles_all", names_from=NOBODY, **_ENDS),
    # … and slowness.
    *(_odd(name, "compute-slow", horizon_s=60) for name in ("irregular", "every_third", "slow_start",
                                                             "hook_slow")),
    _odd("three_slow", "compute-slow", horizon_s=60, workers=4, three=True),
    _odd("cpulimit", "host-contention", **_ENDS),
    _odd("nice", "host-contention", "hang", horizon_s=60, busy=True),
)  # fmt: skip

_STRANGERS = (
    # workloads/strangers.py: what ends by itself …
    *(
        _odd(name, "hang", **_ENDS)
        for name in (
            "logging_child", "handler_reads", "holds_gil", "slow_pickle", "store_wait", "zombie_child",
            "slow_checkpoint",
        )
    ),
    _odd("recurses", "hang", act_s=10.0, **_ENDS),
    _odd("staggered", "hang", names_from=NOBODY, **_ENDS),
    # … is nothing …
    *(
        _odd(name, names_from=NOBODY, **_ENDS)
        for name in (
            "evaluates", "first_step", "joins", "uneven_exchange", "two_threads", "collects_in_turn",
            "large_objects", "frozen_clock", "renamed", "looked_at", "new_loaders", "small_batch",
            "validates_on_0",
        )
    ),
    # … is only worth a report …
    _odd("fails_once", "collective-failed", names_from=NOBODY, **_ENDS),
    # … what does not end …
    *(
        _odd(name, "crash")
        for name in ("excepthook_reports", "loader_raises", "address_space", "no_threads", "exits_143")
    ),
    # A thread keeps its process alive, so the others wait for it.
    _odd("raises_with_thread", "hang", "crash", horizon_s=60),
    *(_odd(name, "hang", horizon_s=60) for name in ("queue_of_dead_thread", "waits_for_itself")),
    _odd("no_sync_on_one", "divergence", "desync", horizon_s=60, names_from=3, workers=3),
    # … and slowness.
    _odd("flickers", "compute-slow", horizon_s=60, two=True, workers=4),
    *(
        _odd(name, "compute-slow", "host-contention", horizon_s=60)
        for name in ("child_each_step", "settrace")
    ),
    _odd("pinned", "host-contention", "compute-slow", horizon_s=60, busy=True),
)  # fmt: skip

CASES = {
    case.name: case
    for case in (
        _case("kill", "kill", "crash"),
        _case("exit", "exit", "crash", amounts=(1, 17)),
        _case("stop", "stop", "hang"),
        _case("hang", "hang", "hang"),
        _case("hang-data", "hang", "hang", more={"where": "data"}),
        _case("hang-backward", "hang", "hang", more={"where": "backward"}),
        _case("gil-hold", "gil-hold", "hang"),
        _case("mismatch", "mismatch", "desync", names_from=3),
        _case("skip", "skip", "divergence", "desync", "hang", horizon_s=60),
        _case("deadlock", "deadlock", "ordering-deadlock", names_from=NOBODY, everybody=True),
        _case("slow-1.3", "slow", "compute-slow", amounts=(1.3,), horizon_s=60),
        _case("slow-2", "slow", "compute-slow", amounts=(2.0,), horizon_s=60),
        _case("data-slow", "data-slow", "data-slow", amounts=(10, 20, 40), horizon_s=60),
        _case("contention", "contention", "host-contention", amounts=(2, 4), horizon_s=60, busy=True),
        _case("cpu-quota", "cpu-quota", "host-contention", amounts=(0.4, 0.6), **_OF_DEMAND),
        _case("device-error", "device-error", "crash"),
        _case(
            "all-slow",
            "slow",
            "global-slowdown",
            amounts=(1.5, 2.0),
            horizon_s=60,
            names_from=NOBODY,
            everybody=True,
        ),
        _case("nan", "nan", "not-a-number", names_from=NOBODY),
        _case("gradient", "gradient", "spike", amounts=(1e4,), names_from=NOBODY, everybody=True, warm_s=12),
        _case("bit-flip", "bit-flip", "divergence", names_from=3),
        _case("slow-sender", "slow-sender", "sender-slow", "communication-slow", **_NETWORK),
        _case("slow-receiver", "slow-receiver", "receiver-slow", "communication-slow", **_NETWORK),
        # gloo's ring sends to the rank before.
        _case("slow-link", "slow-link", "link-slow", "communication-slow", more={"peer": -1}, **_NETWORK),
        # Among two nobody can tell it from one that is slow now and then; and steps must be long beside the
        # time for which ranks wait for a core, or that may be what makes them uneven.
        _case(
            "imbalance",
            "",
            "data-imbalance",
            names_from=NOBODY,
            workers=3,
            horizon_s=60,
            args=("--uneven", "--step-ms", "150"),
        ),
        _case("never-starts", "", "no-progress", horizon_s=100, args=("--never-starts", "{rank}")),
        _odd("late-init", "no-progress", horizon_s=60),
        _odd("leaves", "crash"),
        _odd("max", "divergence", names_from=3),
        _odd("root", "divergence", "desync", names_from=3),
        _odd("loader", "hang"),
        _odd("tenth", "compute-slow", horizon_s=60),
        # What another process ends after 30 s, or what is at work: told, and never restarted.
        _odd("semaphore", "hang", horizon_s=50, harmless=True),
        _odd("fifo", "hang", horizon_s=50, harmless=True),
        _odd("flock", "hang", horizon_s=50, harmless=True),
        _odd("traced", "hang", horizon_s=50, harmless=True),
        _odd("busy", "hang", horizon_s=50, harmless=True, act_s=10.0),
        _odd("prints", "hang", horizon_s=50, harmless=True, act_s=10.0),
        *_HOSTILE,
        *_UNSEEN,
        *_UNCOMMON,
        *_RARE,
        *_STRANGERS,
    )
}

HANGS = frozenset({"hang", "communication-hang", "no-progress"})
"""What may be told of a healthy rank that pauses: it is true, and nobody may act on it."""
