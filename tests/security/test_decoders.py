"""Every decoder of what a worker, an agent, a store or a service wrote: garbage is refused, never a crash.

`make test` tries a fixed corpus and some hundred made-up inputs, `make test-long` more than a million and
prints how many. Some inputs are bytes, some are good JSON in which one value was replaced by one that nobody
expects."""

from __future__ import annotations

import base64
import json
import pickle
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import written_by_others
from hypothesis import given, settings
from hypothesis import strategies as st

from torchloom.bus.nats_lease import parse_entry
from torchloom.bus.protocol import Record
from torchloom.checkpoint.store.manifest import (
    Facts,
    FileEntry,
    Manifest,
    decode_manifest,
    decode_part,
    encode_manifest,
    seal,
)
from torchloom.checkpoint.store.names import CheckpointName
from torchloom.client.transport import problem_error, read_events
from torchloom.core.config.box_codec import unpack_schedule, unpack_settings
from torchloom.core.flight.analysis import analyze
from torchloom.core.flight.dump import read_dump
from torchloom.core.transaction.packing import unpack_answers, unpack_mail
from torchloom.errors import CheckpointDamaged, LoomError
from torchloom.model.fleet import Fleet
from torchloom.terminal import all_visible
from torchloom.weaver.feed import tell
from torchloom.wire import codec
from torchloom.wire.flight_dump import decode_dump

NAME = CheckpointName(1, 5, 0)
REFUSALS: tuple[type[Exception], ...] = (ValueError, LoomError, codec.DecodeError)
"""How a decoder says no. Anything else is a bug: it would end a loop that serves everybody."""


def _lease(data: bytes) -> object:
    encoded = base64.b64encode(data).decode()
    return parse_entry({"seq": 3, "time": "2026-01-01T00:00:00Z", "data": encoded})


def _event(data: bytes) -> object:
    return tell(Fleet(), Record(1, "loom.v1.event.node.n1.report", data, 1))


def _dump(data: bytes) -> object:
    return analyze([read_dump(decode_dump(data), rank) for rank in (0, 1)])


DECODERS: dict[str, Callable[[bytes], object]] = {
    "event": _event,
    "telemetry": codec.decode_telemetry,
    "windows": codec.decode_window_batch,
    "command": codec.decode_command,
    "query": codec.decode_query,
    "receipt": codec.decode_receipt,
    "lease question": codec.decode_lease_ask,
    "log piece": codec.decode_log_piece,
    "box reading": codec.decode_box_reading,
    "checkpoint answer": codec.decode_checkpoint_answer,
    "evidence": codec.decode_evidence_answer,
    "dumps": codec.decode_dumps_answer,
    "lease": _lease,
    "manifest": lambda data: decode_manifest(data, "job", NAME),
    "part": lambda data: decode_part(data, "a part"),
    "answers": unpack_answers,
    "mail": unpack_mail,
    "schedule": unpack_schedule,
    "settings": unpack_settings,
    "flight recorder dump": _dump,
    "problem": lambda data: problem_error(500, data),
    "server-sent events": lambda data: list(read_events(iter(data.splitlines(keepends=True)))),
}

for _name, _taken in written_by_others.DECODERS.items():
    DECODERS[_name] = _taken.decode

CORPUS: list[bytes] = [
    b"",
    b"\x00",
    b"\xff" * 64,
    b"null",
    b"[]",
    b"{}",
    b'""',
    b"1e999",
    b"-1",
    b"18446744073709551616",
    b"9" * 5000,
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b'"\\ud800"',
    b"NaN",
    b'{"body": {}, "seal": ""}',
    b'[{"attempt": null}]',
    b"webhook = [1]",
    b'[[webhook]]\nurl = "http://["',
    b'[[webhook]]\nurl = "http://h:x"',
    b"webhook = " + b"[" * 5000,
    b'{"type": 1, "detail": []}',
    b"data: {\n\n",
    b"data: [[[[\n\n",
    b"\x81" * 1000,
    b"\x91" * 100_000,
    b"\x81\xa1x" + b"\x81" * 100_000,
    b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    seal({"format": 1}),
    seal({"format": 1, "world": 0}),
    json.dumps({"body": {"world": 2**70}, "seal": "0"}).encode(),
]


def feed(name: str, data: bytes) -> None:
    try:
        DECODERS[name](data)
    except REFUSALS:
        pass


@pytest.fixture(scope="module", autouse=True)
def no_file_stays() -> Iterator[None]:
    yield
    written_by_others.remove_files()


@pytest.mark.parametrize("name", DECODERS)
def test_the_corpus_is_refused_in_order(name: str) -> None:
    for data in CORPUS:
        feed(name, data)


@pytest.mark.parametrize("name", DECODERS)
@settings(max_examples=40, deadline=None)
@given(data=st.binary(max_size=512))
def test_made_up_bytes_are_refused_in_order(name: str, data: bytes) -> None:
    feed(name, data)


