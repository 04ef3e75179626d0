from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import steered
from forked import Forked, forked
from forker import Forker
from probed import Warm
from stack import Stack
from steered import Job, NearStore, Start

sys.path.append(str(Path(__file__).parents[1] / "integration"))
from s3 import S3Server


@pytest.fixture
def home() -> Iterator[Path]:
    """A short path: sockets have to fit into 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="loom-e2e-") as root:
        yield Path(root) / "home"


@pytest.fixture
def bare(home: Path) -> Iterator[Stack]:
    """A stack that is not up yet. At the end everything is ended and nothing may be left."""
    stack = Stack(home)
    try:
        yield stack
    finally:
        stack.end()


@pytest.fixture(scope="module")
def lasting() -> Iterator[Path]:
    """The home of the stack that all tests of a file use. At the end nothing of it may be left."""
    with tempfile.TemporaryDirectory(prefix="loom-e2e-") as root:
        stack = Stack(Path(root) / "home")
        try:
            yield stack.home.root
        finally:
            stack.end()


@pytest.fixture
def stack(lasting: Path) -> Iterator[Stack]:
    """One that is up, without a job that runs, and with variables of its own. To start one takes seconds, so
    it is the one of the test before; a test may end any part of it, or all."""
    stack = Stack(lasting)
    stack.stay_up()
    try:
        yield stack
        stack.stay_up()
        stack.end_jobs()
    except BaseException:
        stack.loom("down", "--stop-jobs", check=None)
        raise


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3Server]:
    """A real S3 server that a test may kill."""
    server = S3Server(tmp_path)
    server.start()
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="module")
def forks() -> Iterator[Forker]:
    made = steered.forks()
    yield made
    made.close()


@pytest.fixture
def start(forks: Forker, tmp_path: Path) -> Iterator[Start]:
    """Starts steered workers; none of them outlives the test."""
    jobs: list[Job] = []
    stores: list[NearStore] = []

    def begin(case: str, **more: Any) -> Job:
        port = more.pop("port", None)
        if port is None:
            stores.append(NearStore())
            port = stores[-1].port
        jobs.append(Job(forks, tmp_path, case, port=port, **more))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.kill()
    for store in stores:
        store.close()


@pytest.fixture(scope="session")
def ranks() -> Iterator[Forked]:
    """Starts ranks with nothing of torchloom around them."""
    with forked() as process:
        yield process


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    made = Warm(tmp_path_factory.mktemp("warm"))
    yield made
    made.close()


@pytest.fixture
def box(tmp_path: Path) -> Path:
    return tmp_path / "box"
