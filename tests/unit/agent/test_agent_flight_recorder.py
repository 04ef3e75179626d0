"""Workers are started so that torch's Flight Recorder can be asked; asking never waits long and never fails.

A thread stands in for NCCL's monitor, which needs a GPU: it makes the pipe, and writes a dump when somebody
has written to it, as ProcessGroupNCCL.hpp (DumpPipe) does.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from agent_story import REF, a_host, box

from torchloom.agent.host import Host
from torchloom.agent.observe import flight_recorder
from torchloom.bus.memory import MemoryBus, MemoryHub
from torchloom.home import Home
from torchloom.model.messages import AskDumps, RankDump

DUMP = Path(__file__).parents[2] / "data/flight/nccl-missing-rank/nccl_trace_rank_0.json"
LONG_S = 10.0
SHORT_S = 0.3


@pytest.fixture
def host(tmp_path: Path) -> Host:
    made = a_host(tmp_path, MemoryBus(MemoryHub()), box(tmp_path / "box"))
    flight_recorder.settings(made.home, REF, {})
    return made


def asked(host: Host, within_s: float = LONG_S) -> RankDump:
    return asyncio.run(flight_recorder.ask(host, AskDumps(refs=(REF,), within_s=within_s))).ranks[0]


@contextmanager
def monitor(host: Host, *pieces: bytes, file: str = "", listens: str = "") -> Iterator[None]:
    """Answers once, with one write for each piece. `file` and `listens` are what the user has set."""
    ours = flight_recorder.stem(host.home, REF)
    at = Path(f"{file or ours}{REF.rank}")
    name = f"{listens or ours}{REF.rank}.pipe"
    os.mkfifo(name)
    pipe = os.open(name, os.O_RDONLY | os.O_NONBLOCK)
    over = threading.Event()

    def run() -> None:
        while not over.wait(0.01):
            try:
                if not os.read(pipe, 128):
                    continue
            except BlockingIOError:
                continue
            with at.open("wb", buffering=0) as file:
                for piece in pieces:
                    file.write(piece)
                    over.wait(0.1)
            return

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        os.close(pipe)


def test_a_rank_that_listens_answers_with_what_its_ring_holds(host: Host) -> None:
    with monitor(host, DUMP.read_bytes()):
        found = asked(host)
    assert found.dump is not None and found.written_ns
    assert [(e.op, e.seq, e.state) for e in found.dump.entries] == [
        ("all_reduce", 411, "completed"),
        ("all_reduce", 412, "started"),
    ]


def test_a_dump_that_is_still_being_written_is_waited_for(host: Host) -> None:
    whole = DUMP.read_bytes()
    with monitor(host, whole[:100], whole[100:]):
        assert asked(host).dump is not None


def test_a_dump_of_before_is_no_answer(host: Host) -> None:
    Path(f"{flight_recorder.stem(host.home, REF)}{REF.rank}").write_bytes(DUMP.read_bytes())
    with monitor(host):
        found = asked(host, SHORT_S)
    assert found.dump is None


def test_what_cannot_be_asked_says_why_at_once(host: Host) -> None:
    at = f"{flight_recorder.stem(host.home, REF)}{REF.rank}"
    assert asked(host).why == "its backend listens to no pipe"
    os.mkfifo(f"{at}.pipe")
    assert asked(host).why == "its backend listens to no pipe"  # nobody reads from it
    os.unlink(f"{at}.pipe")
    Path(f"{at}.pipe").write_text("a file")
    assert asked(host).why == "its pipe is none"
    os.unlink(f"{at}.pipe")
    os.symlink("/dev/null", f"{at}.pipe")
    assert "cannot be opened" in asked(host).why


@pytest.mark.parametrize(
    "data", [b"", b"garbage", b"cos\nsystem\n(S'true'\ntR.", b'{"version": "2.10", "entries": 5}']
)
def test_a_hostile_dump_is_refused(host: Host, data: bytes) -> None:
    with monitor(host, data):
        found = asked(host, 1.0)
    assert found.dump is None and found.why


def test_a_dump_that_is_a_link_or_a_pipe_is_not_read(host: Host) -> None:
    at = f"{flight_recorder.stem(host.home, REF)}{REF.rank}"
    for make in (lambda: os.symlink(DUMP, at), lambda: os.mkfifo(at)):
        make()
        with pytest.raises(OSError if os.path.islink(at) else Exception):
            flight_recorder._read(at, 0)
        os.unlink(at)


def test_workers_get_a_place_for_it_and_what_the_user_set_stays(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    made = flight_recorder.settings(home, REF, {})
    place = flight_recorder.directory(home, REF.job)
    assert made["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] == made["TORCH_FR_DUMP_TEMP_FILE"]
    assert Path(made["TORCH_FR_DUMP_TEMP_FILE"]).parent == place and place.stat().st_mode & 0o777 == 0o700
    assert made["TORCH_FR_BUFFER_SIZE"] == "2000"
    for name, value in made.items():
        assert name not in flight_recorder.settings(home, REF, {name: value})
    assert "TORCH_FR_BUFFER_SIZE" not in flight_recorder.settings(
        home, REF, {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}
    )
    files = {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/data/dump_"}
    beside = flight_recorder.settings(home, REF, files)
    assert "TORCH_FR_DUMP_TEMP_FILE" not in beside and "TORCH_INCLUDE_STACK_TRACE" not in beside
    assert beside["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] == flight_recorder.stem(home, REF)


@pytest.mark.parametrize("which", ["file", "pipe", "both"])
def test_a_user_who_has_set_the_files_keeps_them_and_is_asked_there(
    host: Host, tmp_path: Path, which: str
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    env, told = dict[str, str](), dict[str, str]()
    if which != "pipe":
        env["TORCH_FR_DUMP_TEMP_FILE"] = told["file"] = str(theirs / "trace_")
    if which != "file":
        env["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] = told["listens"] = str(theirs / "ask_")
    made = flight_recorder.settings(host.home, REF, env)
    assert not env.keys() & made.keys() and made["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"
    with monitor(host, DUMP.read_bytes(), **told):
        found = asked(host)
    assert found.dump is not None and found.dump.entries, found.why


def test_a_place_in_the_scripts_own_directory_is_found(host: Host) -> None:
    flight_recorder.settings(host.home, REF, {"TORCH_FR_DUMP_TEMP_FILE": "traces/rank_"})
    host.workers[REF].pid = os.getpid()
    file, pipe = flight_recorder.places(host.home, host.workers[REF])
    assert file == os.path.join(os.getcwd(), "traces/rank_0")
    assert pipe == f"{flight_recorder.stem(host.home, REF)}0.pipe"


def test_without_a_directory_there_is_no_pipe(tmp_path: Path) -> None:
    """A pipe that cannot be made would end NCCL's thread and with it the process."""
    home = Home(tmp_path / "home")
    home.jobs_dir.mkdir(parents=True)
    (home.jobs_dir / REF.job).write_text("in the way")
    assert flight_recorder.settings(home, REF, {}) == {"TORCH_FR_BUFFER_SIZE": "2000"}


def test_only_the_newest_dumps_of_a_job_are_kept(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    place = flight_recorder.directory(home, REF.job)
    for generation in (1, 2, 3):
        ref = type(REF)(REF.job, 0, generation, 1)
        flight_recorder.settings(home, ref, {})
        Path(f"{flight_recorder.stem(home, ref)}0").touch()
    assert sorted(file.name for file in place.iterdir()) == ["g2.rank_0", "g3.rank_0"]
