"""The black box: one shared-memory file per worker incarnation. This module owns its layout.

The writer is the worker (and, for the header and the mailbox, the spawner and the agent); the reader is
the agent. Only the standard library is used, because the probe imports this inside the user's process.
This module neither opens files nor reads clocks: it packs into and unpacks from a buffer it is given.

Three rules keep a reader safe without locks:

* a *word* is an aligned 8-byte store through ``memoryview.cast("Q")``; a reader sees the old or the new one;
* a *record* (rings) is invalidated (seq = 0), written with a checksum, then its sequence number is written;
* a *blob* (text) has a version that is odd while it is being written, a length and a checksum.

All times are CLOCK_MONOTONIC nanoseconds of the worker's host; 0 means "not yet". The native recorder
(probe/native/recorder.cpp) writes the same layout; tests/unit/wire/test_blackbox.py keeps both in step.

It has more than 400 lines because the layout is one definition: split, its parts could drift apart.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

MAGIC = int.from_bytes(b"TLOOMBX1", "little")
LAYOUT_VERSION = 5
MASK = (1 << 64) - 1
NO_PEER = MASK
"""Peer word of a collective that has no single peer."""


class Header(IntEnum):
    """Word indexes of the header. Written by the spawner before the fork, pid and start time after it."""

    MAGIC = 0
    LAYOUT = 1
    SIZE = 2
    BOOT_ID_HIGH = 3
    BOOT_ID_LOW = 4
    PID = 5
    PID_NAMESPACE = 6
    START_TICKS = 7
    """Field 22 of /proc/<pid>/stat: with the boot id and the pid it identifies a process for good."""
    INCARNATION = 8
    GENERATION = 9
    RANK = 10
    WORLD_SIZE = 11
    LOCAL_RANK = 12
    REALTIME_NS = 13
    """CLOCK_REALTIME at the instant MONOTONIC_NS was read, so that a reader can show wall-clock times."""
    MONOTONIC_NS = 14
    LIFE = 15
    STACK_START = 16
    """Field 28 of /proc/<pid>/stat of the program that writes here, another one after an exec; 0: unknown."""


class Life(IntEnum):
    """Value of Header.LIFE: the journal of a worker's start."""

    CREATED = 1
    FORKED = 2
    RUNNING = 3
    ENDED = 4


class Progress(IntEnum):
    """Word indexes relative to PROGRESS_AT. Each word is valid independently of the others."""

    STEPS = 0
    """Steps of the anchor optimizer completed by this incarnation."""
    STEP_ENTERED_NS = 1
    STEP_ENDED_NS = 2
    STEP_NS = 3
    """Duration from the end of the step before to the end of this one; 0 for the first one."""
    PHASE = 4
    PHASE_SINCE_NS = 5
    DATA_WAIT_NS = 6
    """Total time this incarnation waited for its data loaders."""
    COLLECTIVES_ENTERED = 7
    COLLECTIVES_FINISHED = 8
    RECORDER = 9
    OPTIMIZERS = 10
    OTHER_STEPS = 11
    """Steps of all optimizers that are not the anchor."""
    TRAINING_STEP = 12
    """The script's own step number + 1, or 0 if it never reported one (loom.step)."""
    TOTAL_STEPS = 13
    """The script's own last step, or 0 when unknown."""
    LAST_ACTIVITY_NS = 14
    """Newest sign of progress of any kind: step, collective, data batch, phase."""
    FIRST_STEP_NS = 15
    COLLECTIVES_SKIPPED = 16
    """Collectives a sampling recorder passed over."""
    GUARD_TRIPS = 17
    """How often the probe caught one of its own errors and continued."""
    TRAINING_STEP_AT = 18
    """Completed steps when TRAINING_STEP was last reported: the difference maps one count to the other."""
    CONFIG_VERSION = 19
    """Version of the config that the next step is made with; 0 when nothing was ever changed."""
    DEVICE_OLDEST = 20
    """The oldest record whose operation the device has not finished; 0 when there is none."""
    DEVICE_STATE = 21
    DEVICE_STATE_SINCE_NS = 22
    DEVICE_LOOKED_NS = 23
    """When the recorder's thread looked at the device last; 0: no collective was ever given to a device."""
    DEVICE_EVENTS = 24
    """Events recorded on the device's streams, and how long that took the threads that train."""
    DEVICE_EVENTS_NS = 25
    DEVICE_LOOKS = 26
    """Looks of the recorder's thread, and the CPU time they took."""
    DEVICE_LOOKS_NS = 27
    DEVICE_IDLE_LOOKS = 29
    """Looks that found the training stream with nothing to do."""
    DEVICE_EVERY = 28
    """Of how many steps one is timed on the device: 1 unless that would take too much of a step."""
    STORE_VALUES_IGNORED = 30
    """Values under torchloom's keys in the job's store that no rank of this generation wrote."""
    LOG_LOST_LINES = 31
    """Lines and bytes of its output that found no room on the disk (probe/streams.py)."""
    LOG_LOST_BYTES = 32
    COLLECTIVES_FAILED = 33
    """Collectives that ended with an error, and the number of the newest such record."""
    COLLECTIVE_FAILED_SEQ = 34


