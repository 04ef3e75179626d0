"""Real workers with the probe inside, and a harness that plays their agent and weaver with the real machines.

`Job` starts ranks, carries mail into their black boxes and answers out of them, and drives the real proposer.
It judges nothing: tests read the workers' own logs of what they used.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forker import Forker
from stack import lines_of

from torchloom.agent.mail import put
from torchloom.core.config.box_codec import pack_schedule
from torchloom.core.transaction import proposer
from torchloom.core.transaction.packing import unpack_answers
from torchloom.model.transaction.config import Schedule
from torchloom.model.transaction.messages import Answer, Kind, Mail
from torchloom.model.transaction.operation import (
    Answered,
    Event,
    GenerationBegan,
    Operation,
    Outcome,
    Progressed,
    RankEnded,
    Requested,
    Tell,
    Ticked,
)
from torchloom.model.transaction.state import Proposer, ProposerLimits
from torchloom.spawner import boxes
from torchloom.wire.blackbox import ANSWERS, END, SETTINGS, SIZE, Progress, View

HERE = Path(__file__).parent / "steering"
SOURCES = str(Path(__file__).parents[2] / "src")
ENVIRONMENT = {**os.environ, "PYTHONPATH": SOURCES, "LOOM_RECORDER": "none", "OMP_NUM_THREADS": "1"}
PATIENCE_S = 60.0
"""For answers that come in milliseconds, on a machine that may stand still for seconds."""
STORE = """
import sys, time
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""


def forks() -> Forker:
    """The warm process that forks workers."""
    return Forker(["-m", "forks"], ENVIRONMENT, HERE)


