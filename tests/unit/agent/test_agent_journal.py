"""What outlives an agent: epoch, ended incarnations, notes of processes; and one agent per home."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchloom.agent.journal import Journal, ProcessNote
from torchloom.agent.observe.boxes import file_name, parse_name
from torchloom.agent.processes.worker_environment import start_order, worker_env
from torchloom.errors import Conflict
from torchloom.home import Home
from torchloom.model.effects import Launch, StartWorkers
from torchloom.model.job import Program
from torchloom.model.node import RendezvousAddress
from torchloom.model.worker import WorkerRef

REF = WorkerRef("my-job", 3, 2, 17)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return Home(tmp_path / "home")


def test_a_journal_is_read_by_the_next_agent(home: Home) -> None:
    first = Journal(home)
    first.open()
    with pytest.raises(Conflict, match="another agent"):
        Journal(home).open()
    assert first.epoch() == 0
    first.keep_epoch(41)
    first.keep_ended(REF, "abc")
    note = ProcessNote("store", "my-job", 2, "f00", 77, 123, "key", host="127.0.0.1", port=4711)
    first.keep(note)
    first.close()

    second = Journal(home)
    second.open()
    assert second.epoch() == 41
    assert second.has_ended(REF, "abc")
    assert not second.has_ended(REF, "abd")  # another life of the same name
    assert not second.has_ended(WorkerRef("my-job", 3, 2, 18), "abc")
    assert second.notes() == [note]
    second.drop(note)
    assert second.notes() == []
    second.close()


def test_damaged_files_are_no_reason_to_fail(home: Home) -> None:
    journal = Journal(home)
    journal.open()
    directory = home.root / "agent"
    (directory / "epoch").write_text("many")
    (directory / "processes" / "store.x.g1.json").write_text('{"kind": "store"')
    (directory / "processes" / "store.y.g1.json").write_text('{"surprise": 1}')
    assert journal.epoch() == 0
    assert journal.notes() == []
    assert not list((directory / "processes").iterdir())
    journal.close()


def test_the_name_of_a_box_tells_whose_it_is() -> None:
    assert parse_name(Path(file_name(REF, "0a1b"))) == (REF, "0a1b")
    for other in (
        "x.box",
        "x.r1.g1.i1.box",
        "x.r-1.g1.i1.ab.box",
        "X.r1.g1.i1.ab.box",
        "x.r1.g1.i1.ab.box.new",
    ):
        assert parse_name(Path(other)) is None


MPS = {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/mps", "CUDA_MPS_LOG_DIRECTORY": "/tmp/mps-log"}


def test_a_workers_environment_is_torchruns_and_holds_no_secret_of_ours() -> None:
    effect = StartWorkers(
        id="e1-0", cause=1, reason="r", node="n", job="my-job", generation=2,
        program=Program("script", "t.py"), cwd="/", interpreter="", spawn="warm", preload=(),
        launches=(Launch(REF, 1),), world_size=4, local_world_size=2, group_rank=1, group_world_size=2,
        replicas=2, restart_count=5, max_restarts=9, store=RendezvousAddress("h", 4711),
    )  # fmt: skip
    given = {"PATH": "/bin", "LOOM_TOKEN": "t", "LOOM_NATS_PASSWORD": "p", "LOOM_HOME": "h", "RANK": "99"}
    given |= {"LOOM_STORE_SECRET": "5ec2e7", **MPS}
    env = worker_env(effect, effect.launches[0], given, "/dev/shm/box")
    box, log = Path("/dev/shm/box"), Path("/log")
    order = start_order(effect, effect.launches[0], given, box=box, box_fallback=box, log=log, cores=None)
    assert order.pop("store_secret") == "5ec2e7", "for the box alone"
    assert "5ec2e7" not in repr(order)
    assert env == {
        "PATH": "/bin", "LOOM_HOME": "h", **MPS,
        "RANK": "3", "LOCAL_RANK": "1", "GROUP_RANK": "1", "ROLE_RANK": "3", "ROLE_NAME": "default",
        "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2", "ROLE_WORLD_SIZE": "4",
        "MASTER_ADDR": "h", "MASTER_PORT": "4711", "OMP_NUM_THREADS": "1",
        "TORCHELASTIC_RESTART_COUNT": "5", "TORCHELASTIC_MAX_RESTARTS": "9", "TORCHELASTIC_RUN_ID": "my-job",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "JOB_ID": "my-job", "LOOM_JOB": "my-job", "LOOM_REPLICA": "my-job/1", "LOOM_GENERATION": "2",
        "LOOM_INCARNATION": "17", "LOOM_BOX": "/dev/shm/box",
    }  # fmt: skip
