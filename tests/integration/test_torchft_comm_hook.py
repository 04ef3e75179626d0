"""torchft 0.2: a survivor's allreduce fails inside its DDP hook, and it dies of `assert fut._fut`.

Two replicas of the stable release with torchft's own lighthouse and nothing of torchloom but the replacement
of that hook, once with it and once without. The other replica dies when its allreduce is due.
tests/e2e/test_torchft.py kills replicas of the stable release under torchloom.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

STABLE = Path(sys.prefix) / "torchft-stable"
WORKLOAD = Path(__file__).resolve().parents[2] / "bench" / "workloads" / "torchft_steps.py"
HANG_S = 150.0

RUN = """
import os, runpy, sys
import torch.distributed
import torchft.ddp
store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
os.environ["MASTER_PORT"] = str(store.port)
if os.environ["REPLICA_GROUP_ID"] == "1":
    from torchft.manager import Manager
    allreduce, made = Manager.allreduce, []

    def dies(self, *args, **kwargs):
        self.wait_quorum()
        made.extend([1] if self.num_participants() == 2 else [])
        if len(made) > 5:
            os.kill(os.getpid(), 9)  # the other one begins its allreduce, in a quorum of both
        return allreduce(self, *args, **kwargs)

    Manager.allreduce = dies
if sys.argv[1] == "mended":
    from torchloom.integrations.torchft import mend_comm_hook
    mend_comm_hook(torchft.ddp)
sys.argv = sys.argv[1:]
runpy.run_path({workload!r}, run_name="__main__")
"""

LIGHTHOUSE = """
import sys, time
from torchft.coordination import LighthouseServer
lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=60000)
print("address", lighthouse.address(), flush=True)
time.sleep(1e6)
"""


@contextmanager
def running(command: list[str], env: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=env, stdout=out, stderr=out)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait(done: Callable[[], bool], logs: list[Path]) -> None:
    deadline = time.monotonic() + HANG_S
    while not done():
        assert time.monotonic() < deadline, "\n".join(log.read_text()[-3000:] for log in logs)
        time.sleep(0.02)


def together(notes: Path, replica: int, replicas: int) -> int:
    """How many steps this replica has made with so many."""
    lines = [line for path in notes.glob(f"{replica}.*") for line in path.read_text().splitlines()]
    return sum(line.split()[2:] == [str(replicas)] for line in lines)


@pytest.mark.parametrize("hook", [pytest.param("stock", marks=pytest.mark.long), "mended"])
def test_a_survivor_of_the_stable_release_dies_in_its_ddp_hook_unless_it_is_replaced(
    tmp_path: Path, hook: str
) -> None:
    assert STABLE.is_dir(), "scripts/setup.sh installs it"
    env = {name: value for name, value in os.environ.items() if not name.startswith(("LOOM_", "TORCHFT_"))}
    env |= {"PYTHONPATH": str(STABLE), "OMP_NUM_THREADS": "1"}
    notes = tmp_path / "notes"
    notes.mkdir()
    logs = [tmp_path / f"{name}.log" for name in ("0", "1", "lighthouse")]
    with ExitStack() as stack:
        stack.enter_context(running([sys.executable, "-c", LIGHTHOUSE], env, logs[2]))
        wait(lambda: "address " in logs[2].read_text(), logs)
        port = int(re.findall(r"address .*:(\d+)", logs[2].read_text())[0])
        env["TORCHFT_LIGHTHOUSE"] = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-c", RUN.format(workload=str(WORKLOAD)), hook, str(notes)]
        both = []
        for replica in range(2):
            mine = env | {"REPLICA_GROUP_ID": str(replica), "RANK": "0", "WORLD_SIZE": "1"}
            mine |= {"MASTER_ADDR": "127.0.0.1"}
            both.append(stack.enter_context(running(command, mine, logs[replica])))
        survivor, victim = both
        wait(lambda: any(one.poll() is not None for one in both), logs)
        assert victim.poll() == -signal.SIGKILL and together(notes, 0, 2) >= 3, logs[1].read_text()[-3000:]
        wait(lambda: survivor.poll() is not None or together(notes, 0, 1) >= 3, logs)
        said = logs[0].read_text()
        if hook == "stock":
            assert survivor.poll() == 1 and "assert fut._fut" in said, said[-3000:]
        else:
            assert survivor.poll() is None and together(notes, 0, 1) >= 3, said[-3000:]
