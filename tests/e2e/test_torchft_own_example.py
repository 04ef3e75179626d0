"""torchft's own train_ddp.py, unmodified: fetched from the source package of the stable release.

It wants torchdata, and CIFAR10 of torchvision, which has no build that works here: a stand-in of ours is on
PYTHONPATH (scripts/stand_in). Its model has a layer of 1 GB: two replicas need about 10 GB of memory.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import psutil
import pytest
from replica_runs import Replicas
from stack import SCRIPTS, Stack, wait_until

STABLE = Path(sys.prefix) / "torchft-stable"
ENOUGH = 14 << 30
LONG_S = 1500.0

BACKEND = '''
"""pip asks a build backend for the name of what it has downloaded, and would have to build that backend."""
from pathlib import Path

def get_requires_for_build_wheel(config=None):
    return []

def prepare_metadata_for_build_wheel(directory, config=None):
    made = Path(directory, "torchft-0.2.0.dist-info")
    made.mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.1\\nName: torchft\\nVersion: 0.2.0\\n")
    return made.name
'''


def pip(*arguments: str, **env: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", *arguments], capture_output=True, text=True, env=os.environ | env
    )
    assert done.returncode == 0, done.stdout + done.stderr


def fetched(directory: Path) -> Path:
    """Their script, and torchdata in `directory/packages`."""
    (directory / "maturin.py").write_text(BACKEND)
    source = ("--no-binary", ":all:", "--no-build-isolation", "--no-deps", "torchft==0.2.0")
    pip("download", "-d", str(directory), *source, PYTHONPATH=str(directory))
    with tarfile.open(directory / "torchft-0.2.0.tar.gz") as packed:
        packed.extract("torchft-0.2.0/train_ddp.py", directory, filter="data")
    pip("install", "--no-deps", "--target", str(directory / "packages"), "torchdata==0.11.0")
    return directory / "torchft-0.2.0" / "train_ddp.py"


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_torchfts_own_train_ddp_runs_unmodified_and_loses_a_replica(stack: Stack, tmp_path: Path) -> None:
    if psutil.virtual_memory().available < ENOUGH:
        pytest.skip("train_ddp.py needs 14 GB of free memory for two replicas")
    script = fetched(tmp_path)
    paths = (STABLE, SCRIPTS / "stand_in", tmp_path / "packages")
    stack.env["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    stack.loom("submit", "--replicas", "2", "--nproc-per-node", "1", "--name", "own", "--env", "PYTHONPATH",
               str(script))  # fmt: skip
    job = Replicas(stack, "own", 2)

    def steps(index: int) -> int:
        return int(stack.status(job.jobs[index])["workers"][0]["training_step"] or 0)

    def further(more: int) -> None:
        """Both replicas make so many further steps, in one quorum of two."""
        until = max(steps(0), steps(1)) + more
        wait_until(lambda: min(steps(0), steps(1)) >= until, f"step {until} of both", timeout_s=LONG_S)

    further(3)
    stays, lost = job.pid(0), job.pid(1)
    os.kill(lost, signal.SIGKILL)
    wait_until(lambda: job.pid(1) not in (0, lost), "the lost replica is a new process", timeout_s=LONG_S)
    further(3)
    assert job.pid(0) == stays, "\n".join(job.lines(0)[-30:])
    stack.loom("stop", "--kill", job.name)
