"""Making the index of a dataset: reads every shard once, counts and checksums it, writes `index.json`."""

from __future__ import annotations

import argparse
import os
import sys

from torchloom.data.shards.index import FORMATS, NAME, Measure, ShardIndex, format_of, good_name
from torchloom.data.shards.source import ShardSource, open_source
from torchloom.errors import LoomError, UsageError


def build(source: ShardSource, format_: str = "", token_bytes: int = 2) -> ShardIndex:
    """The index of what is there now."""
    names = [name for name in source.names() if name != NAME and not name.split("/")[-1].startswith(".")]
    format_ = format_ or format_of(names)
    shards = []
    for name in (name for name in names if name.endswith(FORMATS[format_])):
        if not good_name(name):
            raise UsageError(f"a shard cannot be called {name!r:.80}", hint="rename it")
        measure = Measure()
        for chunk in source.chunks(name):
            measure.add(chunk)
        shards.append(measure.shard(name, format_))
    if not shards:
        raise UsageError(f"there are no shards ({', '.join(FORMATS[format_])})")
    return ShardIndex(format_, token_bytes, tuple(shards))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m torchloom.data.shards.index", description="write the index of a dataset"
    )
    parser.add_argument("uri", help="directory or s3://bucket/prefix with the shards")
    parser.add_argument("--format", choices=sorted(FORMATS), default="")
    parser.add_argument("--token-bytes", type=int, choices=(2, 4), default=2)
    options = parser.parse_args(arguments)
    try:
        source = open_source(options.uri, os.environ)
        index = build(source, options.format, options.token_bytes)
        source.write(NAME, index.dump())
    except LoomError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(f"{NAME}: {len(index.shards)} shards, {sum(s.bytes for s in index.shards):,} bytes")
    return 0