@settings(max_examples=200, deadline=None)
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
        max_leaves=12,
    )
)
def test_json_of_any_shape_is_refused_in_order(value: Any) -> None:
    data = json.dumps(value).encode()
    for name in ("lease", "manifest", "part", "answers", "mail", "schedule", "settings", "problem"):
        feed(name, data)
    sealed = seal(
        {"format": 1, "body": json.loads(json.dumps(value).replace("NaN", "0").replace("Infinity", "0"))}
    )
    feed("manifest", sealed)
    all_visible(value)


def a_manifest(**changes: object) -> bytes:
    entry = FileEntry(name="a", rank=0, stored="a", size=1, checksum="crc32:0")
    whole = Manifest(job="job", step=5, generation=1, world=1, created_s=1.0, facts=Facts(), files=(entry,))
    body = json.loads(encode_manifest(whole))["body"]
    return seal({**body, **changes})


def test_a_manifest_of_nobody_or_of_the_whole_world_is_damaged() -> None:
    assert decode_manifest(a_manifest(), "job", NAME).world == 1
    for world in (0, -1, 2**70, 2**63, 2**24 + 1, True, "1", 1.5, None):
        with pytest.raises(CheckpointDamaged) as caught:
            decode_manifest(a_manifest(world=world), "job", NAME)
        assert "\n" not in str(caught.value)
    for change in ({"step": 2**70}, {"created_s": 10**400}, {"files": [{"rank": 2**70}]}, {"facts": None}):
        with pytest.raises(CheckpointDamaged):
            decode_manifest(a_manifest(**change), "job", NAME)


def mutated(chance: random.Random, seeds: list[bytes]) -> bytes:
    """One of the seeds with some bytes changed, doubled, cut or joined to another's."""
    data = bytearray(chance.choice(seeds)[:4096])
    for _ in range(chance.randrange(1, 6)):
        at = chance.randrange(len(data) + 1)
        match chance.randrange(4):
            case 0:
                data[at : at + 1] = chance.randbytes(1)
            case 1:
                data[at:at] = data[at : at + chance.randrange(16)]
            case 2:
                del data[at : at + chance.randrange(16)]
            case _:
                data[at:] = chance.choice(seeds)[:256]
    return bytes(data)


UNEXPECTED: tuple[Any, ...] = (
    *(None, True, -1, 0, 2**31, 2**63, 2**64, 2**70, -(2**70), 1.5, 1e308, float("inf"), float("nan")),
    *("", "x" * 300, "../../etc/passwd", "\x00", "\ud800", "step-5.g1", "$tensor", [], {}, [[]], [0] * 50),
    *(
        {"$tensor": -1},
        {"$tensor": 10**9},
        {"$dict": [[]]},
        {"$size": [2**62]},
        {"$named": []},
        {"$enum": "x"},
    ),
)


def twisted(chance: random.Random, value: Any) -> Any:
    """The same JSON value with one part of it replaced, left out or nested deeply."""
    if isinstance(value, (dict, list)) and value and chance.random() < 0.85:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = chance.choice(keys)
        made = dict(value) if isinstance(value, dict) else list(value)
        if chance.random() < 0.15:
            del made[key]
        else:
            made[key] = twisted(chance, value[key])
        return made
    if chance.random() < 0.02:
        deep: Any = value
        for _ in range(chance.choice((5, 900, 3000))):
            deep = [deep]
        return deep
    return chance.choice(UNEXPECTED)


def twist(chance: random.Random, seed: bytes) -> bytes:
    try:
        value = json.loads(seed)
        for _ in range(chance.randrange(1, 4)):
            value = twisted(chance, value)
        return json.dumps(value).encode()
    except (ValueError, RecursionError):
        return mutated(chance, [seed])


@pytest.mark.parametrize("name", written_by_others.DECODERS)
def test_good_content_is_read_and_twisted_content_refused_in_order(name: str) -> None:
    decode, seeds = written_by_others.DECODERS[name]
    chance = random.Random(name)
    for seed in seeds:
        decode(seed)
        for _ in range(300):
            feed(name, twist(chance, seed))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_million_inputs_are_refused_in_order() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    seeds = [data for data in CORPUS if len(data) < 10_000] + [a_manifest()]
    recordings = Path(__file__).parents[1] / "replay" / "recordings"
    for path in sorted(recordings.glob("*.jsonl"))[:4]:
        seeds += [line.encode() for line in path.read_text().splitlines()[:40]]
    dump = (Path(__file__).parents[1] / "data/flight/nccl-pipeline/nccl_trace_rank_1.json").read_bytes()
    seeds += [dump, pickle.dumps(json.loads(dump), 2)]
    names = list(DECODERS)
    count = 0
    for number in range(1_000_000):
        feed(names[number % len(names)], mutated(chance, seeds))
        count += 1
    for name, (_, own) in written_by_others.DECODERS.items():
        for _ in range(20_000):
            chosen = chance.choice(own)
            feed(name, twist(chance, chosen) if chance.random() < 0.7 else mutated(chance, [chosen]))
            count += 1
    print(f"{count} inputs for {len(names)} decoders, none of them crashed")
