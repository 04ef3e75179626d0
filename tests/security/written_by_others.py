"""More decoders of what workers, spawners, ranks and stores write, and what each of them is usually given.

A decoder here takes the *content*; checksums, seals and proofs around it are made right, because whoever
writes hostile content makes them right, too. `seeds` are good contents, from which bad ones are made."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import shutil
import struct
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import torch
from nacl.secret import SecretBox

from torchloom.agent.checkpoints.save_reports import _decoder as save_reports
from torchloom.agent.health.file_drop import FileDrop
from torchloom.agent.journal import Journal
from torchloom.agent.observe.boxes import ReadableBox
from torchloom.agent.processes import learned_spawners
from torchloom.agent.processes.recipe import Recipe
from torchloom.api.defaults import Defaults
from torchloom.api.schemas.bodies import JobRequest
from torchloom.api.submission import env_of, spec_of
from torchloom.bus.memory import MemoryBus, MemoryHub
from torchloom.checkpoint.memory import header, slots, tier
from torchloom.checkpoint.memory.hostline import HostLine
from torchloom.checkpoint.restoring.rollback import _read_goal, _read_offers
from torchloom.checkpoint.saving.agenda import _read as read_plan
from torchloom.checkpoint.state.decoding import Decoder
from torchloom.checkpoint.state.image import _HEAD, FIRST, MAGIC, Reading, plan
from torchloom.checkpoint.state.region import anonymous
from torchloom.checkpoint.store import catalogue, names
from torchloom.checkpoint.store.generations import _choice
from torchloom.checkpoint.store.manifest import seal
from torchloom.checkpoint.store.names import CheckpointName
from torchloom.checkpoint.store.runs import recall
from torchloom.checkpoint.store.storage import open_storage
from torchloom.core.devices import exposition
from torchloom.core.history.job_history import PackedHistory, restored
from torchloom.core.retention import KeepRules
from torchloom.data.shards import index as shard_index
from torchloom.export.webhooks import read_webhooks
from torchloom.home import Home
from torchloom.model.fleet import Fleet
from torchloom.model.worker import WorkerRef
from torchloom.spawner.client import SpawnerGone, read_keeper, read_message, read_started
from torchloom.spawner.learned_imports import read_list
from torchloom.spawner.server import read_request
from torchloom.weaver.environments import _ENCRYPTED, Environments
from torchloom.weaver.job_keys import KeysInMemory
from torchloom.weaver.snapshot import FORMAT, Damaged, unpack
from torchloom.wire import blackbox, codec, torchft_messages
from torchloom.wire.start_line import read_start_line
from torchloom.wire.store_values import StoreValues

JOB = "job"


@functools.cache
def _place() -> Path:
    """Made when the first decoder of a file needs it; `remove_files` removes it."""
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    return Path(tempfile.mkdtemp(prefix="loom-decoders-", dir=memory))


class Taken(NamedTuple):
    decode: Callable[[bytes], object]
    seeds: tuple[bytes, ...] = ()


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


# -- spawners ------------------------------------------------------------------------------------------------


def _message(data: bytes) -> object:
    try:
        message = read_message(data)
    except SpawnerGone:
        return None
    if isinstance(message, dict) and "result" in message:
        for read in (read_started, read_keeper):
            try:
                read(message["result"])
            except Exception as error:
                if type(error).__name__ != "SpawnFailed":
                    raise
    return message


_EXIT = {
    "pid": 77,
    "start_ticks": 5,
    "code": 1,
    "signal": None,
    "at_ns": 9,
    "kind": "worker",
    "box": "/b",
    "job": "j",
    "core_dumped": False,
}
_STARTED = {"pid": 77, "start_ticks": 5, "box": "/b", "already": False, "error": None, "notes": ["a"]}
_KEEPER = {"pid": 77, "start_ticks": 5, "host": "127.0.0.1", "port": 99, "already": False}


# -- the job's store -----------------------------------------------------------------------------------------


def _store_value(data: bytes) -> object:
    """Foreign bytes are ignored; what a rank of ours proves may still be nonsense, and is refused."""
    values = StoreValues(b"secret")
    assert values.unpack("loom/1/1.1", data) is None and values.ignored == 1
    text = data.decode(errors="replace")
    assert values.unpack("k", values.pack("k", text).encode()) == text
    read_plan(text)
    for read in (_read_goal, _read_offers):
        try:
            read(text)
        except ValueError:
            raise
        except Exception as error:
            if type(error).__name__ not in ("CheckpointError", "CheckpointDamaged"):
                raise
    return None


# -- images and records of checkpoints -----------------------------------------------------------------------


def _image(data: bytes) -> object:
    """An image with this index and a sum that fits: read, and every tree of it built."""
    size = FIRST + len(data) + 4096
    region = anonymous(size)
    head = _HEAD.pack(MAGIC, len(data), zlib.crc32(data)) + data
    region.bytes[: len(head)] = head
    reading = Reading(region, size)
    decoder = Decoder(reading.records, reading.objects, lambda record, path: reading.view(record).clone())
    return [decoder.decode(tree, (name,)) for name, tree in reading.trees.items()]


def _an_index() -> bytes:
    state = {
        "model": {"w": torch.ones(2, 3), "n": 3, "d": {1: (2.5, None), "x": [True, b"bytes"]}},
        "arrays": {"a": np.arange(4), "s": np.float32(2), "c": 1j, "set": {1, 2}},
        "about": {"rng": {"python": [3, [1, 2], None]}, "step": 5},
    }
    head = plan(state).head
    return head[FIRST:]


def _slot(data: bytes) -> object:
    path = _place() / "slot"
    body = data[: header.HEADER - header.HEAD.size]
    head = header.HEAD.pack(header._MAGIC, len(body), zlib.crc32(body)) + body
    path.write_bytes(head.ljust(header.HEADER, b"\0") + bytes(1 << 12))
    return slots.read(path)


def _host_line(data: bytes) -> object:
    tier.line_file(_place()).write_bytes(_sealed(data))
    return HostLine(_place(), writes=False).read()


def _recalled(data: bytes) -> object:
    tier.numbers(_place()).write_bytes(data)
    return recall(_place(), "r")


def _sealed(data: bytes) -> bytes:
    """The content under a seal that fits, if it is JSON at all; else as it is."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return data
    try:
        return seal(found if isinstance(found, dict) else {"from": found, "begun": found})
    except (ValueError, TypeError, RecursionError):
        return data


