"""Runs of scripts/identical.py: submit, disturb, and compare what they left."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from stack import HANG_S, Stack, lines_of, wait_until


class Store(Protocol):
    """A server that keeps checkpoints and can die."""

    def kill(self) -> None: ...
    def start(self) -> None: ...


class Run:
    """One job of scripts/identical.py and what it left. It makes its last steps when `finish` is called."""

    def __init__(
        self,
        stack: Stack,
        out: Path,
        world: int,
        steps: int,
        *args: str,
        until: int = 0,
        per_node: int = 0,
        flags: tuple[str, ...] = (),
    ) -> None:
        self.stack, self.out, self.world, self.steps = stack, out, world, steps
        self.go_on(until or steps - 3)
        command = (str(out), "--steps", str(steps), *args)
        flags = ("--max-restarts", "50", *flags)
        self.job = stack.submit("identical.py", *command, workers=per_node or world, flags=flags)

    def go_on(self, until: int) -> None:
        """Let it make steps up to this one."""
        self._limit = until
        self.out.mkdir(parents=True, exist_ok=True)
        (self.out / "limit.new").write_text(str(until))
        (self.out / "limit.new").rename(self.out / "limit")

    def creep(self, condition: Callable[[], Any], what: str) -> None:
        """Let it make a step now and then until something holds: saves begin and are told of at steps."""

        def look() -> Any:
            self.go_on(self.lines(self.world - 1)[-1][1] + 1)
            time.sleep(0.1)
            return condition()

        wait_until(look, what)

    def finish(self, timeout_s: float = HANG_S) -> dict[str, Any]:
        self.go_on(self.steps)
        status = self.stack.wait_state(self.job, "completed", "failed", timeout_s=timeout_s)
        assert status["state"] == "completed", f"{status}\n{self.stack.loom('logs', self.job).stdout[-3000:]}"
        return status

    def lines(self, rank: int) -> list[tuple[int, int, str, int]]:
        """(generation, step, samples, pid) of every step a rank has made."""
        fields = [line.split() for line in lines_of(self.out / f"samples-{rank}")]
        return [(int(f[0]), int(f[1]), f[2], int(f[3])) for f in fields if len(f) == 4]

    def samples(self) -> dict[tuple[int, int], str]:
        """What each rank saw at each step; what a later generation did again counts."""
        found: dict[tuple[int, int], tuple[int, str]] = {}
        for rank in range(self.world):
            for generation, step, indices, _ in self.lines(rank):
                found[rank, step] = max(found.get((rank, step), (0, "")), (generation, indices))
        return {key: indices for key, (_, indices) in found.items()}

    def final(self) -> list[Any]:
        return [json.loads((self.out / f"final-{rank}").read_text()) for rank in range(self.world)]

    def newest_saved(self) -> int:
        """The step of the newest state in the store."""
        found = self.stack.json("checkpoints", self.job)["checkpoints"]
        return max((int(one["step"]) for one in found if one["whole"]), default=0)

    def restored_from(self, where: str) -> int:
        """How many generations went on from a state kept there: memory or the store."""
        return len(
            re.findall(rf"resumed after step \d+ from {where}", self.stack.loom("logs", self.job).stdout)
        )

    def wait_step(self, step: int) -> None:
        def there() -> bool:
            return any(s >= step for _, s, _, _ in self.lines(self.world - 1))

        wait_until(there, f"step {step}")

    def kill_worker(self, rank: int) -> None:
        """SIGKILL the newest process of a rank and wait for the next one's first step."""
        self.wait_next(rank, self.end_worker(rank))

    def end_worker(self, rank: int) -> int:
        """SIGKILL the newest process of a rank; the generation that ends with it."""
        generation, _, _, pid = self.lines(rank)[-1]
        os.kill(pid, signal.SIGKILL)
        return generation

    def wait_next(self, rank: int, generation: int) -> None:
        """Wait for the first step after that generation."""
        if self.lines(rank)[-1][1] >= self._limit:
            self.go_on(self._limit + 1)  # the state may be that of the last step it was allowed
        try:
            wait_until(lambda: self.lines(rank)[-1][0] > generation, "it goes on")
        except AssertionError as error:
            log = self.stack.loom("logs", self.job, check=None).stdout
            raise AssertionError(f"{error}\n{self.stack.try_status(self.job)}\n{log[-3000:]}") from error


def disturb(run: Run, at: list[int], turn: tuple[str, ...], seed: int, store: Store | None = None) -> None:
    """Kill in turn, each at its step. `store` and `store, worker` kill the store's server, and start it
    again: after some steps without it, or while a worker waits for what it has saved there."""
    draw = random.Random(seed)
    print(f"seed {seed}: {list(zip(at, turn, strict=True))}")
    for step, what in zip(at, turn, strict=True):
        run.wait_step(step)
        rank = draw.randrange(run.world)
        match what:
            case "worker":
                run.kill_worker(rank)
            case "store":
                assert store is not None
                store.kill()
                run.wait_step(run.lines(run.world - 1)[-1][1] + 10)
                store.start()
            case "store, worker":
                assert store is not None
                store.kill()
                ended = run.end_worker(rank)
                store.start()
                run.wait_next(rank, ended)
            case part:
                run.stack.wait_part_back(part, run.stack.kill_part(part))


def random_steps(steps: int, count: int, seed: int, chosen: tuple[int, ...] = ()) -> list[int]:
    """Chosen steps and random ones, not the very first and not so late that the run could be over."""
    rest = [step for step in range(5, steps - 15) if step not in chosen]
    return sorted((*chosen, *random.Random(seed).sample(rest, count - len(chosen))))


def compare(plain: Run, disturbed: Run) -> None:
    assert disturbed.samples() == plain.samples()
    assert disturbed.final() == plain.final()