class RecorderKind(IntEnum):
    """Value of Progress.RECORDER: who records collectives."""

    NONE = 0
    NATIVE = 1
    PYTHON = 2


class DeviceState(IntEnum):
    """Value of Progress.DEVICE_STATE: what the stream that training uses was seen to do."""

    UNKNOWN = 0
    IDLE = 1
    """Everything that was launched has run."""
    BUSY = 2
    FAILED = 3
    """The device answers with an error, which is in the DEVICE_ERROR blob."""


class WorkerPhase(IntEnum):
    """Value of Progress.PHASE. For USER the name is in the PHASE blob."""

    NONE = 0
    STARTING = 1
    TRAINING = 2
    DATA_WAIT = 3
    USER = 4
    CONTROL_WAIT = 5
    PAUSED = 6
    COMPILING = 7
    ENDING = 8
    JOINING = 9
    """In init_process_group or new_group: waiting for other ranks to arrive."""


class Mailbox(IntEnum):
    """Word indexes relative to MAILBOX_AT; written by the agent. VERSION is written last."""

    VERSION = 0
    COMMAND = 1
    AT_STEP = 2


class MailboxCommand(IntEnum):
    """Value of Mailbox.COMMAND."""

    NOTHING = 0
    STOP = 1
    """End the script at the boundary before step AT_STEP (or the next boundary, if that is past).

    Steps are numbered from 1 in every incarnation, so AT_STEP = N means: after N - 1 completed steps, and 0
    or 1 means the next boundary. Answered when it is carried out, with the number of completed steps.
    NOTHING withdraws a STOP that has not been carried out and is answered at once.
    """


class AnswerWord(IntEnum):
    """Word indexes relative to ANSWER_AT; written by the worker. VERSION is written last."""

    VERSION = 0
    STEP = 1


class Blob(NamedTuple):
    """A place for text: version, length, checksum (three words), then up to `capacity` bytes."""

    at: int
    capacity: int


