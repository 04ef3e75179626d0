"""Two live processes of two submissions of one name on one directory: one saves, the other is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from torchloom.checkpoint.store.local import LocalStorage
from torchloom.checkpoint.store.manifest import unseal
from torchloom.checkpoint.store.names import Branch, branch_key
from torchloom.checkpoint.store.reader import look

SOURCES = str(Path(__file__).parents[2] / "src")
RANK = """
import json, sys
import torch
import torchloom as loom

ckpt = loom.Checkpoint(model=torch.nn.Linear(2, 2), dir=sys.argv[1], name="nightly", every=1)
step = ckpt.restore()
print(json.dumps({"restored": ckpt.restored.name}), flush=True)
for _ in sys.stdin:
    step += 1
    ckpt.step(step)
    ckpt.wait()
    print(json.dumps({"step": step, "failures": ckpt.failures, "why": ckpt.why_failed}), flush=True)
"""


class Life:
    """One generation of a run, as a process of its own."""

    def __init__(self, store: Path, run: str, generation: int) -> None:
        env = {key: value for key, value in os.environ.items() if not key.startswith("LOOM_")}
        env |= {"PYTHONPATH": SOURCES, "LOOM_RUN": run, "LOOM_GENERATION": str(generation)}
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", RANK, str(store)]
        self.process = subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    def answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def train(self) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.answer()

    def end(self) -> str:
        """Its stderr, once it is gone."""
        self.process.kill()
        return self.process.communicate()[1]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[[str, int], Life]]:
    lives: list[Life] = []

    def start(run: str, generation: int) -> Life:
        lives.append(Life(tmp_path, run, generation))
        return lives[-1]

    yield start
    for life in lives:
        life.end()


def test_of_two_live_runs_of_one_name_only_the_later_one_saves(
    tmp_path: Path, begin: Callable[[str, int], Life]
) -> None:
    first = begin("a", 1)
    assert first.answer() == {"restored": ""} and first.train()["failures"] == 0
    second = begin("b", 1)
    assert second.answer() == {"restored": "step-1.g1"} and second.train()["failures"] == 0
    fenced = first.train()
    assert fenced["failures"] == 1 and "another run of nightly has taken over" in fenced["why"]
    first.end()  # its rank dies, and it is restarted under the number that the other run has
    again = begin("a", 2)
    _, told = again.process.communicate(timeout=120)
    assert again.process.returncode != 0 and "another run of nightly has taken over" in told
    assert second.train() == {"step": 3, "failures": 0, "why": ""}
    storage = LocalStorage(tmp_path)
    assert [str(name) for name in look(storage, "nightly").committed] == [
        "step-3.g2",
        "step-2.g2",
        "step-1.g1",
    ]
    assert unseal(storage.get(branch_key("nightly", Branch(2))), "the fence")["run"] == "b"
