"""What a policy does to real jobs: back before a NaN and past the sample that caused it; a pause."""

from __future__ import annotations

import ast
import math
import re
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from stack import Stack, lines_of, wait_until

from torchloom.data import ElasticLoader, ShardedDataset

SEED = 153
SAMPLES = 160_000
"""Of poisoned.py: enough for minutes, however late something is done."""


class Notes:
    """What the ranks of poisoned.py wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def rows(self, rank: int) -> list[tuple[int, list[int], float]]:
        found = []
        for line in lines_of(self.folder / f"rank{rank}"):
            step, _, rest = line.partition(" ")
            indices, _, loss = rest.rpartition(" ")
            found.append((int(step), ast.literal_eval(indices), float(loss)))
        return found

    def since_the_nan(self, rank: int) -> list[tuple[int, list[int], float]]:
        """What was made after the last loss that was none."""
        rows = self.rows(rank)
        bad = [n for n, (_, _, loss) in enumerate(rows) if not math.isfinite(loss)]
        assert bad and rows[bad[0]][0] == 29
        return rows[bad[-1] + 1 :]


def incident(stack: Stack, job: str, kind: str, **wanted: Any) -> dict[str, Any]:
    def look() -> Any:
        found = [i for i in stack.json("incidents", job) if i["kind"] == kind]
        return next((i for i in found if all(i[k] == v for k, v in wanted.items())), None)

    found: dict[str, Any] = wait_until(look, f"{kind} {wanted}: {stack.json('incidents', job)}")
    return found


def lines_of_shards(root: Path) -> None:
    root.mkdir()
    for shard in range(8):
        names = range(shard * SAMPLES // 8, (shard + 1) * SAMPLES // 8)
        (root / f"{shard}.jsonl").write_text("".join(f'{{"id": {name}}}\n' for name in names))


def one_of_step_29(loader: Any) -> int:
    for _ in islice(loader, 29):
        found = loader.indices()
    return int(found[3])


@pytest.mark.parametrize("data", ["samples", "lines"])
def test_a_nan_is_rolled_back_and_the_batch_that_caused_it_is_left_out_for_good(
    stack: Stack, tmp_path: Path, data: str
) -> None:
    place: dict[str, Any] = {"seed": SEED, "rank": 0, "world": 2}
    loader: Any = ElasticLoader(range(SAMPLES), 16, **place)
    shards = []
    if data == "lines":
        lines_of_shards(tmp_path / "shards")
        shards = [str(tmp_path / "shards")]
        loader = ShardedDataset(shards[0], **place).loader(8, collate_fn=list)
    poisoned = one_of_step_29(loader)
    policy = tmp_path / "policy.toml"
    policy.write_text('cooldown_s = 1\n[rules.not-a-number]\ncertain = "rollback"\n')
    flags = ("--policy", str(policy))
    stack.env["CHECKPOINT_DIR"] = str(tmp_path / "ckpt")
    job = stack.submit("poisoned.py", str(tmp_path), str(SEED), str(poisoned), *shards, flags=flags)
    notes = Notes(tmp_path)
    found = incident(stack, job, "not-a-number", open=False)
    # Of step 25, unless the disk was so slow that another one was saved.
    back = re.match(r"rolled back to the end of step (\d+)", found["resolution"])
    assert back and 0 < int(back[1]) < 29, found
    assert "left out from now on: 0:" in found["decision"]
    wait_until(lambda: all(len(notes.since_the_nan(rank)) > 30 for rank in (0, 1)), "it goes past it")
    status = stack.status(job)
    assert status["restarts"] == 0 and status["generation"] == 1
    for rank in (0, 1):
        after = notes.since_the_nan(rank)
        first = int(back[1]) + 1
        assert [step for step, _, _ in after] == list(range(first, first + len(after)))
        assert all(poisoned not in indices for _, indices, _ in after)
    # What was saved before knows nothing of it, and still it is left out.
    oldest = min(one["step"] for one in stack.json("checkpoints", job)["checkpoints"] if one["whole"])
    before = len(notes.rows(0))
    stack.steer("restore", job, "--step", str(oldest))

    def steps() -> list[int]:
        return [step for step, _, _ in notes.rows(0)[before:]]

    wait_until(lambda: oldest + 1 in steps(), "it is back there")
    wait_until(lambda: steps()[-1] >= 45, "it goes past it")
    later = notes.rows(0)[before:]
    start = next(n for n, (step, _, _) in enumerate(later) if step == oldest + 1)
    assert all(math.isfinite(loss) for _, _, loss in later[start:])
    assert len([i for i in stack.json("incidents", job) if i["kind"] == "not-a-number"]) == 1


def test_a_policy_pauses_a_real_job_until_somebody_lets_it_go_on(stack: Stack, tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('[rules.not-a-number]\ncertain = "pause"\n')
    job = stack.submit("faulty.py", str(tmp_path / "notes"), "nan", flags=("--policy", str(policy)))
    wait_until(lambda: stack.status(job).get("paused"), f"paused: {stack.status(job)}")
    told = incident(stack, job, "not-a-number")
    assert f"`loom resume {job}` lets it continue" in told["decision"] or told["decision"].startswith(
        "paused"
    )
    steps = len(lines_of(tmp_path / "notes"))
    stack.steer("resume", job)
    wait_until(lambda: len(lines_of(tmp_path / "notes")) > steps + 10, "it goes on")
