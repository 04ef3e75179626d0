"""An index comes from outside: whatever it says, it is either sound or refused with a sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchloom.data.shards.index import Shard, ShardIndex, good_name, parse
from torchloom.errors import UsageError

CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no failure
GOOD = {"name": "a/b.txt", "bytes": 10, "lines": 2, "sha256": "0" * 64}


def index(**change: Any) -> bytes:
    return json.dumps({"torchloom_index": 1, "format": "text", "shards": [{**GOOD, **change}]}).encode()


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "a/../../x",
        "/etc/passwd",
        "a//b",
        "",
        ".",
        "a/.",
        "C:\\x",
        "a\\..\\b",
        "a\0b",
        "a\nb",
        "x" * 2000,
        7,
    ],
)
def test_names_that_leave_the_dataset_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="path inside the dataset"):
        parse(index(name=name))


@pytest.mark.parametrize(
    "change",
    [
        {"bytes": -1},
        {"bytes": 1 << 60},
        {"bytes": 1.5},
        {"bytes": True},
        {"bytes": None},
        {"lines": 11},
        {"lines": -1},
        {"lines": "2"},
        {"sha256": "0" * 63},
        {"sha256": "../" + "0" * 61},
        {"sha256": None},
    ],
)
def test_impossible_numbers_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        parse(index(**change))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        b'{"torchloom_index": 2}',
        b'{"torchloom_index": 1, "format": "pickle", "shards": []}',
        b'{"torchloom_index": 1, "format": "text", "shards": []}',
        b'{"torchloom_index": 1, "format": "text", "shards": [1]}',
        b'{"torchloom_index": 1, "format": "tokens", "token_bytes": 1e9, "shards": []}',
        json.dumps({"torchloom_index": 1, "format": "text", "shards": [GOOD, GOOD]}).encode(),
    ],
)
def test_what_is_no_index_is_refused(raw: bytes) -> None:
    with pytest.raises(UsageError):
        parse(raw)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
shards = st.fixed_dictionaries(
    {},
    optional={"name": json_values, "bytes": json_values, "lines": json_values, "sha256": json_values},
)


@CALM
@given(
    st.fixed_dictionaries(
        {"torchloom_index": st.just(1)},
        optional={
            "format": json_values | st.just("text"),
            "shards": st.lists(shards | json_values, max_size=3),
        },
    )
)
def test_any_json_is_sound_or_refused(content: Any) -> None:
    try:
        found = parse(json.dumps(content).encode())
    except UsageError:
        return
    assert all(good_name(shard.name) and 0 <= shard.lines <= shard.bytes for shard in found.shards)


names = st.lists(
    st.text(st.characters(exclude_characters="\\/:", exclude_categories=("C",)), min_size=1), min_size=1
)


@CALM
@given(st.lists(st.tuples(names, st.integers(0, 2**40)), min_size=1, max_size=5))
def test_what_is_written_is_read_back(entries: list[tuple[list[str], int]]) -> None:
    unique = {name: size for parts, size in entries if good_name(name := "/".join(parts))}
    if unique:
        made = ShardIndex(
            "text", 2, tuple(Shard(name, size, size // 3, "ab" * 32) for name, size in unique.items())
        )
        assert parse(made.dump()) == made
