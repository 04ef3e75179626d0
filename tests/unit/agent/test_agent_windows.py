"""What an agent makes of a black box: steps with what they waited and how many collectives were made."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from torchloom.agent.observe import another_program, kernel
from torchloom.agent.observe.boxes import ReadableBox
from torchloom.agent.observe.collectives import last_collectives
from torchloom.agent.observe.evidence import Samples
from torchloom.agent.observe.windows import Windows
from torchloom.model.windows import RankWindow
from torchloom.model.worker import WorkerRef
from torchloom.wire import blackbox
from torchloom.wire.blackbox import OPS, CollectiveWord, GroupWord, Header, Progress, View

STEP_NS = 50_000_000
REDUCE, SEND, RECV = OPS.index("allreduce_"), OPS.index("send"), OPS.index("recv_")


class Recording:
    """A black box that a rank writes step by step, and the agent that reads it."""

    def __init__(self, path: Path, pid: int = 0) -> None:
        view = View(memoryview(bytearray(blackbox.SIZE)))
        view.set_header(Header.MAGIC, blackbox.MAGIC)
        view.set_header(Header.LAYOUT, blackbox.LAYOUT_VERSION)
        view.set_header(Header.SIZE, blackbox.SIZE)
        path.write_bytes(bytes(view.raw))
        self.box = ReadableBox.open(path)
        self._records = self._steps = 0
        worker = SimpleNamespace(
            oom_kills=[],
            ref=WorkerRef("job", 0, 1, 1),
            box=self.box,
            pid=pid or os.getpid(),
            devices=(),
            began_ns=0,
            log=path.with_name("no.log"),
        )
        host: Any = SimpleNamespace(node="n", session="s", workers={}, running=lambda: [worker])
        self._windows = Windows(host, Samples(host))

    def group(self, slot: int, key: int, name: str, entered: int = 0) -> None:
        at = blackbox.GROUPS_AT // 8 + slot * blackbox.GROUP_WORDS
        words, text = self.box.view.words, name.encode()
        words[at + GroupWord.SIZE], words[at + GroupWord.NAME_LENGTH] = 2, len(text)
        start = (at + GroupWord.NAME) * 8
        self.box.view.raw[start : start + len(text)] = text
        words[at + GroupWord.ENTERED], words[at + GroupWord.KEY] = entered, key

    def step(self, *collectives: tuple[int, int, int, int]) -> None:
        """Of (operation, group, number, flags)."""
        begin = self._steps * STEP_NS
        for place, (op, group, number, flags) in enumerate(collectives, 1):
            self._records += 1
            slot = (self._records - 1) % blackbox.COLLECTIVE_SLOTS
            at = blackbox.COLLECTIVES_AT // 8 + slot * blackbox.COLLECTIVE_WORDS
            entered = begin + place * 1000
            peer = 1 if op in (SEND, RECV) else blackbox.NO_PEER
            body = [self._records, op, group, number, 4096, 7 | flags << 16 | 2 << 32, peer, entered]
            words = self.box.view.words
            words[at : at + 8] = memoryview(b"".join(w.to_bytes(8, "little") for w in body)).cast("Q")
            words[at + CollectiveWord.CHECKSUM] = blackbox.checksum(body)
            words[at + CollectiveWord.COMPLETION] = (entered + 500) << blackbox.TIME_SHIFT | 1 << 1
        self._steps += 1
        view = self.box.view
        view.set_progress(Progress.COLLECTIVES_ENTERED, self._records)
        view.set_progress(Progress.COLLECTIVES_FINISHED, self._records)
        view.write_step(self._steps, self._steps * STEP_NS, STEP_NS, 0, len(collectives))
        view.set_progress(Progress.STEPS, self._steps)

    def wait_in_last(self) -> None:
        """As if the last collective had not ended."""
        slot = (self._records - 1) % blackbox.COLLECTIVE_SLOTS
        at = blackbox.COLLECTIVES_AT // 8 + slot * blackbox.COLLECTIVE_WORDS
        self.box.view.words[at + CollectiveWord.COMPLETION] = 1 << 1
        self.box.view.set_progress(Progress.COLLECTIVES_FINISHED, self._records - 1)

    def glance(self) -> None:
        self._windows.glance()

    def look(self) -> RankWindow:
        return self._windows.take(time.monotonic_ns)[0].window


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[Recording]:
    made = Recording(tmp_path / "box")
    yield made
    made.box.close()


def test_a_step_tells_how_many_collectives_were_made_in_the_groups_it_used(recording: Recording) -> None:
    recording.group(0, 7, "default")
    recording.group(1, 9, "log")
    recording.step((REDUCE, 7, 1, 0), (REDUCE, 7, 2, blackbox.FLAG_ASYNC))
    recording.step((REDUCE, 7, 3, 0), (REDUCE, 9, 1, 0), (SEND, 7, 40, 0))
    recording.step()
    window = recording.look()
    assert [group.name for group in window.groups] == ["default", "log"]
    assert [(s.step, s.made) for s in window.steps] == [(1, ((0, 2),)), (2, ((0, 3), (1, 1))), (3, ())]
    recording.step((REDUCE, 9, 2, 0), (REDUCE, 7, 4, 0))
    assert [(s.step, s.made) for s in recording.look().steps] == [(4, ((0, 4), (1, 2)))]


def test_a_process_that_became_another_program_says_so_only_while_it_records_nothing(
    recording: Recording,
) -> None:
    """And only of the process that records itself: a shell that waits for it is no other program."""
    view = recording.box.view
    recording.step((REDUCE, 7, 1, 0))
    began = another_program.stack_start_of(os.getpid())
    for pid, stack, idle_s, became in (
        (os.getpid(), began, 10, False),
        (os.getpid(), began + 4096, 10, True),
        (os.getpid(), began + 4096, 0, False),
        (os.getpid() + 1, began + 4096, 10, False),
        (os.getpid(), 0, 10, False),
    ):
        view.set_header(Header.PID, pid)
        view.set_header(Header.STACK_START, stack)
        view.set_progress(Progress.LAST_ACTIVITY_NS, time.monotonic_ns() - idle_s * 10**9)
        assert bool(recording.look().process.became) is became


def test_an_exit_report_goes_back_beyond_what_a_host_launched_after_the_fault(recording: Recording) -> None:
    """A survivor's device ends what it stood in once its peer is gone, and its host launches some more."""
    recording.group(0, 7, "default")
    for number in range(1, 21):
        recording.step((REDUCE, 7, number, 0))
    assert {13, 17, 20} <= {c.group_seq for c in last_collectives(recording.box)}