HEADER_AT = 0
PROGRESS_AT = 1024
MAILBOX_AT = 2048
ANSWER_AT = 3072
GROUPS_AT = 4096
GROUP_SLOTS = 64
GROUP_WORDS = 16
STEPS_AT = GROUPS_AT + GROUP_SLOTS * GROUP_WORDS * 8
STEP_SLOTS = 256
STEP_WORDS = 8
COLLECTIVES_AT = STEPS_AT + STEP_SLOTS * STEP_WORDS * 8
COLLECTIVE_SLOTS = 1024
COLLECTIVE_WORDS = 16
_BLOBS_AT = COLLECTIVES_AT + COLLECTIVE_SLOTS * COLLECTIVE_WORDS * 8
IDENTITY = Blob(_BLOBS_AT, 4096 - 24)
"""JSON of who this worker is (job, replica, rank, log paths…), written by the spawner before the fork."""
PHASE_NAME = Blob(IDENTITY.at + 4096, 512 - 24)
DEVICE = Blob(PHASE_NAME.at + 512, 3584 - 24)
"""JSON of the device the worker uses, as far as the worker knows."""
HYPERPARAMETERS = Blob(DEVICE.at + 3584, 16384 - 24)
METRICS = Blob(HYPERPARAMETERS.at + 16384, 16384 - 24)
END = Blob(METRICS.at + 16384, 16384 - 24)
"""JSON end record: how the script ended, with the traceback's tail."""
MAIL = Blob(END.at + 16384, 16384 - 24)
"""JSON payload of the mailbox, written by the agent."""
CHECKPOINTS = Blob(MAIL.at + 16384, 16384 - 24)
"""JSON of what the worker saved, restored and could not save, and where (checkpoint/report_text.py)."""
ANSWERS = Blob(CHECKPOINTS.at + 16384, 65536 - 24)
"""JSON of the worker's answers to proposals (core/transaction/packing.py)."""
SETTINGS = Blob(ANSWERS.at + 65536, 32768 - 24)
"""JSON of the script's own settings: types, bounds and present values; and what is held over param groups."""
SCHEDULE = Blob(SETTINGS.at + 32768, 65536 - 24)
"""JSON of the config's versions by training step, written before the worker starts."""
FAULT = Blob(SCHEDULE.at + 65536, 4096 - 24)
"""JSON of a fault to be injected, written by the agent."""
DEVICE_ERROR = Blob(FAULT.at + 4096, 1024 - 24)
"""What the device answered when it failed: plain text, written by the recorder."""
DEVICE_STEPS_AT = DEVICE_ERROR.at + 1024
DEVICE_STEP_SLOTS = 256
DEVICE_STEP_WORDS = 4
SIZE = DEVICE_STEPS_AT + DEVICE_STEP_SLOTS * DEVICE_STEP_WORDS * 8


class Ring(NamedTuple):
    """Small records of words, in room that the areas above leave: step, content, checksum in each."""

    at: int
    slots: int
    words: int


ROLE = Blob(PROGRESS_AT + 512, 512 - 24)
"""The role of this rank, as the script reports it (`loom.role`): ranks of one role are compared."""
DEVICE_HEADS_AT = HEADER_AT + 256
DEVICE_HEADS = 8
DEVICE_HEAD_WORDS = 12
"""Copies of the oldest unfinished collective of each group on the device, while its host is so far ahead that
the ring may not hold them any more. The first words of a collective record."""
DEVICE_WAITS_WORD = 12
"""In the last four words of a collective's slot: how long the device waited in a step, by the step's number
(step, wait, lead, checksum). For steps whose collectives the ring does not hold any more."""
HASHES = Ring(ANSWER_AT + 128, 28, 4)
"""Hashes of parameters after a step (probe/observe/parameter_hashes.py): step, part, hash, checksum."""


OPS = (
    "unknown",
    "allreduce_",
    "allreduce_coalesced_",
    "broadcast_",
    "reduce_",
    "allgather_",
    "_allgather_base_",
    "allgather_coalesced_",
    "allgather_into_tensor_coalesced_",
    "reduce_scatter_",
    "_reduce_scatter_base_",
    "reduce_scatter_tensor_coalesced_",
    "gather_",
    "scatter_",
    "alltoall_",
    "alltoall_base_",
    "barrier",
    "monitored_barrier_",
    "send",
    "recv_",
    "recv_any_source_",
)
"""What a collective record is about: the index is the OP word, the name is torch's c10d operator."""

DTYPES = {
    0: "none",
    1: "uint8",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "float16",
    7: "float32",
    8: "float64",
    9: "complex32",
    10: "complex64",
    11: "complex128",
    12: "bool",
    16: "bfloat16",
}
"""dtype field of a collective record: torch's ScalarType number + 1, 0 when there is no tensor."""


