"""A torchft job of a test: started, watched by what its replicas print, disturbed."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from stack import Stack, lines_of, wait_until

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


class Replicas:
    """A torchft job of a test, and what its replicas print."""

    def __init__(self, stack: Stack, name: str, size: int) -> None:
        self.stack = stack
        self.jobs = [f"{name}-r{index}" for index in range(size)]
        self.name = name

    def lines(self, index: int, rank: int = 0) -> list[str]:
        return lines_of(self.stack.home.jobs_dir / self.jobs[index] / f"rank-{rank}.log")

    def steps(self, index: int) -> list[tuple[int, int]]:
        """Steps and the number of replicas that made each."""
        found = (re.match(r"step (\d+) .*replicas (\d+)", line) for line in self.lines(index))
        return [(int(m[1]), int(m[2])) for m in found if m]

    def rates(self, index: int) -> dict[int, str]:
        """The learning rate that each step used."""
        found = (re.match(r"step (\d+) .*lr (\S+)", line) for line in self.lines(index))
        return {int(m[1]): m[2] for m in found if m}

    def rounds(self, index: int) -> dict[int, int]:
        """How many updates each step was made of."""
        found = (re.match(r"step (\d+) of (\d+) updates", line) for line in self.lines(index))
        return {int(m[1]): int(m[2]) for m in found if m}

    def wait_steps(self, more: int, replicas: int, among: tuple[int, ...]) -> None:
        """Until each of these has made so many further steps together with so many replicas."""
        seen = {index: len(self.steps(index)) for index in among}

        def done() -> bool:
            new = (self.steps(index)[before:] for index, before in seen.items())
            return all(sum(count == replicas for _, count in steps) >= more for steps in new)

        try:
            wait_until(done, f"{more} steps of {replicas} replicas on {among}")
        except AssertionError as error:
            logs = "\n".join("\n".join(self.lines(index)[-30:]) for index in among)
            raise AssertionError(f"{error}\n{logs}\n{self.stack.logs()}") from error

    def pid(self, index: int) -> int:
        worker: dict[str, Any] = self.stack.status(self.jobs[index])["workers"][0]
        return int(worker["pid"])

    def ended(self) -> None:
        """However long it takes, as long as there are new steps."""
        for index, job in enumerate(self.jobs):
            while not (over := self.stack.status(job)["ended"]):
                seen = len(self.lines(index))
                wait_until(
                    lambda: self.stack.status(job)["ended"] or len(self.lines(index)) > seen + 200,  # noqa: B023
                    f"{job} ends or makes further steps",
                )
            assert over

    def end_together(self) -> int:
        """Have all replicas end after the same step, which lies ahead; the step."""

        def asked() -> bool:
            newest = max(step for index in range(len(self.jobs)) for step, _ in self.steps(index))
            return self.stack.loom("set", self.name, f"max_steps={newest + 30}", check=None).returncode == 0

        wait_until(asked, "max_steps is set")
        self.ended()
        (last,) = {max(step for step, _ in self.steps(index)) for index in range(len(self.jobs))}
        return last

    def hashes(self, index: int, rank: int) -> list[str]:
        """What this rank printed as the hash of its weights."""
        return re.findall(r"weights (\w+)", "\n".join(self.lines(index, rank)))

    def weights(self) -> set[str]:
        """The hashes that the replicas print at the end."""
        self.ended()
        return {found for index in range(len(self.jobs)) for found in self.hashes(index, 0)}


def started(
    stack: Stack,
    name: str,
    *,
    size: int = 2,
    steps: int,
    step_s: float = 0.05,
    script: Path = EXAMPLES / "torchft_ddp.py",
    flags: tuple[str, ...] = (),
    made: Callable[[Stack, str, int], Replicas] | None = None,
) -> Replicas:
    """With timeouts so long that nothing in these tests can be explained by one."""
    flags += ("--replicas", str(size), "--name", name, "--env", f"STEP_S={step_s}")
    flags += ("--env", "TORCHFT_TIMEOUT_SEC=3600", "--env", "PYTHONPATH", "--env", f"ROUNDS={steps}")
    stack.loom("submit", *flags, "--max-steps", str(steps), str(script))
    job = (made or Replicas)(stack, name, size)
    job.wait_steps(2, size, tuple(range(size)))
    return job


# -- what scripts/torchft_exact.py prints ----------------------------------------------------------
def made_steps(job: Replicas, index: int) -> list[tuple[int, int, str]]:
    """Of one replica: when it made each step, and the hash of its weights after it."""
    found = (re.match(r"step (\d+) replicas \d+ at (\d+) has (\w+)", line) for line in job.lines(index))
    return [(int(m[2]), int(m[1]), m[3]) for m in found if m]


def check_one_history(job: Replicas) -> None:
    """No two replicas, and no replica at different times, have had different weights after the same step."""
    weights: dict[int, str] = {}
    for index in range(len(job.jobs)):
        for _, step, has in made_steps(job, index):
            assert weights.setdefault(step, has) == has, f"replica {index} is another training at step {step}"


def check_data(job: Replicas) -> None:
    """Those who made a step together shared one global batch, and the next one began where it ended."""
    text = r"step (\d+) replicas (\d+) .* used (\d+) (\d+) (\d+)"
    shares: dict[int, dict[int, tuple[int, int, int, int]]] = {}
    for index in range(len(job.jobs)):
        for found in filter(None, (re.match(text, line) for line in job.lines(index))):
            step, replicas, epoch, first, last = map(int, found.groups())
            shares.setdefault(step, {})[index] = epoch, first, last, replicas
    whole = {}
    for step, made in sorted(shares.items()):
        parts = sorted(made.values())
        assert all(a[2] <= b[1] for a, b in pairwise(parts)), (
            f"a sample was used twice in step {step}: {made}"
        )
        if len(parts) == parts[0][3]:  # nobody was killed before it could print
            assert all(a[2] == b[1] for a, b in pairwise(parts)), f"a sample was lost in step {step}: {made}"
            whole[step] = parts[0][0], parts[0][1], parts[-1][2]
    for step, (epoch, _, last) in whole.items():
        if step + 1 in whole:
            assert whole[step + 1][:2] in ((epoch, last), (epoch + 1, 0)), (
                step,
                whole[step],
                whole[step + 1],
            )
    assert whole
