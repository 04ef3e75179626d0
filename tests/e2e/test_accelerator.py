"""The simulated accelerator behaves like one: it computes like the CPU, and it runs behind its host.

Two real ranks, one start for all of it.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from forked import Forked
from stack import wait_until

from torchloom.chaos import accelerator
from torchloom.probe import native
from torchloom.wire.blackbox import DEVICE_ERROR, FLAG_FAILED, DeviceState, Progress, Source, View

PROGRAM = Path(__file__).parent / "accelerator" / "device.py"
CAPTURE_MODE = Path(__file__).parent / "accelerator" / "capture_mode.py"
ENDING = Path(__file__).parent / "accelerator" / "ending.py"
SYS_PAUSE = 34
pytestmark = pytest.mark.timeout(420)


@pytest.fixture(scope="module")
def told(ranks: Forked, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    made = accelerator.build()
    if made.library is None:
        pytest.skip(f"no simulated accelerator here: {made.detail or made.outcome.value}")
    started = ranks.start(
        PROGRAM, [["collectives,training,behind,values,faults"]] * 2, tmp_path_factory.mktemp("device")
    )
    return [json.loads(printed.splitlines()[-1]) for printed in started.printed()]


def test_torch_names_it(told: list[dict[str, Any]]) -> None:
    assert [rank["accelerator"] for rank in told] == ["loomsim", "loomsim"]


def test_collectives_give_what_gloo_gives(told: list[dict[str, Any]]) -> None:
    assert [rank["collectives"] for rank in told] == [{"same": True, "count": 8}] * 2


def test_training_ends_with_the_weights_of_the_cpu(told: list[dict[str, Any]]) -> None:
    assert all(rank["training"]["same"] for rank in told)
    assert told[0]["training"]["weights"] == told[1]["training"]["weights"]


def test_the_host_runs_ahead(told: list[dict[str, Any]]) -> None:
    for rank in told:
        behind = rank["behind"]
        assert behind["ahead"] == [False, False, False]
        assert behind["future"] and behind["pending"]
        assert behind["value"] == 16
        assert behind["over"] == [True, True, True]
        assert behind["busy"] >= 1


def test_the_probe_reads_numbers_from_any_device_and_waits_for_none(told: list[dict[str, Any]]) -> None:
    for rank in told:
        assert rank["values"] == {"device": "loomsim", "before": [False, 0], "after": [True, True]}


def test_faults_show(told: list[dict[str, Any]]) -> None:
    for rank in told:
        faults = rank["faults"]
        assert faults["failed"] and faults["stalled"] and faults["went on"]
        assert "device lost" in faults["lost"]


RECORDED = Path(__file__).parent / "accelerator" / "recorded.py"
PROGRAMS = (
    "behind,waits,holds,unawaited,failure,results,training,pairs,batches,barrier,rests,forks,capture,many,"
    "deep,budget,gone"
)


@pytest.fixture(scope="module")
def seen(ranks: Forked, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the recorder wrote of the device, by program."""
    for made in (accelerator.build(), native.build()):
        if made.library is None:
            pytest.skip(f"nothing to record with or on: {made.detail or made.outcome.value}")
    directory = tmp_path_factory.mktemp("recorded")
    started = ranks.start(RECORDED, [[PROGRAMS, str(directory)]] * 2, directory)
    return [json.loads(printed.splitlines()[-1]) for printed in started.printed()]