class Store:
    """A store in a process of its own, so that it can be stopped."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", STORE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()


class NearStore:
    """A store in this process: it takes no time to start."""

    def __init__(self) -> None:
        from torch.distributed import TCPStore

        self._store: Any = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.port = int(self._store.port)

    def close(self) -> None:
        self._store = None


class Job:
    """Ranks of one generation and who steers them."""

    def __init__(
        self,
        forks: Forker,
        directory: Path,
        case: str,
        *,
        port: int,
        world: int = 2,
        generation: int = 1,
        schedule: Schedule = (),
        limits: ProposerLimits | None = None,
        script: Path = HERE / "train.py",
        **variables: str,
    ) -> None:
        self.world = world
        self.generation = generation
        self.directory = directory
        self.views: list[View] = []
        orders = []
        for rank in range(world):
            box = directory / f"box.g{generation}.{rank}"
            spec = {"box": str(box), "rank": rank, "world_size": world, "generation": generation}
            made, _ = boxes.create({**spec, "schedule": pack_schedule(schedule)}, {"job": "j"})
            assert made is not None
            made.close()
            with box.open("r+b") as file:
                self.views.append(View(memoryview(mmap.mmap(file.fileno(), SIZE))))
            env = {
                "RANK": str(rank),
                "WORLD_SIZE": str(world),
                "LOCAL_RANK": str(rank),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                "LOOM_JOB": "j",
                "LOOM_GENERATION": str(generation),
                "VALUES": str(directory / f"values.g{generation}.{rank}"),
                **variables,
            }
            order = {"script": str(script), "argv": [case], "box": str(box)}
            log = str(directory / f"log.g{generation}.{rank}")
            orders.append({"spec": order, "cwd": str(directory), "log": log, "env": env})
        self.workers = forks.start(orders)
        self.pids = self.workers.pids
        self.weaver = Proposer(limits=limits or ProposerLimits(answer_timeout_s=PATIENCE_S))
        self.told: dict[int, Outcome] = {}
        self.versions = 0
        self.cut: set[int] = set()
        """Ranks that get no mail."""
        self.on_mail: Callable[[int, Mail], bool] = lambda rank, mail: True
        """Whether this mail arrives."""
        self.codes: dict[int, int] = {}
        self._seen: dict[int, int] = {}
        self.feed(GenerationBegan(generation, world))

    # -- the weaver -----------------------------------------------------------------------------
    def feed(self, event: Event) -> None:
        for effect in proposer.apply(self.weaver, event, time.monotonic_ns()):
            if isinstance(effect, Tell):
                self.told[effect.outcome.version] = effect.outcome
            elif effect.rank not in self.cut and self.on_mail(effect.rank, effect.mail):
                put(self.views[effect.rank], (effect.mail,))

    def ask(self, kind: Kind, values: dict[str, object] | None = None, **more: Any) -> int:
        self.versions += 1
        more.setdefault("vote_timeout_s", PATIENCE_S)
        operation = Operation(self.versions, kind, values or {}, **more)
        self.feed(Requested(operation))
        return self.versions

    def look(self) -> None:
        """What an agent does every few milliseconds."""
        for rank, view in enumerate(self.views):
            version = view.blob_version(ANSWERS)
            if version != self._seen.get(rank):
                self._seen[rank] = version
                for answer in self.answers(rank):
                    self.feed(Answered(answer))
            if rank not in self.codes and self.workers.over(self.pids[rank]):
                self.codes[rank] = self.workers.code(self.pids[rank])
                self.feed(RankEnded(self.generation, rank, f"exit {self.codes[rank]}", self.answers(rank)))
        if self.weaver.queue and self.weaver.current is None:
            self.feed(Progressed(self.generation, max(map(self.steps, range(self.world))) + 1))
        due = proposer.wake_at_ns(self.weaver)
        if due is not None and time.monotonic_ns() >= due:
            self.feed(Ticked())

    def answers(self, rank: int) -> tuple[Answer, ...]:
        return unpack_answers(self.views[rank].read_blob(ANSWERS) or b"")

    def until(self, condition: Callable[[], object], within_s: float = 150.0) -> None:
        give_up = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > give_up or (
                len(self.codes) == self.world and not self._last_look(condition)
            ):
                raise AssertionError(
                    f"not within {within_s} s; {self.weaver.reason}; {self.codes}\n{self.story()}"
                )
            self.look()
            time.sleep(0.002)

    def _last_look(self, condition: Callable[[], object]) -> bool:
        self.look()
        return bool(condition())

    def outcome(self, version: int) -> Outcome:
        self.until(lambda: version in self.told)
        return self.told[version]

    def change(self, values: dict[str, object], **more: Any) -> Outcome:
        return self.outcome(self.ask(Kind.SET, values, **more))

    # -- the workers ----------------------------------------------------------------------------
    def steps(self, rank: int = 0) -> int:
        return self.views[rank].progress(Progress.STEPS)

    def reach(self, steps: int) -> None:
        self.until(lambda: all(self.steps(rank) >= steps for rank in range(self.world)))

    def more(self, steps: int) -> None:
        self.reach(max(self.steps(rank) for rank in range(self.world)) + steps)

    def phase(self, rank: int = 0) -> int:
        return self.views[rank].progress(Progress.PHASE)

    def settings(self, rank: int = 0) -> Any:
        return json.loads(self.views[rank].read_blob(SETTINGS) or b"null")

    def end_record(self, rank: int) -> Any:
        return json.loads(self.views[rank].read_blob(END) or b"null")

    def values(self, rank: int = 0) -> dict[int, dict[str, Any]]:
        """The worker's own log: count of the step → what it used."""
        found = lines_of(self.directory / f"values.g{self.generation}.{rank}")
        lines = [json.loads(line) for line in found]
        return {line["step"]: line for line in lines}

    def story(self) -> str:
        logs = sorted(self.directory.glob(f"log.g{self.generation}.*"))
        return "\n".join(f"{log.name}: {log.read_text()[-3000:]}" for log in logs)

    def wait_for_end(self, within_s: float = 150.0) -> list[int]:
        self.until(lambda: len(self.codes) == self.world, within_s)
        return [self.codes[rank] for rank in range(self.world)]

    def kill(self) -> None:
        self.workers.kill()


def used(job: Job, rank: int, place: str) -> dict[int, Any]:
    return {step: line["used"].get(place) for step, line in job.values(rank).items()}


def lands(job: Job, place: str, at_step: int, value: object, ranks: int = 2) -> None:
    """The first step that uses the value is at_step, on every rank."""
    for rank in range(ranks):
        seen = used(job, rank, place)
        assert seen[at_step] == value, f"rank {rank}: {seen[at_step]} at step {at_step}"
        assert seen[at_step - 1] != value, f"rank {rank} used it before step {at_step}"


Start = Callable[..., Job]
