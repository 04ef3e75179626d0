"""`loom sbatch` on a real Slurm of three nodes (slurm_cluster.py). Skipped where Slurm is not installed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import SlurmCluster, why_not
from stack import BIN, SCRIPTS, lines_of, wait_until

from torchloom.client import Client, Endpoint
from torchloom.errors import LoomError
from torchloom.home import Home

WHY_NOT = why_not()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=f"Slurm cannot be started here: {WHY_NOT}")


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmCluster]:
    with tempfile.TemporaryDirectory(prefix="loom-slurm-") as root:
        epilog = subprocess.run([str(BIN / "loom"), "sbatch", "--epilog"], capture_output=True, text=True)
        cluster = SlurmCluster(Path(root), epilog.stdout)
        cluster.env |= {"TMPDIR": root, "LOOM_SHARED": root, "LOOM_SLURM_EVERY_S": "1"}
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.close()


def plain_answers(url: str) -> bool:
    """Whether the server accepts a client that does not encrypt."""
    host, port = url.removeprefix("tls://").rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        said = connection.recv(65_536)
        assert said.startswith(b"INFO ")
        return b'"tls_required":true' not in said


def ask(home: Path, what: Any) -> Any:
    """An answer of the control service in the allocation; None while there is none."""
    try:
        with Client(Endpoint.of_home(Home(home))) as client:
            return what(client)
    except LoomError:
        return None


def left_by(slurm: SlurmCluster, job: str) -> list[Path]:
    """What agents of a job have in shared memory and where sockets are, of all its runs."""
    homes = [Home(path) for path in slurm.root.glob(f"torchloom-{job}.*-n?")]
    with_sockets = [path for home in homes for path in (home.boxes, home.sockets)]
    return [path for path in with_sockets if path.exists()]


def submit(slurm: SlurmCluster, name: str, *flags: str, every: int = 1_000_000) -> str:
    """A job that saves every so many steps, by default only when it is asked to; its id."""
    notes, store = slurm.root / f"notes-{name}", slurm.root / f"store-{name}"
    arguments = [str(SCRIPTS / "saves.py"), str(notes), str(store), "--every", str(every)]
    flags = (*flags, "--nproc-per-node", "1", "--output", str(slurm.root / f"{name}.txt"), "--name", name)
    done = subprocess.run(
        [str(BIN / "loom"), "sbatch", *flags, *arguments],
        env=os.environ | {"CHECKPOINT_DIR": str(store)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return slurm.run("sbatch", given=done.stdout).split()[-1]


def saved_steps(store: Path) -> list[int]:
    return sorted(int(path.name.split("-")[1].split(".")[0]) for path in store.rglob("step-*"))


def trains_again(slurm: SlurmCluster, job: str, name: str, begun: int) -> bool:
    if slurm.state(job) == "PENDING":  # Slurm lets a requeued job wait for two minutes
        slurm.run("scontrol", "release", job, check=False)
        slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now", check=False)
    return len(lines_of(slurm.root / f"notes-{name}")) > begun + 10


def said(slurm: SlurmCluster, name: str) -> str:
    out = slurm.root / f"{name}.txt"
    return out.read_text()[-4000:] if out.exists() else ""


@pytest.mark.long
def test_a_lost_node_is_replaced_by_a_spare_one_without_a_new_allocation(slurm: SlurmCluster) -> None:
    """slurmd, agent and worker of a node end at once. Its agent is silent, Slurm finds the node DOWN, and the
    job resumes from its checkpoint on the spare node, in the same run of the batch script."""
    name, notes = "spare", slurm.root / "notes-spare"
    job = submit(slurm, name, "--nnodes", "2", "--standby", "1", every=5)
    home = slurm.root / f"torchloom-{job}.0"
    try:
        wait_until(lambda: len(lines_of(notes)) > 30, "both ranks train")
        found = wait_until(lambda: ask(home, lambda api: api.job(f"{name}-{job}")), "the job")
        lost, pid = found["workers"][1]["node"], found["workers"][1]["pid"]
        assert lost != "n0", "the batch script runs there"
        saved = saved_steps(slurm.root / f"store-{name}")
        slurm.lose(lost, pid)
        begun = len(lines_of(notes))
        wait_until(lambda: len(lines_of(notes)) > begun + 30, "it trains again")
        now = wait_until(lambda: ask(home, lambda api: api.job(f"{name}-{job}")), "the job")
        assert lost not in {worker["node"] for worker in now["workers"]}, said(slurm, name)
        assert now["generation"] == found["generation"] + 1, "once, and not before the node was given up"
        resumed = min(int(line.split()[2]) for line in lines_of(notes)[begun:])
        assert resumed > min(saved), f"from a checkpoint\n{said(slurm, name)}"
        shown = slurm.run("scontrol", "show", "job", job)
        assert "Restarts=0" in shown and "JobState=RUNNING" in shown, shown
        assert "is lost: silent, and DOWN" in (home / "logs/watch.log").read_text()
    except AssertionError as error:
        raise AssertionError(f"{error}\n--- output\n{said(slurm, name)}") from error
    finally:
        slurm.run("scancel", job, check=False)
        slurm.wait_state(job, "CANCELLED", "COMPLETED", "FAILED")
        slurm.find_again()


@pytest.mark.long
def test_without_spares_slurm_requeues_the_job_of_a_lost_node(slurm: SlurmCluster) -> None:
    name, notes = "unspared", slurm.root / "notes-unspared"
    job = submit(slurm, name, "--nnodes", "2", every=5)
    home = slurm.root / f"torchloom-{job}.0"
    try:
        wait_until(lambda: len(lines_of(notes)) > 30, "both ranks train")
        found = wait_until(lambda: ask(home, lambda api: api.job(f"{name}-{job}")), "the job")
        slurm.lose(found["workers"][1]["node"], found["workers"][1]["pid"])
        wait_until(lambda: "Restarts=1" in slurm.run("scontrol", "show", "job", job), "it is requeued")
        saved, begun = saved_steps(slurm.root / f"store-{name}"), len(lines_of(notes))
        wait_until(lambda: trains_again(slurm, job, name, begun), "it trains again")
        resumed = min(int(line.split()[2]) for line in lines_of(notes)[begun:])
        assert resumed == saved[-1] + 1, said(slurm, name)
    except AssertionError as error:
        raise AssertionError(f"{error}\n--- output\n{said(slurm, name)}") from error
    finally:
        slurm.run("scancel", job, check=False)
        slurm.wait_state(job, "CANCELLED", "COMPLETED", "FAILED")
        slurm.find_again()


@pytest.mark.long
def test_a_preempted_job_is_saved_waits_and_resumes(slurm: SlurmCluster) -> None:
    """An urgent job takes all nodes: within the grace period the job is saved, and resumes after it. Slurm
    sends our own signal (preempt_send_user_signal); by default it would kill the workers with SIGTERM."""
    job = submit(slurm, "preempted", "--nnodes", "2")
    notes = slurm.root / "notes-preempted"
    try:
        wait_until(lambda: len(lines_of(notes)) > 20, "both ranks train")
        urgent = slurm.run("sbatch", "-p", "urgent", "-N3", "--exclusive", "--wrap", "sleep 1").split()[-1]
        slurm.wait_state(urgent, "COMPLETED")
        assert "Restarts=1" in slurm.run("scontrol", "show", "job", job), said(slurm, "preempted")
        saved = saved_steps(slurm.root / "store-preempted")
        assert saved, said(slurm, "preempted")
        begun = len(lines_of(notes))
        wait_until(lambda: trains_again(slurm, job, "preempted", begun), "it trains again")
        first = min(int(line.split()[2]) for line in lines_of(notes)[begun:])
        assert first == saved[-1] + 1, said(slurm, "preempted")
    finally:
        slurm.run("scancel", job, check=False)
        slurm.wait_state(job, "CANCELLED", "COMPLETED", "FAILED")


def test_a_job_is_saved_and_requeued_and_resumes_on_its_nodes(slurm: SlurmCluster) -> None:
    """One allocation of two nodes: nodes have Slurm's names, a drained one is reported, and what Slurm sends
    before the time limit saves the job, which continues from there after it was requeued."""
    notes, store, out = (slurm.root / name for name in ("notes-held", "store-held", "held.txt"))
    job = submit(slurm, "held", "--nnodes", "2")
    home = slurm.root / f"torchloom-{job}.0"
    try:
        wait_until(lambda: len(lines_of(notes)) > 20, "both ranks train")
        nodes = wait_until(lambda: ask(home, lambda api: api.nodes()), "the nodes")
        assert sorted(node["id"] for node in nodes) == ["n0", "n1"]
        workers = wait_until(lambda: ask(home, lambda api: api.job(f"held-{job}")), "the job")["workers"]
        assert [worker["node"] for worker in workers] == ["n0", "n1"]

        slurm.run("scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=fan broken")

        def drained() -> Any:
            found = (ask(home, lambda api: api.devices()) or {"devices": []})["devices"]
            return [one for one in found if one["node"] == "n1" and "fan broken" in one["health_why"]]

        wait_until(drained, "the drained node is reported")
        slurm.run("scontrol", "update", "NodeName=n1", "State=RESUME")

        slurm.run("scancel", "--batch", "--signal=USR1", job)
        wait_until(lambda: "Restarts=1" in slurm.run("scontrol", "show", "job", job), "it is requeued")
        saved = saved_steps(store)
        assert saved, out.read_text()
        begun = len(lines_of(notes))

        wait_until(lambda: trains_again(slurm, job, "held", begun), "it trains again")
        first = min(int(line.split()[2]) for line in lines_of(notes)[begun:])
        assert first == saved[-1] + 1, f"resumes after the step that was saved\n{out.read_text()[-3000:]}"
        bus = json.loads((slurm.root / f"slurm/{job}.1/allocation.json").read_bytes())["url"]
        assert bus.startswith("tls://") and not plain_answers(bus), "the bus of the allocation has TLS only"
        # Slurm kills everything on every node: nobody can tidy up but the epilog, or the next agent.
        slurm.run("scancel", job)
        slurm.wait_state(job, "CANCELLED")
        wait_until(lambda: not left_by(slurm, job), "nothing is left in shared memory")
        assert slurm.state(job) == "CANCELLED", "a job that a person cancelled does not come back"
    except AssertionError as error:
        raise AssertionError(f"{error}\n--- output\n{out.read_text() if out.exists() else ''}") from error
    finally:
        slurm.run("scancel", job, check=False)


def test_the_status_of_the_job_is_the_status_of_the_batch_script(slurm: SlurmCluster) -> None:
    """In a directory with a space and a quote in its name, with such arguments, too."""
    where = slurm.root / "it's here"
    where.mkdir()
    out, script = where / "failed it.txt", where / "fails.py"
    script.write_text("import os, sys\nprint(os.getcwd(), sys.argv[1:], flush=True)\nraise SystemExit(3)\n")
    flags = ["--max-restarts", "0", "--spawn", "cold", "--output", str(out), "--sbatch", "comment=two words"]
    given = ["--say", 'hello "you" $HOME', "it's"]
    done = subprocess.run(
        [str(BIN / "loom"), "sbatch", *flags, script.name, *given],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=where,
    )
    assert "CHECKPOINT_DIR is not set" in done.stderr
    job = slurm.run("sbatch", given=done.stdout).split()[-1]
    slurm.wait_state(job, "FAILED", "COMPLETED", "NODE_FAIL")
    said = slurm.run("scontrol", "show", "job", job)
    assert "JobState=FAILED" in said and "ExitCode=0:0" not in said, out.read_text()
    assert "Comment=two words" in said
    assert f"{where} {given}" in out.read_text()
    assert not list(slurm.root.glob(f"slurm/{job}.*")), "the agents' keys are gone"