def test_a_number_that_the_backend_counted_tells_nothing(recording: Recording) -> None:
    recording.group(0, 7, "default")
    recording.step((REDUCE, 7, 1, blackbox.FLAG_BACKEND_SEQ))
    (step,) = recording.look().steps
    assert step.made == () and step.wait_ns == 500


def test_of_very_many_groups_the_busiest_are_counted_and_always_the_same(recording: Recording) -> None:
    for number in (1, 2):
        for slot in range(12):
            ahead = number == 2 and 4 <= slot < 8  # as in the middle of a step
            recording.group(slot, slot + 1, f"g{slot}", entered=1000 if slot >= 8 else 5 + ahead)
        recording.step(*((REDUCE, slot + 1, number, 0) for slot in range(12)))
        (step,) = recording.look().steps
        assert step.made == tuple((place, number) for place in (0, 1, 2, 3, 8, 9, 10, 11))


def test_a_rank_that_stands_still_tells_how_far_it_is_with_each_peer(recording: Recording) -> None:
    """The times here are long past, so it stands still in every look."""
    recording.group(0, 7, "pp")
    assert (recording.look().counts, recording.look().counts_whole) == ((), True), "nothing was ever sent"
    for step in range(4):
        recording.step((SEND, 7, 2 * step + 1, 0), (SEND, 7, 2 * step + 2, 0), (RECV, 7, step + 1, 0))
    window = recording.look()
    assert [(c.group, c.peer, c.sent, c.received, c.usual) for c in window.counts] == [("pp", 1, 8, 4, None)]
    assert window.counts_whole
    for step in range(blackbox.COLLECTIVE_SLOTS):
        recording.step((REDUCE, 7, step + 1, 0))
    window = recording.look()
    assert (window.counts, window.counts_whole) == ((), False), "the ring has nothing of its peers any more"
    recording.step((SEND, 7, 9, 0))
    assert [(c.sent, c.received) for c in recording.look().counts] == [(9, None)]


