"""Names and keys of everything a job keeps in its checkpoint store.

    <job>/step-<N>.g<generation>/manifest.json           the commit: without it the checkpoint does not exist
    <job>/step-<N>.g<generation>/part-<rank>.<attempt>   what one rank wrote
    <job>/step-<N>.g<generation>/<file>                  r<rank>.<attempt>.<token>.<name>
    <job>/step-<N>.g<generation>.b<branch>/…             the same, after a live rollback
    <job>/generations/<G>                                generation G has begun (the fence)
    <job>/generations/<G>.from                           what generation G resumed from
    <job>/generations/<G>.b<B>, <G>.b<B>.from            the same of branch B, begun by a live rollback
    <job>/runs/<run>                                     which number a submission of the job began with
    <job>/pins/<checkpoint>                              never delete this one
    <job>/checks/<checkpoint>                            outcome of the last verification
    <job>/LATEST                                         a hint for people; never read by torchloom

Pure: builds and parses, touches nothing. Refuses names that could lead out of the store's root.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from torchloom.errors import UsageError

JOB = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
_CHECKPOINT = re.compile(r"step-(0|[1-9]\d{0,17})\.g(0|[1-9]\d{0,17})(?:\.b([1-9]\d{0,8}))?")
_GENERATION = re.compile(r"(0|[1-9]\d{0,17})(?:\.b([1-9]\d{0,8}))?(\.from)?")
TEMPORARY = ".tmp-"
"""How the last part of a key begins while a local file is being written."""

MANIFEST = "manifest.json"
SCRATCH = ""
"""What a generation that began with nothing says it resumed from."""


class Branch(NamedTuple):
    """A run of states that follow each other: a generation begins branch 0, a live rollback the next one."""

    generation: int
    number: int = 0

    def __str__(self) -> str:
        return f"{self.generation}.b{self.number}" if self.number else f"{self.generation}"


class CheckpointName(NamedTuple):
    """Which state."""

    generation: int
    step: int
    branch: int = 0

    @property
    def on(self) -> Branch:
        """The branch it lies on."""
        return Branch(self.generation, self.branch)

    @property
    def age(self) -> tuple[int, int, int]:
        """Sorts by generation and branch before step, because the word of a newer one counts more."""
        return self.generation, self.branch, self.step

    def __str__(self) -> str:
        return f"step-{self.step}.g{self.on}"


def parse_name(text: str) -> CheckpointName | None:
    """The checkpoint a name means, or None if it is not such a name."""
    found = _CHECKPOINT.fullmatch(text)
    return CheckpointName(int(found[2]), int(found[1]), int(found[3] or 0)) if found else None


def check_job(job: str) -> str:
    """The job's name if it can be part of a key. Raises UsageError."""
    if not JOB.fullmatch(job) or job.endswith("."):
        raise UsageError(
            f"{job!r} cannot name a job in a checkpoint store", hint="use letters, digits, . _ -"
        )
    return job


def check_file(name: str) -> str:
    """A file's name if it can be part of a key. Raises UsageError."""
    if not FILE.fullmatch(name):
        raise UsageError(f"{name!r} cannot name a file of a checkpoint", hint="use letters, digits, . _ -")
    return name


def directory(job: str, name: CheckpointName) -> str:
    return f"{job}/{name}"


def manifest_key(job: str, name: CheckpointName) -> str:
    return f"{job}/{name}/{MANIFEST}"


def part_key(job: str, name: CheckpointName, rank: int, attempt: int) -> str:
    return f"{job}/{name}/part-{rank}.{attempt}"


def file_key(job: str, name: CheckpointName, stored: str) -> str:
    return f"{job}/{name}/{stored}"


def stored_name(rank: int, attempt: int, token: str, name: str) -> str:
    """Where a rank keeps a file. The token is new for every write, so no key is ever written twice."""
    return check_file(f"r{rank}.{attempt}.{token}.{check_file(name)}")


def branch_key(job: str, branch: Branch) -> str:
    return f"{job}/generations/{branch}"


def choice_key(job: str, branch: Branch) -> str:
    return f"{job}/generations/{branch}.from"


def parse_branch(last: str) -> tuple[Branch, bool] | None:
    """(branch, is it the record of its choice) from the last part of a key under generations/."""
    found = _GENERATION.fullmatch(last)
    return (Branch(int(found[1]), int(found[2] or 0)), found[3] is not None) if found else None


def run_key(job: str, run: str) -> str:
    return f"{job}/runs/{check_file(run)}"


def pin_key(job: str, name: CheckpointName) -> str:
    return f"{job}/pins/{name}"


def check_key(job: str, name: CheckpointName) -> str:
    return f"{job}/checks/{name}"


def latest_key(job: str) -> str:
    return f"{job}/LATEST"
