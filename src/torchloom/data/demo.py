"""A generated dataset to try things with: `python -m torchloom.data.demo DIRECTORY`.

Numbered lines in shards of uneven length, with an index; the same for the same seed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path

from torchloom.data.shards.index import FORMATS, NAME, ShardIndex
from torchloom.data.shards.indexing import build
from torchloom.data.shards.source import LocalSource
from torchloom.errors import LoomError, UsageError

_WORDS = [
    "the",
    "weaver",
    "agent",
    "spawner",
    "worker",
    "probe",
    "loom",
    "thread",
    "step",
    "rank",
    "box",
    "gradient",
    "signal",
    "shard",
    "line",
]


def make(
    root: Path, format_: str = "jsonl", shards: int = 16, lines: int = 1000, seed: int = 0
) -> ShardIndex:
    """Write about `lines` lines (or windows' worth of 16 tokens) a shard into an empty or new directory."""
    if root.exists() and any(root.iterdir()):
        raise UsageError(f"{root} is not empty", hint="name a new directory")
    root.mkdir(parents=True, exist_ok=True)
    draw = random.Random(seed)
    number = 0
    for shard in range(shards):
        count = max(1, lines + draw.randint(-lines // 4, lines // 4))
        path = root / f"shard-{shard:05d}{FORMATS[format_][0]}"
        if format_ == "tokens":
            tokens = array("H", (draw.randrange(50_000) for _ in range(count * 16)))
            if sys.byteorder != "little":
                tokens.byteswap()
            path.write_bytes(tokens.tobytes())
        else:
            path.write_text("".join(_lines(draw, format_, number, count)))
        number += count
    source = LocalSource(root)
    index = build(source, format_)
    source.write(NAME, index.dump())
    return index


def _lines(draw: random.Random, format_: str, number: int, count: int) -> Iterator[str]:
    for line in range(number, number + count):
        words = " ".join(draw.choices(_WORDS, k=draw.randint(4, 16)))
        yield (json.dumps({"id": line, "text": words}) if format_ == "jsonl" else f"{line} {words}") + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m torchloom.data.demo", description="make a dataset to try"
    )
    parser.add_argument("directory", type=Path, nargs="?", default=os.environ.get("DATASET_DIR"))
    parser.add_argument("--format", choices=sorted(FORMATS), default="jsonl")
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--lines", type=int, default=1000, help="lines a shard, about")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.directory is None:
        parser.error("name a directory, or set DATASET_DIR")
    try:
        index = make(Path(options.directory), options.format, options.shards, options.lines, options.seed)
    except LoomError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    total = sum(shard.lines for shard in index.shards)
    print(
        f"{len(index.shards)} shards, {total:,} lines" if total else f"{len(index.shards)} shards of tokens"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