def test_who_moves_does_not_tell_how_far_it_is_with_each_peer(recording: Recording) -> None:
    recording.group(0, 7, "pp")
    recording.step((SEND, 7, 1, 0))
    recording.box.view.set_progress(Progress.LAST_ACTIVITY_NS, time.monotonic_ns() + 10**12)
    assert (recording.look().counts, recording.look().counts_whole) == ((), False)


def test_a_rank_that_waits_for_a_while_shows_what_it_has_left(recording: Recording) -> None:
    recording.group(0, 7, "default")
    recording.step((REDUCE, 7, 1, 0), (REDUCE, 7, 2, 0))
    recording.wait_in_last()
    now = time.monotonic_ns()
    recording.box.view.set_progress(Progress.LAST_ACTIVITY_NS, now + 10**12)
    assert [c.group_seq for c in recording.look().collectives] == [2], "it has only just come"
    recording.box.view.set_progress(Progress.LAST_ACTIVITY_NS, now - 2 * 10**9)
    found = recording.look().collectives
    assert [(c.group_seq, c.under_way) for c in found] == [(2, True), (1, False)]


def on_device(recording: Recording, oldest: int, looked_ns: int) -> None:
    """As if all collectives from this one on were on a device that has not ended them."""
    view = recording.box.view
    newest = view.progress(Progress.COLLECTIVES_ENTERED)
    for seq in range(max(oldest, newest - blackbox.COLLECTIVE_SLOTS + 1), newest + 1):
        at = blackbox.COLLECTIVES_AT // 8 + (seq - 1) % blackbox.COLLECTIVE_SLOTS * blackbox.COLLECTIVE_WORDS
        pending = blackbox.IN_FLIGHT | seq << blackbox.TIME_SHIFT | blackbox.Source.DEVICE_EVENT << 1
        view.words[at + CollectiveWord.COMPLETION] = pending
    view.set_progress(Progress.COLLECTIVES_FINISHED, oldest - 1)
    view.set_progress(Progress.DEVICE_OLDEST, oldest)
    view.set_progress(Progress.DEVICE_LOOKED_NS, looked_ns)


def test_a_collective_that_the_recorder_has_not_yet_seen_as_the_oldest_was_not_the_oldest_for_long(
    recording: Recording,
) -> None:
    """Else it would seem to hang since it was enqueued, by a host that is seconds ahead."""
    recording.group(0, 7, "default")
    recording.step((REDUCE, 7, 1, 0), (REDUCE, 7, 2, 0), (REDUCE, 7, 3, 0))
    looked_ns = time.monotonic_ns()
    on_device(recording, 2, looked_ns)
    recording.box.view.set_progress(Progress.DEVICE_OLDEST, 1)  # as before this look of the recorder
    window = recording.look()
    assert [(c.group_seq, c.head_ns) for c in window.collectives[:2]] == [(2, looked_ns), (3, 0)]
    assert window.age_s(window.collectives[0]) < 5


