"""Replay in another process, under another hash seed, gives the same bytes: nothing depends on set order."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

from world_history import NAMES, live_through

from torchloom.wire import codec

REPLAY = """
import hashlib, sys, msgspec
from torchloom.core.reducer import apply
from torchloom.model.events import Envelope
from torchloom.model.fleet import Fleet
from torchloom.wire import codec
stream = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=list[tuple[Envelope, int, int]])
fleet, effects = Fleet(), []
for envelope, seq, now_ns in stream:
    effects += apply(fleet, envelope, seq, now_ns)
print(hashlib.sha256(codec.encode((fleet, effects))).hexdigest())
"""


def test_replay_is_the_same_in_every_process() -> None:
    chance = random.Random(7)
    world = live_through([(chance.choice(NAMES), chance.randrange(2310)) for _ in range(1500)])
    assert len(world.stream) > 500
    source = str(Path(__file__).resolve().parents[2] / "src")
    digests = set()
    for seed in ("0", "1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": source}
        command = [sys.executable, "-c", REPLAY]
        done = subprocess.run(command, input=codec.encode(world.stream), env=env, capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
        digests.add(done.stdout)
    assert len(digests) == 1