# -- black boxes ---------------------------------------------------------------------------------------------


def _box(data: bytes) -> object:
    """A box full of these words, and with this text in each blob."""
    memory = bytearray(blackbox.SIZE)
    words = data[: len(data) // 8 * 8] or b"\xff" * 8
    for at in (blackbox.PROGRESS_AT, blackbox.GROUPS_AT, blackbox.STEPS_AT, blackbox.COLLECTIVES_AT):
        memory[at : at + 512] = (words * (512 // len(words) + 1))[:512]
    view = blackbox.View(memoryview(memory))
    for blob in (blackbox.END, blackbox.METRICS, blackbox.CHECKPOINTS, blackbox.STORE_SECRET):
        view.write_blob(blob, data[: blob.capacity])
    if len(data) >= 24:
        struct.pack_into("<3Q", memory, blackbox.MAIL.at, *struct.unpack_from("<3Q", data))
    reader = _Reader(view)
    reader.end_record(), reader.newest_collective(), reader.json(blackbox.METRICS), reader.under_way()
    view.groups(), view.hashes(), list(view.steps(8)), list(view.collectives(8)), view.fence()
    view.read_blob(blackbox.MAIL)
    return None


class _Reader(ReadableBox):
    """A readable box without a file."""

    def __init__(self, view: blackbox.View) -> None:
        self._own_view = view

    @property
    def view(self) -> blackbox.View:
        return self._own_view


def _catalogue(data: bytes) -> object:
    """A store of which every small file holds this: what people and the control plane do with it."""
    storage = open_storage(str(_place() / "store"), {})
    name = CheckpointName(1, 5)
    content = _sealed(data)
    keys = [key(JOB, name) for key in (names.manifest_key, names.pin_key, names.check_key)]
    keys += [names.branch_key(JOB, names.Branch(1)), names.choice_key(JOB, names.Branch(1))]
    keys += [names.run_key(JOB, "r"), names.latest_key(JOB), names.part_key(JOB, name, 0, 1)]
    for key in keys:
        storage.put(key, [content])
    listed = catalogue.list_checkpoints(storage, JOB)
    assert [entry.name for entry in listed] == [str(name)]
    catalogue.keep(storage, JOB, KeepRules(), approve=lambda verdicts: False)
    catalogue.sweep(storage, JOB, 9e9)
    return catalogue.verify_checkpoint(storage, JOB, str(name), 1.0)


# -- requests ------------------------------------------------------------------------------------------------


def _report(data: bytes) -> object:
    try:
        return save_reports.decode(data)
    except RecursionError:  # as `look_at_saves` does
        return None


def _body(data: bytes) -> object:
    body = JobRequest.model_validate_json(data)
    return spec_of(body, env_of(body, Defaults()), Defaults(), Fleet())


# -- files of this home, and objects of the bus --------------------------------------------------------------


def _journal(data: bytes) -> object:
    """Every file that an agent's journal reads holds this."""
    home = Home(_place() / "home")
    journal = Journal(home)
    journal.open()
    try:
        for path in (home.root / "agent" / name for name in ("id", "epoch")):
            path.write_bytes(data)
        (journal._notes / "1.json").write_bytes(data)
        ended = journal._ended_file("j")
        ended.parent.mkdir(parents=True, exist_ok=True)
        ended.write_bytes(data)
        journal.installation(), journal.epoch(), journal.notes()
        return journal.has_ended(WorkerRef("j", 0, 1, 1), "e1-0")
    finally:
        journal.close()


def _environment(data: bytes) -> object:
    """As those were stored before there were keys."""
    return Environments(MemoryBus(MemoryHub()), KeysInMemory())._open("j", "plain", data)


def _encrypted_environment(data: bytes) -> object:
    keys = KeysInMemory()
    box = SecretBox(keys.make("mine"))
    environments = Environments(MemoryBus(MemoryHub()), keys)
    return environments._open("j", "mine", _ENCRYPTED + bytes(box.encrypt(data)))


def _webhooks(data: bytes) -> object:
    path = _place() / "webhooks.toml"
    path.write_bytes(data)
    path.chmod(0o600)
    return read_webhooks(path)


def _snapshot(data: bytes) -> object:
    try:
        return unpack(FORMAT + hashlib.sha256(data).digest() + data)
    except Damaged:
        return None


def _torchft(data: bytes) -> object:
    """What a replica's manager asks its lighthouse."""
    for read in (torchft_messages.heartbeat_request, torchft_messages.quorum_request):
        with contextlib.suppress(ValueError):
            read(data)
    return torchft_messages.quorum_request(data)


def _imports(data: bytes) -> object:
    """What a job was seen to import."""
    path = _place() / "imports.json"
    path.write_bytes(data)
    read_list(path)
    learned_spawners._refuse(path, "package")
    return learned_spawners.recipe_of(path, Recipe("python", {}, (), False))


def _history(data: bytes) -> object:
    try:
        return restored(msgspec.msgpack.decode(data, type=PackedHistory))
    except RecursionError:  # as the weaver's `_load` does
        return None


def _dropped(data: bytes) -> object:
    """A health report that somebody puts into this home."""
    drop = FileDrop("n1", _place())
    (_place() / "health").mkdir(exist_ok=True)
    (_place() / "health" / "report").write_bytes(data)
    return codec.encode(drop.look().reports), drop.look()


def _exposition(data: bytes) -> object:
    """What an exporter of this host answers."""
    return exposition.readings(data.decode(errors="replace"), "n1")


DECODERS: dict[str, Taken] = {
    "request to a lighthouse": Taken(_torchft, (b"\x0a\x07\x0a\x05r0_ab",)),
    "imports of a job": Taken(
        _imports, (_json({"modules": [f"m{n}" for n in range(300)], "refused": ["x"]}), b"[" * 5000)
    ),
    "history of a job": Taken(_history, (msgspec.msgpack.encode(PackedHistory({}, None)),)),
    "dropped health": Taken(
        _dropped, (_json({"device": "GPU-1", "level": "failed", "why": "x", "values": {"a": 1.5}}),)
    ),
    "answer of an exporter": Taken(
        _exposition, (b'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-1"} 87\n# HELP x y\n',)
    ),
    "catalogue of checkpoints": Taken(
        _catalogue,
        (
            _json({"from": "step-5.g1"}),
            _json({"right": True, "why": "", "at_s": 1.0}),
            _json({"format": 1, "job": "job", "name": "step-5.g1", "world": 1, "files": []}),
        ),
    ),
    "files of the agent's journal": Taken(_journal, (b"3", b"[" * 5000, b"\xff\xfe")),
    "plain environment of a job": Taken(_environment, (msgspec.msgpack.encode({"A": "b"}),)),
    "environment of a job": Taken(
        _encrypted_environment, (msgspec.msgpack.encode({"env": {"A": "b"}, "secret": b"s"}),)
    ),
    "webhooks.toml": Taken(
        _webhooks, (b'[[webhook]]\nurl = "https://h:1/x"\nformat = "slack"\njobs = ["a*"]\n',)
    ),
    "snapshot": Taken(_snapshot, (codec.encode(Fleet()),)),
    "request to a spawner": Taken(
        read_request, (_json({"id": 1, "do": "start", "workers": [{"box": "/b", "env": {}}]}),)
    ),
    "message of a spawner": Taken(
        _message,
        (
            _json({"exit": _EXIT}),
            _json({"id": 1, "result": [_STARTED]}),
            _json({"id": 1, "result": _KEEPER}),
            _json({"id": 1, "error": "x"}),
        ),
    ),
    "value in the job's store": Taken(
        _store_value,
        (
            b"1 0 20 10",
            b"COMMIT",
            _json([["step-5.g1", "s"]]),
            _json({"name": "step-5.g1", "branch": 0, "generation": 1, "in_memory": True, "save": "s"}),
        ),
    ),
    "image": Taken(_image, (_an_index(),)),
    "slot of the memory tier": Taken(
        _slot, (_json({"size": 64, "sums": 0, "generation": 1, "step": 5, "branch": 0, "world": 2}),)
    ),
    "line of this host": Taken(_host_line, (_json({"begun": [1, 2], "from": {"1.from": "step-5.g1"}}),)),
    "numbers of a run": Taken(_recalled, (_json({"run": "r", "generation": 1, "number": 2}),)),
    "choice of a generation": Taken(
        lambda data: _choice(_sealed(data), "1.from"), (_json({"from": "step-5.g1"}), _json({"from": ""}))
    ),
    "index of shards": Taken(
        shard_index.parse,
        (
            _json(
                {
                    "torchloom_index": 1,
                    "format": "text",
                    "token_bytes": 2,
                    "shards": [{"name": "a", "bytes": 9, "lines": 2, "sha256": "0" * 64}],
                }
            ),
        ),
    ),
    "report of checkpoints": Taken(
        _report,
        (_json({"uri": "s3://b", "name": "j", "opened": True, "saved": {"name": "step-5.g1", "step": 5}}),),
    ),
    "black box": Taken(
        _box, (_json({"how": "exception", "code": 1, "exception": "E", "at_ns": 5}), bytes(range(64)))
    ),
    "start line of a log": Taken(
        lambda data: read_start_line(data.decode(errors="replace")),
        (b"[loom] 2026-01-01T00:00:00Z generation 1: rank 0 of 2",),
    ),
    "body of a submission": Taken(
        _body,
        (
            _json({"world_size": 4, "env": {"A": "b"}, "env_withheld": ["X"], "labels": {"a": "b"}}),
            _json({"script": "/t.py", "nodes": 1, "workers_per_node": 2, "limits": {"hang_act_s": 5}}),
            _json({"command": ["true"], "policy": {"rules": {"hang": {"certain": "report"}}}}),
        ),
    ),
}


def remove_files() -> None:
    shutil.rmtree(_place())
    _place.cache_clear()