def test_a_host_further_ahead_than_the_ring_is_long_has_a_position_and_steps(recording: Recording) -> None:
    view, words = recording.box.view, recording.box.view.words
    recording.group(0, 7, "default")
    for number in range(1, 1101):
        recording.step((REDUCE, 7, number, 0))
    on_device(recording, 12, time.monotonic_ns())
    assert recording.look().collectives == (), "the recorder has not told it yet"
    body = [12, REDUCE, 7, 12, 4096, 7 | 2 << 32, blackbox.NO_PEER, 1000]
    pending = blackbox.IN_FLIGHT | 12 << blackbox.TIME_SHIFT
    told = [*body, blackbox.checksum(body), pending | blackbox.Source.DEVICE_EVENT << 1, pending, 5000]
    for place, word in enumerate(told):
        words[blackbox.DEVICE_HEADS_AT // 8 + place] = word
    for step in (10, 11):
        for at, record in (
            (blackbox.DEVICE_STEPS_AT // 8 + (step - 1) * blackbox.DEVICE_STEP_WORDS, [step, 1, 80_000]),
            (
                blackbox.COLLECTIVES_AT // 8 + (step - 1) * blackbox.COLLECTIVE_WORDS + 12,
                [step, 30_000, 9_000],
            ),
        ):
            for place, word in enumerate([*record, blackbox.checksum(record)]):
                words[at + place] = word
    window = recording.look()
    (standing,) = window.collectives
    assert (standing.group_seq, standing.approaching, standing.head_ns, standing.under_way) == (
        12,
        True,
        5000,
        True,
    )
    assert [(s.step, s.step_ns, s.wait_ns, s.made, s.marked) for s in window.steps] == [
        (10, 80_000, 30_000, (), None),
        (11, 80_000, 30_000, (), None),
    ]
    assert window.accelerator is not None and window.accelerator.lead_ns == 9_000
    view.set_progress(Progress.DEVICE_OLDEST, 13)
    assert recording.look().collectives == (), "it has ended meanwhile"


def test_a_script_that_failed_while_a_thread_keeps_its_process_alive_says_so(recording: Recording) -> None:
    """Not if its process will end anyway, if it lost a peer, or if a thread trains on."""
    view, now_ns = recording.box.view, time.monotonic_ns()
    recording.step((REDUCE, 7, 1, 0))
    assert recording.look().process.script_failed == ""
    error = {"how": "exception", "code": 1, "exception": "KeyError", "message": "labels", "at_ns": now_ns}
    for more, active_ns, said in (
        ({}, now_ns + 10**9, "KeyError: labels"),
        ({}, now_ns + 3 * 10**9, ""),
        ({"certain": True}, now_ns, ""),
        ({"connection_lost": True}, now_ns, ""),
        ({"how": "exit", "code": 0, "exception": None}, now_ns, ""),
        ({"how": "exit", "code": 3, "exception": None}, now_ns, "exit code 3"),
    ):
        view.write_blob(blackbox.END, json.dumps(error | more).encode())
        view.set_progress(Progress.LAST_ACTIVITY_NS, active_ns)
        assert recording.look().process.script_failed == said, (more, said)


def test_what_is_stopped_and_continued_all_the_time_is_not_stopped(tmp_path: Path) -> None:
    """As cpulimit does: seen stopped in every look, and yet it runs in between."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    recording = Recording(tmp_path / "box", process.pid)

    def stop() -> int:
        os.kill(process.pid, signal.SIGSTOP)
        while kernel.state_of(process.pid) != "T":
            time.sleep(0.001)
        return kernel.counts(process.pid).cpu_ns  # type: ignore[union-attr]

    try:
        used_ns = stop()
        assert recording.look().process.state == "S", "once may be a snapshot"
        assert recording.look().process.state == "T"
        for _ in range(3):
            os.kill(process.pid, signal.SIGCONT)
            before_ns = used_ns
            while (used_ns := kernel.counts(process.pid).cpu_ns) == before_ns:  # type: ignore[union-attr]
                time.sleep(0.001)
            used_ns = stop()
            recording.glance()
            facts = recording.look().process
            assert facts.state == "S"
        assert facts.stops == 3, "what stops it is the reason if it is slow"
    finally:
        process.kill()
        process.wait()
        recording.box.close()
