"""One rank's Flight Recorder dump as records. Input is whatever a file held: nothing in it is trusted.

The format is torch's (FlightRecorder.hpp, versions 2.x). Fields that are missing or of another type get
their defaults; only a dump without a list of entries is refused. Texts are cut, lists are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec.structs import replace

from torchloom.errors import DumpUnreadable
from torchloom.model.flight import Dump, DumpEntry, PairTotal

MOST_ENTRIES = 1_000_000
_MOST_RANKS = 1_000_000
_MOST_DIMENSIONS = 4096
_TEXT = 120
_PAIR = re.compile(r"(\d{1,9})\s*(->|<-)\s*(\d{1,9})")
_NUMBER = re.compile(r"\d{1,9}")
_WIDTHS = {
    "Byte": (1, "uint8"),
    "Char": (1, "int8"),
    "Short": (2, "int16"),
    "Int": (4, "int32"),
    "Long": (8, "int64"),
    "Half": (2, "float16"),
    "Float": (4, "float32"),
    "Double": (8, "float64"),
    "ComplexHalf": (4, "complex32"),
    "ComplexFloat": (8, "complex64"),
    "ComplexDouble": (16, "complex128"),
    "Bool": (1, "bool"),
    "BFloat16": (2, "bfloat16"),
    "Float8_e5m2": (1, "float8_e5m2"),
    "Float8_e4m3fn": (1, "float8_e4m3fn"),
}
"""torch's names of element types in C++: bytes, and the name a script uses."""
_RENAMED = {
    "_all_gather_base": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "ALLGATHER_coalesced": "all_gather_into_tensor (coalesced)",
    "REDUCE_SCATTER_coalesced": "reduce_scatter_tensor (coalesced)",
    "all_gather_into_tensor_coalesced": "all_gather_into_tensor (coalesced)",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor (coalesced)",
    "allreduce_coalesced": "all_reduce (coalesced)",
}


def read_dump(plain: object, rank: int) -> Dump:
    """Raises DumpUnreadable if this is no dump."""
    if not isinstance(plain, dict) or "version" not in plain:
        raise DumpUnreadable("it is not a Flight Recorder dump")
    listed = plain.get("entries", [])
    if not isinstance(listed, list):
        raise DumpUnreadable("it is not a Flight Recorder dump")
    raw = [one for one in listed[-MOST_ENTRIES:] if isinstance(one, dict)]
    first = min((_int(one.get("record_id")) for one in raw), default=0)
    entries, pairs = _counted(_with_coalesced([_entry(one) for one in raw]))
    return Dump(
        rank=rank,
        entries=entries,
        pairs=pairs,
        groups=_groups(plain.get("pg_config")),
        wrapped=first > 0,
        version=_text(plain.get("version")),
        library=_text(plain.get("comm_lib_version") or plain.get("nccl_version")),
    )


def _entry(raw: Mapping[object, object]) -> DumpEntry:
    backend, _, rest = _text(raw.get("profiling_name")).partition(":")
    name, _, meta = rest.partition(" ")
    group, description = _group(raw.get("process_group"))
    pair = _PAIR.fullmatch(meta.strip()) if name in ("send", "recv") else None
    state = raw.get("state")
    completed_ns = _int(raw.get("time_discovered_completed_ns"))
    done = state == "completed" or completed_ns > 0
    # gloo records no events: all it says is that an entry is retired, which it is when it is over.
    over = done or (backend == "gloo" and raw.get("retired") is True)
    size, dtype = _bytes(raw)
    pairwise = raw.get("is_p2p") is True or name in ("send", "recv")
    return DumpEntry(
        backend=backend,
        op=_RENAMED.get(name, name) or "unknown",
        group=group,
        description=description,
        seq=_int(raw.get("p2p_seq_id" if pairwise else "collective_seq_id")),
        pairwise=pairwise,
        peer=int(pair[3]) if pair else None,
        bytes=size,
        dtype=dtype,
        shape=_text(str(raw["input_sizes"])) if _is_small(raw.get("input_sizes")) else "",
        state="completed" if over else "started" if state == "started" else "scheduled",
        over=over,
        created_ns=_int(raw.get("time_created_ns")),
        started_ns=_int(raw.get("time_discovered_started_ns")),
        completed_ns=completed_ns,
        timeout_s=_int(raw.get("timeout_ms")) / 1e3,
        place=_place(raw.get("frames")),
    )


def trimmed(dump: Dump, most: int = 32, newest: int = 8) -> Dump:
    """As much of it as a verdict needs: what is not over, and the newest operations."""
    total = len(dump.entries)
    waiting = [at for at, one in enumerate(dump.entries) if not one.over][:most]
    # The newest of every group says how far the rank has come in it.
    newest_of = {one.group: at for at, one in enumerate(dump.entries) if not one.pairwise}
    kept = sorted({*waiting, *range(max(0, total - newest), total), *newest_of.values()})
    return replace(dump, entries=tuple(dump.entries[at] for at in kept))