def test_a_collective_ends_when_its_device_has_done_it(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        behind = rank["behind"]
        assert behind["sources"] == [Source.DEVICE_EVENT]
        assert behind["standing"] == [[0, 0, True]] * 6, "not arrived, not finished, and known to be so"
        assert behind["in order"]
        assert behind["oldest"] == 0


def test_the_device_that_comes_late_does_not_wait(seen: list[dict[str, Any]]) -> None:
    """However its end is awaited: at once, later, or through its future as DDP does."""
    for name in ("sync", "async", "future"):
        early, late = (rank["waits"][name] for rank in seen)
        assert early > 0.8 and late < early / 3, name


def test_nothing_is_held_longer_than_its_user_holds_it(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        holds = rank["holds"]
        assert holds["alive"] == holds["dead"] == [True] * 5
        assert holds["standing"] == [[0, True]] * 6, (
            "one that was dropped and never awaited is not over before its device comes to it"
        )
        assert holds["sources"] == [Source.DEVICE_EVENT] * 5


def test_steps_are_timed_where_nobody_awaits_their_works(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        assert all(took > 0.9 for took in rank["unawaited"]["steps"]), "as long as the kernel at least"


def test_a_work_that_failed_is_recorded_as_failed(seen: list[dict[str, Any]]) -> None:
    assert [rank["failure"]["flags"] for rank in seen] == [[FLAG_FAILED], [FLAG_FAILED]]
    assert all("remote error in a collective" in rank["failure"]["error"] for rank in seen)


def test_works_that_were_dropped_end_when_they_end_and_fail_if_they_fail(seen: list[dict[str, Any]]) -> None:
    """Of those that were looked past, too: the error is that of the first of three."""
    for rank in seen:
        assert rank["results"] == {
            "standing": [[0, Source.DEVICE_EVENT]] * 3,
            "over": [0] * 3,
            "failed": [FLAG_FAILED, 0, 0],
            "error": "the backend reports an error",
        }


def test_steps_and_waits_of_training_are_the_devices(seen: list[dict[str, Any]]) -> None:
    early, late = (rank["training"] for rank in seen)
    for rank in (early, late):
        assert rank["source"] == [Source.DEVICE_EVENT]
        assert sorted(rank["steps"][1:-1])[4] > 0.9, "a step takes as long as the slow device needs"
    assert early["waits"] > 0.8 and late["waits"] < early["waits"] / 3
    assert early["equal"] and late["equal"], "the recorder's own sum is that of the records"


def test_sends_and_receives_end(seen: list[dict[str, Any]]) -> None:
    for number, rank in enumerate(seen):
        assert rank["pairs"] == {"ops": ["send", "recv_"], "peers": [1 - number] * 2, "value": 4.0}


def test_operations_of_a_batch_end_with_it(seen: list[dict[str, Any]]) -> None:
    """As `batch_isend_irecv` and coalesced collectives on NCCL: no operation has a work of its own."""
    for rank in seen:
        found = rank["batches"]
        assert found["trips"] == 0
        assert sorted(found["pairs"]["ops"]) == ["recv_", "send"]
        assert found["sync"]["ops"] == found["async"]["ops"] == ["broadcast_"] * 2
        for name in ("pairs", "sync", "async"):
            batch = found[name]
            assert batch["sources"] == [Source.DEVICE_EVENT], name
            assert batch["standing"] == [[0, 0, True]] * 2, name
            assert batch["in order"], name


def test_a_barrier_is_watched_while_its_host_is_in_the_call(seen: list[dict[str, Any]]) -> None:
    """As NCCL's, which waits for the stream before the call returns."""
    for rank in seen:
        found = rank["barrier"]
        assert found["ops"] == ["barrier"] and found["hangs"]
        assert found["standing"] == [[0, 0, True]], "not arrived, not finished, and known to be so"
        assert set(found["sources"]) == {Source.DEVICE_EVENT}
        assert found["in order"] and not found["trips"]


def test_the_thread_rests_while_nothing_is_outstanding(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        found = rank["rests"]
        assert found["idle"] > 5 * found["busy"], "seconds between two looks"
        assert found["awake"] < found["idle"], "a new collective ends the rest"


def test_a_forked_child_has_no_such_thread(seen: list[dict[str, Any]]) -> None:
    assert [rank["forks"] for rank in seen] == [{"parent": 1, "child": 0}] * 2


def test_a_stream_capture_is_left_alone(seen: list[dict[str, Any]]) -> None:
    assert [rank["capture"] for rank in seen] == [{"invalidated": 0, "recorded": 0, "sources": [0]}] * 2


def test_two_thousand_collectives_are_accounted_for(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        many = rank["many"]
        assert 2000 <= many["events"] <= 4000
        assert many["backwards"] == many["trips"] == 0
        assert many["looking"] < 0.01, "0.08 % of a core, but caches are cold on a busy machine"


def test_a_host_further_ahead_than_the_ring_is_long_has_a_position_and_steps(
    seen: list[dict[str, Any]],
) -> None:
    for rank in seen:
        found = rank["deep"]
        assert found["overwritten"], "else this shows nothing"
        assert found["head"] == ["allreduce_", Source.DEVICE_EVENT, 0, True, True], found
        assert found["waits"] > 0.5, "nearly all, unless events took too much of the time"
        assert found["after"] == 0


def test_fewer_steps_are_timed_while_events_take_too_much_of_the_time(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        found = rank["budget"]
        assert found["before"] >= 1 and found["sampled"] >= 4, found
        assert found["after"] == 1, "and all of them again once they take little"
        assert found["sources"] == [Source.DEVICE_EVENT], "ends are always recorded"
        if found["stayed"]:  # else the rate changed while it was looked at
            assert all(is_timed <= expected for expected, is_timed in found["timed"]), found


def test_a_device_that_is_lost_is_told_in_its_own_words(seen: list[dict[str, Any]]) -> None:
    assert all("fell off the bus" in rank["gone"]["error"] for rank in seen)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the number of `pause` is x86-64's")
def test_a_device_that_is_unloaded_with_its_process_has_not_failed(tmp_path: Path) -> None:
    """Libraries of devices answer with errors while a process ends; the recorder asks them nothing then."""
    for made in (accelerator.build(), native.build()):
        if made.library is None:
            pytest.skip(f"nothing to record with or on: {made.detail or made.outcome.value}")
    box = tmp_path / "box"
    rank = subprocess.Popen([sys.executable, str(ENDING), str(box), str(tmp_path / "store")])
    try:
        wait_until(lambda: in_pause(rank.pid) or rank.poll() is not None, "it is in its last handler")
        assert rank.poll() is None
        view = View(memoryview(box.read_bytes()))

        def failed() -> bool:
            return View(memoryview(box.read_bytes())).progress(Progress.DEVICE_STATE) == DeviceState.FAILED

        wait_until(lambda: not looks_at_device(rank.pid) or failed(), "its thread has ended")
        assert not failed(), view.read_blob(DEVICE_ERROR)
    finally:
        rank.kill()
        rank.wait()


STAND_IN = """
static __thread int now;
int cudaThreadExchangeStreamCaptureMode(int *mode) {
  int before = now;
  now = *mode;
  *mode = before;
  return 0;
}
int mode(void) { return now; }
"""


def test_the_relaxed_capture_mode_of_cuda_is_found_at_run_time(tmp_path: Path) -> None:
    """In a libcudart that nobody is linked with and that is in no global scope."""
    made, compiler = native.build(), shutil.which("cc") or shutil.which("gcc")
    if made.library is None or compiler is None:
        pytest.skip("no recorder, or no C compiler for a stand-in")
    source, library = tmp_path / "cudart.c", tmp_path / "libcudart.so.12"
    source.write_text(STAND_IN)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    command = [sys.executable, str(CAPTURE_MODE), str(library)]
    said = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert said["before"] == [-1, -1, -1], "without the call such a device is not asked at all"
    assert said["after"] == [0, 2], "from global (0) to relaxed (2), where it stays"
    assert said["mode"] == 2 and said["other"] == -1


def in_pause(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/syscall").read_text().startswith(f"{SYS_PAUSE} ")
    except OSError:
        return False


def looks_at_device(pid: int) -> bool:
    names = [(task / "comm").read_text().strip() for task in Path(f"/proc/{pid}/task").iterdir()]
    return "loom-device" in names
