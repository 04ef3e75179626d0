"""What a black box says, as words a person can read. Pure: times are arguments, nothing is opened."""

from __future__ import annotations

from collections.abc import Mapping

from torchloom.wire.blackbox import (
    DTYPES,
    FLAG_FAILED,
    OPS,
    REDUCTIONS,
    CollectiveRecord,
    Group,
    RecorderKind,
    Source,
    WorkerPhase,
)

_OP_WORDS = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce_coalesced",
    "broadcast_": "broadcast",
    "reduce_": "reduce",
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather_into_tensor",
    "allgather_coalesced_": "all_gather_coalesced",
    "allgather_into_tensor_coalesced_": "all_gather_into_tensor_coalesced",
    "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter_tensor_coalesced",
    "gather_": "gather",
    "scatter_": "scatter",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all_single",
    "monitored_barrier_": "monitored_barrier",
    "recv_": "recv",
    "recv_any_source_": "recv (any source)",
}

_PHASE_WORDS = {
    WorkerPhase.NONE: "none",
    WorkerPhase.STARTING: "starting",
    WorkerPhase.TRAINING: "training",
    WorkerPhase.DATA_WAIT: "data-wait",
    WorkerPhase.USER: "user",
    WorkerPhase.CONTROL_WAIT: "control-wait",
    WorkerPhase.PAUSED: "paused",
    WorkerPhase.COMPILING: "compiling",
    WorkerPhase.ENDING: "ending",
    WorkerPhase.JOINING: "joining",
}


_GROUP_WORDS = {"0": "default"}
"""torch numbers the groups it makes; the first is the one init_process_group makes."""


def group_name(name: str) -> str:
    return _GROUP_WORDS.get(name, name)


def op_name(op: int) -> str:
    """torch.distributed's name of an operation, from the number in a record."""
    torch_name = OPS[op] if 0 <= op < len(OPS) else OPS[0]
    return _OP_WORDS.get(torch_name, torch_name)


def phase_name(phase: int, user_phase: str = "") -> str:
    if phase == WorkerPhase.USER and user_phase:
        return user_phase
    try:
        return _PHASE_WORDS[WorkerPhase(phase)]
    except ValueError:
        return "unknown"


def recorder_name(recorder: int) -> str:
    try:
        return RecorderKind(recorder).name.lower()
    except ValueError:
        return "unknown"


def size(count: int) -> str:
    """Bytes with three digits: 512 B, 4.0 MB."""
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def duration(seconds: float) -> str:
    if seconds < 0.0995:
        return f"{max(0.0, seconds) * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"


def collective(record: CollectiveRecord, groups: Mapping[int, Group]) -> str:
    """`all_reduce #412 of group default (4.0 MB float32)`."""
    group = groups.get(record.group)
    text = f"{op_name(record.op)} #{record.group_seq}"
    if group is not None and group.name:
        text += f" of group {group_name(group.name)}"
    if record.peer is not None:
        text += f" with rank {record.peer}"
    if record.reduction < len(REDUCTIONS) and REDUCTIONS[record.reduction] not in ("", "SUM"):
        text += f" ({REDUCTIONS[record.reduction]})"
    if record.bytes:
        text += f" ({size(record.bytes)} {DTYPES.get(record.dtype, 'of unknown type')})"
    return text


def past(record: CollectiveRecord, groups: Mapping[int, Group], now_ns: int) -> str:
    """`all_reduce #412 of group default (4.0 MB float32), 2.1 s ago, took 3 ms`."""
    text = f"{collective(record, groups)}, {_since(now_ns, record.entered_ns)} ago, "
    if record.flags & FLAG_FAILED:
        return text + "failed"
    if record.finished_ns:
        return text + f"took {_since(record.finished_ns, record.entered_ns)}"
    return text + ("its end is not recorded" if record.source == Source.NONE else "in progress")


def activity(
    *,
    now_ns: int,
    phase: int,
    phase_since_ns: int,
    user_phase: str,
    steps: int,
    step_ended_ns: int,
    under_way: CollectiveRecord | None,
    groups: Mapping[int, Group],
    offset: int = 0,
) -> str:
    """The last thing a worker was recorded doing; reads on after "it was". `offset`: to its training step."""
    if under_way is not None:
        return f"in {collective(under_way, groups)} for {_since(now_ns, under_way.entered_ns)}"
    lasting = _since(now_ns, phase_since_ns) if phase_since_ns else "an unknown time"
    match phase:
        case WorkerPhase.DATA_WAIT:
            return f"waiting for data for {lasting}"
        case WorkerPhase.JOINING:
            return f"making a process group for {lasting}"
        case WorkerPhase.COMPILING | WorkerPhase.PAUSED | WorkerPhase.ENDING | WorkerPhase.CONTROL_WAIT:
            return f"{phase_name(phase)} for {lasting}"
        case WorkerPhase.USER:
            return f"in its phase {user_phase or 'without a name'} for {lasting}"
        case WorkerPhase.TRAINING if steps and step_ended_ns:
            return f"training, {_since(now_ns, step_ended_ns)} after its step {steps + offset}"
        case WorkerPhase.TRAINING:
            return f"training for {lasting}"
    if steps == 0:
        return "starting, with no step completed"
    return f"past its step {steps + offset}"


def _since(now_ns: int, then_ns: int) -> str:
    return duration((now_ns - then_ns) / 1e9)
