"""The settings a job takes from its environment (mission J6): on a real S3 server, and a host is lost."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from s3 import S3Server
from stack import Stack, command_of, wait_until

from torchloom.data.demo import make

EXAMPLE = ("-m", "torchloom.examples.char_gpt")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Stack]:
    """A second torchloom that shares nothing with the first, as on another host."""
    other = Stack(Path(f"{tmp_path}-2"))
    try:
        yield other
    finally:
        other.end()


def settings(s3: S3Server, corpus: str, cache: Path, **more: str) -> dict[str, str]:
    return {
        **s3.environment,
        "JOB_ID": "nightly",
        "WORLD_SIZE": "2",
        "CHECKPOINT_DIR": "runs/ckpt",
        "CHECKPOINT_EVERY": "10",
        "SLEEP_SEC": "0.02",
        "DATASET_DIR": corpus,
        "HEARTBEAT_TIMEOUT": "45",
        "MAX_RESTARTS": "4",
        "LOOM_DATA_CACHE": str(cache),
        **more,
    }


def everything_told(stack: Stack, job: str) -> str:
    """All that anybody can read of a job: process list, logs of all parts, answers, events."""
    told = [command_of(process) for process in stack.processes()]
    told += [path.read_text(errors="replace") for path in stack.home.logs_dir.rglob("*") if path.is_file()]
    told += [path.read_text(errors="replace") for path in stack.home.jobs_dir.rglob("*.log")]
    for verb in (
        ("ps",),
        ("status", job),
        ("checkpoints", job),
        ("events", job),
        ("incidents",),
        ("logs", job),
    ):
        told.append(stack.loom(*verb, "--json").stdout)
    return "\n".join(told)


def checkpoints(stack: Stack, job: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = stack.json("checkpoints", job)["checkpoints"]
    return found


def test_the_environment_alone_trains_from_s3_into_s3_and_goes_on_from_there(
    stack: Stack, elsewhere: Stack, s3: S3Server, tmp_path: Path
) -> None:
    make(tmp_path / "corpus", "jsonl", shards=6, lines=60)
    corpus = s3.fill(tmp_path / "corpus", "corpus")

    stack.env |= settings(s3, corpus, tmp_path / "cache", MAX_STEPS="100000")
    assert stack.loom("submit", *EXAMPLE).stdout.split()[-1] == "nightly"
    wait_until(lambda: stack.status("nightly")["step"] >= 25, "steps")
    view = stack.status("nightly")
    assert (view["world_size"], view["max_restarts"]) == (2, 4)
    os.kill(stack.worker_pid("nightly", 1), signal.SIGKILL)
    wait_until(lambda: (s := stack.status("nightly"))["restarts"] == 1 and s["step"] >= 60, "it goes on")
    wait_until(lambda: any(c["step"] >= 40 for c in checkpoints(stack, "nightly")), "checkpoints in S3")
    found = checkpoints(stack, "nightly")
    assert all(c["where"].startswith(f"s3://{s3.bucket}/runs/ckpt") for c in found)
    assert all(c["step"] % 10 == 0 for c in found)
    log = stack.loom("logs", "nightly").stdout
    assert re.search(rf"[\d,]+ lines of {corpus}, 2 workers, from step 0\n", log)
    told = everything_told(stack, "nightly")
    for secret in ("S3_SECRET_KEY", "S3_ACCESS_KEY"):
        assert s3.environment[secret] not in told

    # The host is lost: all its processes at once, with its memory and disk. Another one takes the job up.
    stack.loom("stop", "nightly", "--kill")
    newest = max(c["step"] for c in checkpoints(stack, "nightly") if c["whole"])
    stack.end()
    elsewhere.env |= settings(s3, corpus, tmp_path / "cache-2", MAX_STEPS=str(newest + 60), SLEEP_SEC="0")
    elsewhere.up()
    done = elsewhere.loom("run", *EXAMPLE, timeout=240)
    went_on = re.findall(r"resumed after step (\d+) from the store", done.stdout + done.stderr)
    assert len(went_on) == 1 and int(went_on[0]) >= newest, done.stdout + done.stderr
    view = elsewhere.status("nightly")
    assert view["state"] == "completed" and view["restarts"] == 0, "no trace of what the first host counted"
    assert not (tmp_path / "checkpoints").exists() and not Path("runs").exists()


NEEDS_ONE = """
import os, pathlib, time
value = os.environ["MY_SERVICE_KEY"]
print("got", len(value), flush=True)
while not pathlib.Path({over!r}).exists():
    time.sleep(0.05)
"""


def files_with(stack: Stack, value: str) -> list[Path]:
    """Files of this torchloom, black boxes included, in which a value can be read."""
    found = []
    for place in (stack.home.root, stack.home.boxes):
        for path in place.rglob("*"):
            with contextlib.suppress(OSError):  # a socket, or gone meanwhile
                if path.is_file() and value.encode() in path.read_bytes():
                    found.append(path)
    return found


def test_a_variable_that_is_not_forwarded_is_named_and_one_that_is_leaves_nothing_behind(
    stack: Stack, tmp_path: Path
) -> None:
    value, over = "hunter2-not-a-real-secret", tmp_path / "over"
    script = tmp_path / "needs_one.py"
    script.write_text(NEEDS_ONE.format(over=str(over)))
    stack.env |= {"MY_SERVICE_KEY": value}
    job = stack.submit(str(script), workers=1, flags=("--max-restarts", "0"))
    stack.wait_state(job, "failed")
    (incident,) = stack.faults(job)
    assert incident["verdict"].endswith(
        "KeyError: 'MY_SERVICE_KEY'; MY_SERVICE_KEY was set where the job was submitted"
        " and was not forwarded: submit with --env MY_SERVICE_KEY"
    )

    job = stack.submit(str(script), workers=1, flags=("--max-restarts", "0", "--env", "MY_SERVICE_KEY"))
    wait_until(lambda: f"got {len(value)}" in stack.loom("logs", job).stdout, "the script has its variable")
    assert not files_with(stack, value), "while the job runs"
    assert (stack.home.root / "keys").is_dir()
    over.touch()
    stack.wait_state(job, "completed")
    keys = set((stack.home.root / "keys").iterdir())
    stack.loom("delete", job)
    wait_until(
        lambda: len(set((stack.home.root / "keys").iterdir()) & keys) == len(keys) - 1, "its key is gone"
    )
    assert not files_with(stack, value), "after the job was deleted"
