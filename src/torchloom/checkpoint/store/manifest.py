"""What a checkpoint is made of: the manifest, a rank's part of it, and their sealed JSON form.

Owns the records and their encoding. Pure: no store, no clock. A sealed document carries the SHA-256 of
itself, so that one cut short or changed is never taken for whole. What is read is checked field by field,
because a manifest may come from a damaged or a hostile store: no name in it can lead out of its directory.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from torchloom.checkpoint.store.names import FILE, CheckpointName, parse_name
from torchloom.errors import CheckpointDamaged

FORMAT = 1
MOST_RANKS = 2**24
"""More than any job has; a larger number in a manifest is damage."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a checkpoint."""

    name: str
    """As the writer calls it; unique within its rank."""
    rank: int
    stored: str
    """Its key within the checkpoint's directory."""
    size: int
    checksum: str
    """Algorithm and value: `crc32:0a1b2c3d`."""


@dataclass(frozen=True, slots=True)
class RankPart:
    """What one rank wrote for one attempt to save."""

    name: CheckpointName
    attempt: int
    rank: int
    files: tuple[FileEntry, ...]
    series: str = ""
    """Whose attempt it is (commit.py)."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the caller knows about the state it saves, besides the files."""

    epoch: int = 0
    config_version: int = 0
    cursor: Any = None
    """The position in the data; any JSON."""
    rng: str = ""
    """Name of the files that hold the random number generators' states."""
    parent: str = ""
    """The checkpoint this state grew from: the last one saved, or the one resumed from."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    finite: bool = True
    """False: the loss or the parameters were known to be no longer finite."""
    lineage: Mapping[str, str] = field(default_factory=dict)
    """Which run this was: script, host, version, whatever helps a person."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A committed checkpoint."""

    job: str
    step: int
    generation: int
    world: int
    created_s: float
    facts: Facts
    files: tuple[FileEntry, ...]
    branch: int = 0

    @property
    def name(self) -> CheckpointName:
        return CheckpointName(self.generation, self.step, self.branch)

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.files)

    @property
    def content(self) -> str:
        """Equal for manifests of the same files, no matter who gathered them and when."""
        return hashlib.sha256(json.dumps([asdict(e) for e in self.files]).encode()).hexdigest()

    def of_rank(self, rank: int) -> tuple[FileEntry, ...]:
        return tuple(entry for entry in self.files if entry.rank == rank)


def seal(document: Mapping[str, Any]) -> bytes:
    """JSON with a digest of itself. Raises ValueError or TypeError for what JSON cannot hold."""
    body = json.dumps(document, sort_keys=True, allow_nan=False)
    digest = hashlib.sha256(body.encode()).hexdigest()
    return f'{{"seal": "{digest}", "body": {body}}}\n'.encode()


def unseal(data: bytes, what: str) -> dict[str, Any]:
    """The document if it is whole. Raises CheckpointDamaged."""
    try:
        document = json.loads(data)
        body = document["body"]
        if hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest() != document["seal"]:
            raise ValueError("the seal is wrong")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointDamaged(f"{what} is damaged ({type(error).__name__})") from error
    if not isinstance(body, dict):
        raise CheckpointDamaged(f"{what} is damaged (not an object)")
    return body


def encode_manifest(manifest: Manifest) -> bytes:
    facts = manifest.facts
    finite = {k: v if math.isfinite(v) else None for k, v in facts.metrics.items()}
    return seal({"format": FORMAT, **asdict(manifest), "facts": {**asdict(facts), "metrics": finite}})


def decode_manifest(data: bytes, job: str, name: CheckpointName) -> Manifest:
    """The manifest, if it is whole and belongs where it was found. Raises CheckpointDamaged."""
    what = f"manifest.json of {name}"
    body = unseal(data, what)
    try:
        if body["format"] != FORMAT:
            raise ValueError(f"format {body['format']!r} is not known here")
        facts = body["facts"]
        manifest = Manifest(
            job=_text(body["job"]),
            step=_count(body["step"]),
            generation=_count(body["generation"]),
            branch=_count(body.get("branch", 0)),
            world=_world(body["world"]),
            created_s=_time(body["created_s"]),
            files=_files(body["files"]),
            facts=Facts(
                epoch=_count(facts["epoch"]),
                config_version=_count(facts["config_version"]),
                cursor=facts["cursor"],
                rng=_text(facts["rng"]),
                parent=_text(facts["parent"]),
                metrics={
                    str(k): float("nan") if v is None else float(v) for k, v in facts["metrics"].items()
                },
                finite=facts.get("finite") is not False,
                lineage={str(k): _text(v) for k, v in facts["lineage"].items()},
            ),
        )
        if (manifest.job, manifest.name) != (job, name):
            raise ValueError(f"it is that of {manifest.job}/{manifest.name}")
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise CheckpointDamaged(f"{what} is not valid ({error})") from error
    return manifest


def encode_part(part: RankPart) -> bytes:
    return seal({"format": FORMAT, **asdict(part), "name": str(part.name)})


def decode_part(data: bytes, what: str) -> RankPart:
    """Raises CheckpointDamaged."""
    body = unseal(data, what)
    try:
        name = parse_name(_text(body["name"]))
        if name is None or body["format"] != FORMAT:
            raise ValueError("its name or format is not known here")
        counts = _count(body["attempt"]), _count(body["rank"])
        return RankPart(name, *counts, _files(body["files"]), _text(body.get("series", "")))
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointDamaged(f"{what} is not valid ({error})") from error


def _files(entries: Sequence[Mapping[str, Any]]) -> tuple[FileEntry, ...]:
    files = tuple(
        FileEntry(
            name=_file(entry["name"]),
            rank=_count(entry["rank"]),
            stored=_file(entry["stored"]),
            size=_count(entry["size"]),
            checksum=_text(entry["checksum"]),
        )
        for entry in entries
    )
    if len({(entry.rank, entry.name) for entry in files}) != len(files):
        raise ValueError("a file is named twice")
    return files


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _file(value: object) -> str:
    name = _text(value)
    if not FILE.fullmatch(name):
        raise ValueError(f"{name!r} cannot be a file's name")
    return name


def _time(value: object) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise TypeError(f"{value!r} is not a time")
    return float(value)


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise TypeError("a number in it is not a count")
    return value


def _world(value: object) -> int:
    """A checkpoint has at least one rank, and at most as many as the world."""
    found = _count(value)
    if not 1 <= found <= MOST_RANKS:
        raise ValueError(f"{found} is not a number of ranks")
    return found