def _counted(entries: list[DumpEntry]) -> tuple[tuple[DumpEntry, ...], tuple[PairTotal, ...]]:
    """Number sends and recvs by peer: torch numbers them by rank, which says nothing about the other side."""
    totals: dict[tuple[str, int], dict[str, int]] = {}
    found = []
    for entry in entries:
        if entry.pairwise and entry.peer is not None:
            counts = totals.setdefault((entry.group, entry.peer), {"send": 0, "recv": 0})
            counts[entry.op] = counts.get(entry.op, 0) + 1
            entry = replace(entry, seq=counts[entry.op])
        found.append(entry)
    pairs = (PairTotal(group, peer, n["send"], n["recv"]) for (group, peer), n in totals.items())
    return tuple(found), tuple(pairs)


def _with_coalesced(entries: list[DumpEntry]) -> list[DumpEntry]:
    """Operations of a coalesced launch have no events of their own: the launch, which is recorded after them
    under the same number, says how far they are. Of sends and recvs the members are kept, because each has
    another peer; of collectives the launch, because all members are one collective."""
    launches: dict[tuple[str, bool, int], int] = {}
    kept: list[DumpEntry] = []
    for entry in reversed(entries):
        key = (entry.group, entry.pairwise, entry.seq)
        if entry.op == "coalesced" or entry.op.endswith("(coalesced)"):
            launches[key] = len(kept)
        elif (at := launches.get(key)) is not None:
            launch = kept[at]
            if not entry.pairwise:
                op = f"{entry.op} (coalesced)" if launch.op == "coalesced" else launch.op
                kept[at] = replace(launch, op=op, bytes=launch.bytes + entry.bytes, dtype=entry.dtype)
                continue
            entry = _as_far_as(entry, launch)
        kept.append(entry)
    return [one for one in reversed(kept) if not (one.pairwise and one.op == "coalesced")]


def _as_far_as(entry: DumpEntry, launch: DumpEntry) -> DumpEntry:
    return replace(
        entry,
        state=launch.state,
        over=launch.over,
        started_ns=launch.started_ns,
        completed_ns=launch.completed_ns,
    )


def _group(value: object) -> tuple[str, str]:
    if isinstance(value, tuple | list) and len(value) == 2:
        return _text(value[0]), _text(value[1])
    return _text(value), ""


def _groups(value: object) -> dict[str, tuple[int, ...]]:
    """`{"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}`"""
    found: dict[str, tuple[int, ...]] = {}
    for name, info in value.items() if isinstance(value, dict) else ():
        told = info.get("ranks") if isinstance(info, dict) else None
        if isinstance(told, str):
            ranks = tuple(int(one) for one in _NUMBER.findall(told)[:_MOST_RANKS])
        elif isinstance(told, list):
            ranks = tuple(one for one in told[:_MOST_RANKS] if type(one) is int)
        else:
            continue
        if ranks:
            found[_text(name)] = ranks
    return found


def _bytes(raw: Mapping[object, object]) -> tuple[int, str]:
    """Of the inputs, or of the outputs where there is none (a recv)."""
    for sizes, dtypes in (("input_sizes", "input_dtypes"), ("output_sizes", "output_dtypes")):
        shapes, names = raw.get(sizes), raw.get(dtypes)
        if not isinstance(shapes, list | tuple) or not isinstance(names, list | tuple) or not shapes:
            continue
        total, kinds = 0, set()
        for shape, name in zip(shapes[:_MOST_DIMENSIONS], names, strict=False):
            width, dtype = _WIDTHS.get(_text(name), (1, _text(name)))
            kinds.add(dtype)
            total += width * _elements(shape)
        return total, kinds.pop() if len(kinds) == 1 else "mixed types"
    return 0, ""


def _elements(shape: object) -> int:
    count = 1
    for size in shape[:64] if isinstance(shape, list | tuple) else ():
        count *= _int(size)
        if count > 1 << 62:
            return 1 << 62
    return count


def _is_small(value: object) -> bool:
    if not isinstance(value, list | tuple) or len(value) > 4:
        return False
    lists = [one for one in value if isinstance(one, list | tuple) and len(one) <= 8]
    return len(lists) == len(value) and all(type(n) is int for one in lists for n in one)


def _place(frames: object) -> str:
    for frame in frames[:64] if isinstance(frames, list) else ():
        if not isinstance(frame, dict):
            continue
        file = _text(frame.get("filename"), 400)
        if file and "/torch/" not in file and not file.startswith("<"):
            return f"{_text(frame.get('name'))}() at {file.rpartition('/')[2]}:{_int(frame.get('line'))}"
    return ""


def _int(value: object) -> int:
    if type(value) is int and 0 <= value < 1 << 63:
        return value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        return int(value)
    return 0


def _text(value: object, most: int = _TEXT) -> str:
    return value[:most] if isinstance(value, str) else str(value)[:most] if type(value) is int else ""