REDUCTIONS = ("", "SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
"""Reduction field of a collective record: torch's RedOpType number + 1, 0 when unknown or none."""
REDUCTION_SHIFT = 8


class Source(IntEnum):
    """How the completion of a collective was learned; detectors compare only like with like.

    In a record that is in flight it says how the completion *will* be learned.
    """

    NONE = 0
    """It cannot be learned: such a record stays in flight forever, which says nothing about the operation."""
    CALLBACK = 1
    """The work's own future, on the backend's thread."""
    HOST_WAIT = 2
    """The caller's thread came back from the call, or from waiting for the work (gloo's send and recv)."""
    DEVICE_EVENT = 3
    """The device passed an event behind it, or the backend's work said so when it was asked."""


class CollectiveWord(IntEnum):
    """Word indexes inside a collective record."""

    SEQ = 0
    """Number of the record in this incarnation, from 1; 0 while it is being written."""
    OP = 1
    GROUP = 2
    """Key of the group in the group table."""
    GROUP_SEQ = 3
    """Number of the operation within its group, from 1; the same on all ranks. 0 when unknown.

    A send or recv does not count for the group, because only two ranks take part: its number is that of the
    sends to (receives from) this peer, so the n-th send of one rank meets the n-th recv of the other, as
    long as they use one tag. A receive from any source has no number.
    """
    BYTES = 4
    """Size of the part that is the same on every rank: of a gather the input, of a scatter the output."""
    PACKED = 5
    """dtype | reduction << 8 | flags << 16 | group size << 32"""
    PEER = 6
    """Rank within the group: the other side of a send or recv, the root of a rooted operation."""
    ENTERED_NS = 7
    CHECKSUM = 8
    """Over words 0 to 7, so that a late writer of an older record cannot vouch for a newer body."""
    COMPLETION = 9
    """Not in the checksum. Ended: time << 3 | source << 1 | failed; else IN_FLIGHT | seq << 3 | source << 1.

    It changes only by compare-and-set from the value that carries the record's own number, so a completion
    that arrives after the slot was reused changes nothing.
    """

    ARRIVAL = 10
    """When the device came to it. Not in the checksum; 0 when not watched, IN_FLIGHT | seq << 3 until it has
    come, then time << 3. It changes as COMPLETION does."""
    HEAD = 11
    """When it became the oldest of its group that the device has not finished; 0 while it is not."""


IN_FLIGHT = 1 << 63
TIME_SHIFT = 3

FLAG_ASYNC = 1
FLAG_COALESCED = 2
FLAG_FAILED = 4
"""The operation raised, at once or later; its finished_ns is when that was known."""
FLAG_BACKEND_SEQ = 8
"""GROUP_SEQ is the backend's own count (a sampling recorder cannot count); gloo's has sends and recvs too."""


class GroupWord(IntEnum):
    """Word indexes inside a group slot. KEY is written last."""

    KEY = 0
    SIZE = 1
    """size | this worker's rank within the group << 32"""
    ENTERED = 2
    """Newest GROUP_SEQ entered; sends and recvs are not counted."""
    FINISHED = 3
    """Number of operations of the group seen to finish, well or not; sends and recvs are not counted."""
    NAME_LENGTH = 4
    """length | timeout of the backend in ms << 16 (0: not known)"""
    NAME = 5
    """First of 11 words of UTF-8 name bytes."""


TIMEOUT_SHIFT = 16
GROUP_NAME_BYTES = (GROUP_WORDS - GroupWord.NAME) * 8


class StepWord(IntEnum):
    """Word indexes inside a step record."""

    SEQ = 0
    """Step count of the anchor optimizer, from 1."""
    ENDED_NS = 1
    STEP_NS = 2
    DATA_WAIT_NS = 3
    COLLECTIVES = 4
    """Collectives entered during the step."""
    CHECKSUM = 7
    """Over words 1 to 6, computed as that of a blob: a worker writes one per step, and in Python."""


_STEP_CHECKSUM = int(StepWord.CHECKSUM)
_STEP_BODY = struct.Struct("<4Q16x")


def checksum(words: Sequence[int]) -> int:
    """A cheap mix of 64-bit words; the native recorder computes the same. Never 0."""
    h = 0x9E3779B97F4A7C15
    for w in words:
        h = ((h ^ w) * 0xFF51AFD7ED558CCD) & MASK
        h ^= h >> 32
    return h or 1


def group_key(name: str) -> int:
    """FNV-1a of a group's name; never 0, because 0 marks an empty slot."""
    h = 0xCBF29CE484222325
    for b in name.encode():
        h = ((h ^ b) * 0x100000001B3) & MASK
    return h or 1


class CollectiveRecord(NamedTuple):
    """One collective record, unpacked."""

    seq: int
    op: int
    group: int
    group_seq: int
    bytes: int
    dtype: int
    source: int
    flags: int
    group_size: int
    peer: int | None
    entered_ns: int
    finished_ns: int
    reduction: int = 0
    arrived_ns: int = 0
    """When the device came to it; 0 when it has not, or nobody watched."""
    approaching: bool = False
    """It was given to a device that is known not to have come to it."""
    head_ns: int = 0
    """When it became the oldest of its group that the device has not finished; 0 while it is not."""


class DeviceStep(NamedTuple):
    """One step on the device: from its first collective to the first one of the step after it."""

    seq: int
    """Number of the step, from 1, as in a step record."""
    ended_ns: int
    step_ns: int


class DeviceWait(NamedTuple):
    """What a step on the device waited, of a host that may be any number of steps ahead."""

    step: int
    wait_ns: int
    lead_ns: int
    """How long its last collective was enqueued before the device came to it."""


class Step(NamedTuple):
    """One step record, unpacked."""

    seq: int
    ended_ns: int
    step_ns: int
    data_wait_ns: int
    collectives: int


FENCE = Ring(MAILBOX_AT + 128, 1, 2)
"""Self-fencing (agent/processes/fencing.py): after how long without the control plane a worker ends, and
until when on CLOCK_BOOTTIME; both 0 for workers without it. Written by the agent."""


STORE_SECRET = Blob(MAILBOX_AT + 256, 256 - 24)
"""What proves to the other ranks of the generation that a value in the job's store is this rank's
(wire/store_values.py). Written before the worker starts; empty for a job without one."""


class Hash(NamedTuple):
    """One hash of a part of the parameters, unpacked."""

    step: int
    part: int
    """Which part of which table of parameters: equal on ranks that hold the same."""
    hash: int


class Group(NamedTuple):
    """One process group as the recorder knows it."""

    key: int
    name: str
    size: int
    entered: int
    finished: int
    rank: int
    """This worker's rank within the group."""
    timeout_ms: int = 0
    """After which its backend gives up by itself; 0: not known."""


class View:
    """Reads and writes a black box in a buffer. Cheap to make; holds no resources."""

    def __init__(self, buffer: memoryview) -> None:
        if len(buffer) < SIZE:
            raise ValueError(f"a black box has {SIZE} bytes, this buffer {len(buffer)}")
        self.raw = buffer
        self.words = buffer.cast("Q")

    # -- words ----------------------------------------------------------------------------------
    def header(self, index: Header) -> int:
        return self.words[HEADER_AT // 8 + index]

    def set_header(self, index: Header, value: int) -> None:
        self.words[HEADER_AT // 8 + index] = value

    def progress(self, index: Progress) -> int:
        return self.words[PROGRESS_AT // 8 + index]

    def set_progress(self, index: Progress, value: int) -> None:
        self.words[PROGRESS_AT // 8 + index] = value

    def is_valid(self) -> bool:
        """Whether this is a black box of the layout this code knows."""
        return (
            self.header(Header.MAGIC) == MAGIC
            and self.header(Header.LAYOUT) == LAYOUT_VERSION
            and self.header(Header.SIZE) == SIZE
        )

    # -- blobs ----------------------------------------------------------------------------------
    def write_blob(self, blob: Blob, data: bytes) -> None:
        """Replace a blob. The caller must cut a text that is too long."""
        if len(data) > blob.capacity:
            raise ValueError(f"{len(data)} bytes do not fit into a blob of {blob.capacity}")
        word = blob.at // 8
        version = self.words[word] | 1
        self.words[word] = version
        start = blob.at + 24
        self.raw[start : start + len(data)] = data
        self.words[word + 1] = len(data)
        self.words[word + 2] = _text_checksum(data)
        self.words[word] = (version + 1) & MASK

    def read_blob(self, blob: Blob) -> bytes | None:
        """The blob's bytes, b"" when never written, None when torn or damaged (try again later)."""
        word = blob.at // 8
        for _ in range(8):
            before = self.words[word]
            if before == 0:
                return b""
            length = self.words[word + 1]
            if before & 1 or length > blob.capacity:
                continue
            data = bytes(self.raw[blob.at + 24 : blob.at + 24 + length])
            good = self.words[word + 2] == _text_checksum(data)
            if good and self.words[word] == before:
                return data
        return None

    def blob_version(self, blob: Blob) -> int:
        """Changes whenever the blob does; cheap to poll."""
        return self.words[blob.at // 8]

    # -- rings ----------------------------------------------------------------------------------
    def write_step(self, seq: int, ended_ns: int, step_ns: int, data_wait_ns: int, collectives: int) -> None:
        at = STEPS_AT // 8 + (seq - 1) % STEP_SLOTS * STEP_WORDS
        words = self.words
        body = _STEP_BODY.pack(ended_ns, step_ns, data_wait_ns, collectives)
        words[at] = 0
        start = at * 8 + 8
        self.raw[start : start + 48] = body
        words[at + _STEP_CHECKSUM] = _text_checksum(body)
        words[at] = seq

    def read_step(self, seq: int) -> Step | None:
        """The record of step `seq`, or None when it is overwritten, unwritten or torn."""
        at = STEPS_AT // 8 + (seq - 1) % STEP_SLOTS * STEP_WORDS
        for _ in range(4):
            w = self.words[at : at + STEP_WORDS].tolist()
            body = _STEP_BODY.pack(*w[1:5])
            if w[0] == seq and self.words[at] == seq and w[_STEP_CHECKSUM] == _text_checksum(body):
                return Step(seq, w[1], w[2], w[3], w[4])
        return None

    def steps(self, last: int = STEP_SLOTS) -> Iterator[Step]:
        """The newest step records, oldest first; torn ones are left out."""
        newest = self.progress(Progress.STEPS)
        for seq in range(max(1, newest - min(last, STEP_SLOTS) + 1), newest + 1):
            step = self.read_step(seq)
            if step is not None:
                yield step

    def read_collective(self, seq: int) -> CollectiveRecord | None:
        """The record number `seq`, or None when it is overwritten, unwritten or torn."""
        at = COLLECTIVES_AT // 8 + (seq - 1) % COLLECTIVE_SLOTS * COLLECTIVE_WORDS
        for _ in range(4):
            w = self.words[at : at + COLLECTIVE_WORDS].tolist()
            if w[0] == seq and self.words[at] == seq and w[CollectiveWord.CHECKSUM] == checksum(w[:8]):
                return _collective(w)
        return None

    def collectives(self, last: int = 32) -> Iterator[CollectiveRecord]:
        """The newest collective records, oldest first; torn ones are left out."""
        newest = self.progress(Progress.COLLECTIVES_ENTERED)
        for seq in range(max(1, newest - min(last, COLLECTIVE_SLOTS) + 1), newest + 1):
            record = self.read_collective(seq)
            if record is not None:
                yield record

    def read_device_step(self, seq: int) -> DeviceStep | None:
        """Step `seq` on the device, or None when it was not timed, is not over there, or is overwritten."""
        at = DEVICE_STEPS_AT // 8 + (seq - 1) % DEVICE_STEP_SLOTS * DEVICE_STEP_WORDS
        w = self.words[at : at + DEVICE_STEP_WORDS].tolist()
        return DeviceStep(*w[:3]) if w[0] == seq and w[3] == checksum(w[:3]) else None

    def newest_device_step(self) -> int:
        """The newest step that is over on the device and was timed there; 0: none."""
        at = DEVICE_STEPS_AT // 8
        numbers = self.words[at : at + DEVICE_STEP_SLOTS * DEVICE_STEP_WORDS : DEVICE_STEP_WORDS]
        return max(numbers.tolist())

    def read_device_wait(self, step: int) -> DeviceWait | None:
        """What the device waited in a step, or None when that is not known (any more)."""
        at = COLLECTIVES_AT // 8 + (step - 1) % COLLECTIVE_SLOTS * COLLECTIVE_WORDS + DEVICE_WAITS_WORD
        w = self.words[at : at + 4].tolist()
        return DeviceWait(*w[:3]) if w[0] == step and w[3] == checksum(w[:3]) else None

    def device_heads(self) -> list[CollectiveRecord]:
        """The oldest unfinished collectives on the device, if its host is far ahead; no torn ones."""
        found = []
        for slot in range(DEVICE_HEADS):
            at = DEVICE_HEADS_AT // 8 + slot * DEVICE_HEAD_WORDS
            w = self.words[at : at + DEVICE_HEAD_WORDS].tolist()
            if w[0] and self.words[at] == w[0] and w[CollectiveWord.CHECKSUM] == checksum(w[:8]):
                found.append(_collective(w))
        return sorted(found)

    def write_hash(self, number: int, entry: Hash) -> None:
        """Record number `number` (from 0) of this incarnation."""
        at = HASHES.at // 8 + number % HASHES.slots * HASHES.words
        self.words[at] = 0
        self.words[at + 1], self.words[at + 2] = entry.part, entry.hash
        self.words[at + 3] = checksum(entry)
        self.words[at] = entry.step

    def set_fence(self, fence_ns: int, until_ns: int) -> None:
        """The deadline first: readers ignore it as long as there is no limit."""
        at = FENCE.at // 8
        self.words[at + 1] = until_ns
        self.words[at] = fence_ns

    def fence(self) -> tuple[int, int]:
        """The limit and the deadline; (0, 0) for a worker that has none."""
        at = FENCE.at // 8
        return fence_words(self.words[at], self.words[at + 1])

    def hashes(self) -> list[Hash]:
        """Those kept, by step; torn ones are left out."""
        found = []
        for slot in range(HASHES.slots):
            at = HASHES.at // 8 + slot * HASHES.words
            w = self.words[at : at + HASHES.words].tolist()
            if w[0] and w[3] == checksum(w[:3]):
                found.append(Hash(*w[:3]))
        return sorted(found)

    def groups(self) -> dict[int, Group]:
        """The process groups seen so far, by key."""
        found: dict[int, Group] = {}
        for slot in range(GROUP_SLOTS):
            at = GROUPS_AT // 8 + slot * GROUP_WORDS
            key = self.words[at]
            if key == 0:
                continue
            packed = self.words[at + GroupWord.NAME_LENGTH]
            length = min(packed & ((1 << TIMEOUT_SHIFT) - 1), GROUP_NAME_BYTES)
            start = (at + GroupWord.NAME) * 8
            name = bytes(self.raw[start : start + length]).decode("utf-8", "replace")
            found[key] = Group(
                key,
                name,
                self.words[at + GroupWord.SIZE] & 0xFFFFFFFF,
                self.words[at + GroupWord.ENTERED],
                self.words[at + GroupWord.FINISHED],
                self.words[at + GroupWord.SIZE] >> 32,
                packed >> TIMEOUT_SHIFT,
            )
        return found


def _collective(w: Sequence[int]) -> CollectiveRecord:
    packed = w[CollectiveWord.PACKED]
    peer = w[CollectiveWord.PEER]
    completion = w[CollectiveWord.COMPLETION]
    arrival = w[CollectiveWord.ARRIVAL]
    failed = FLAG_FAILED if completion & 1 else 0
    return CollectiveRecord(
        seq=w[CollectiveWord.SEQ],
        op=w[CollectiveWord.OP],
        group=w[CollectiveWord.GROUP],
        group_seq=w[CollectiveWord.GROUP_SEQ],
        bytes=w[CollectiveWord.BYTES],
        dtype=packed & 0xFF,
        source=completion >> 1 & 3,
        flags=packed >> 16 & 0xFFFF | failed,
        group_size=packed >> 32,
        peer=None if peer == NO_PEER else peer,
        entered_ns=w[CollectiveWord.ENTERED_NS],
        finished_ns=0 if completion & IN_FLIGHT else completion >> TIME_SHIFT,
        reduction=packed >> REDUCTION_SHIFT & 0xFF,
        arrived_ns=0 if arrival & IN_FLIGHT else arrival >> TIME_SHIFT,
        approaching=bool(arrival & IN_FLIGHT),
        head_ns=w[CollectiveWord.HEAD],
    )


def fence_words(limit_ns: int, until_ns: int) -> tuple[int, int]:
    """A limit counts only with a deadline, which is always written first: alone it is a bad byte."""
    return (limit_ns, until_ns) if limit_ns and until_ns else (0, 0)


def _text_checksum(data: bytes) -> int:
    return zlib.crc32(data) | len(data) << 32
