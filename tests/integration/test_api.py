"""The HTTP API on a real stack: who may speak, what it says, how it refuses, streams that resume."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from loom_home import LoomHome, wait_for

from torchloom.client import Client, Endpoint


@pytest.fixture(scope="module")
def loom() -> Iterator[LoomHome]:
    with tempfile.TemporaryDirectory(prefix="loom-api-") as root:
        made = LoomHome(Path(root) / "home", SECRET_OF_MINE="do-not-show-this")
        made.loom("up", "--port", "0")
        try:
            yield made
        finally:
            made.loom("down", "--stop-jobs")
        wait_for(lambda: not made.leftovers(), f"nothing left: {made.leftovers()}")


@pytest.fixture(scope="module")
def job(loom: LoomHome) -> str:
    return loom.sleeper("--nproc-per-node", "2", "--env", "SECRET_OF_MINE", name="api-sleeper")


def api(loom: LoomHome) -> Client:
    port = json.loads((loom.home.parts_dir / "plan.json").read_bytes())["port"]
    return Client(Endpoint(f"http://127.0.0.1:{port}", loom.home.token_file.read_text().strip()))


def shell(loom: LoomHome, name: str, text: str, *flags: str) -> str:
    words = ("submit", "--name", name, "--spawn", "cold", *flags, "--no-python", "sh", "-c", text)
    return loom.loom(*words).stdout.strip()


@pytest.mark.parametrize("prefix", ["", "/api/v1"])
def test_the_same_paths_with_and_without_prefix(loom: LoomHome, prefix: str) -> None:
    assert loom.request("GET", f"{prefix}/health", token="")[0] == 200
    assert loom.request("GET", f"{prefix}/jobs")[0] == 200
    assert loom.request("GET", f"{prefix}/nodes")[2][0]["state"] == "ready"


@pytest.mark.parametrize("path", ["/jobs", "/devices", "/nodes", "/incidents", "/jobs/x", "/openapi.json"])
@pytest.mark.parametrize("token", ["", "wrong", "\u00e9"])
def test_everything_but_health_needs_the_token(loom: LoomHome, path: str, token: str) -> None:
    status, headers, body = loom.request("GET", path, token=token)
    assert status == 401 and headers["content-type"] == "application/problem+json"
    assert headers["www-authenticate"] == "Bearer" and body["status"] == 401


def test_a_foreign_host_header_is_refused(loom: LoomHome) -> None:
    assert loom.request("GET", "/health", Host="evil.example:8700")[0] == 403
    assert loom.request("GET", "/health", Host="localhost")[0] == 200
    assert loom.request("GET", "/health", Host="[::1]:8700")[0] == 200


def test_a_large_body_is_refused(loom: LoomHome) -> None:
    big = json.dumps({"program": {"target": "x" * 2_000_000}, "cwd": "/"}).encode()
    assert loom.request("POST", "/jobs", big, Content_Type="application/json")[0] == 413


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"world_size": 0}, "world_size"),
        ({"world_size": "4"}, "world_size"),
        ({"script": "a.py", "module": "b"}, "together"),
        ({"script": "a.py"}, "relative"),
        ({"program": {"target": "a.py"}, "cwd": "/", "workers_per_node": 0}, "workers_per_node"),
        ({"program": {"target": "a.py"}, "cwd": "/", "workers_per_node": 20_000}, "workers_per_node"),
        ({"program": {"target": "a.py"}, "cwd": "/", "name": "Not/Valid"}, "name"),
        ({"program": {"target": "a.py"}, "cwd": "/", "surprise": 1}, "surprise"),
        ({"program": {"target": "a.py"}, "cwd": "/", "env": {"A=B": "secret-value"}}, "environment"),
    ],
)
def test_a_bad_job_is_one_sentence(loom: LoomHome, body: dict[str, object], says: str) -> None:
    data = json.dumps(body).encode()
    status, headers, problem = loom.request("POST", "/jobs", data, Content_Type="application/json")
    assert status == 422 and headers["content-type"] == "application/problem+json"
    assert says in problem["detail"] and "secret-value" not in problem["detail"]


@pytest.mark.parametrize(
    "path", ["/jobs/nobody", "/jobs/nobody/logs", "/jobs/nobody/telemetry", "/incidents/i"]
)
def test_what_is_not_there_is_404(loom: LoomHome, path: str) -> None:
    status, _, problem = loom.request("GET", path)
    assert status == 404 and problem["type"] == "urn:torchloom:not-found"


def test_ids_cannot_leave_their_place(loom: LoomHome) -> None:
    assert loom.request("GET", "/jobs/..%2f..%2fetc")[0] in (404, 422)
    assert loom.request("GET", "/jobs/UPPER")[0] == 422


def test_a_job_with_its_workers(loom: LoomHome, job: str) -> None:
    view = wait_for(
        lambda: (v := loom.request("GET", f"/jobs/{job}")[2])["running_workers"] == 2 and v, "two workers"
    )
    assert view["state"] in ("starting", "running") and view["generation"] == 1
    assert [w["rank"] for w in view["workers"]] == [0, 1]
    assert all(w["pid"] > 0 and w["node"] for w in view["workers"])
    assert "SECRET_OF_MINE" in view["env_names"]
    everything = json.dumps(
        [loom.request("GET", p)[2] for p in (f"/jobs/{job}", "/jobs", "/devices", "/nodes")]
    )
    assert "do-not-show-this" not in everything
    assert "LOOM_TOKEN" not in view["env_names"]


def test_devices_in_both_directions(loom: LoomHome, job: str) -> None:
    found = wait_for(lambda: (m := loom.request("GET", "/devices")[2])["workers"] and m, "a map with workers")
    mine = [w for w in found["workers"] if w["job"] == job]
    assert [w["rank"] for w in mine] == [0, 1]
    for worker in mine:
        assert worker["devices"]
        for device in worker["devices"]:
            entry = next(d for d in found["devices"] if d["device"] == device)
            assert worker["worker"] in [user["worker"] for user in entry["workers"]]
            assert worker["replica"] in entry["replicas"]


def test_a_running_job_cannot_be_deleted_or_named_twice(loom: LoomHome, job: str) -> None:
    assert loom.request("DELETE", f"/jobs/{job}")[0] == 409
    assert loom.loom("delete", job, code=5).stderr.startswith("loom: ")
    again = loom.loom("submit", "--name", job, "--no-python", "sleep", "1", code=5)
    assert job in again.stderr


def test_waiting_for_a_change_returns_with_it(loom: LoomHome, job: str) -> None:
    seq = loom.request("GET", f"/jobs/{job}")[2]["seq"]
    other = shell(loom, "waker", "true")
    assert loom.request("GET", f"/jobs/{job}?after={seq}&wait_s=20")[2]["seq"] > seq
    wait_for(lambda: loom.request("GET", f"/jobs/{other}")[2]["ended"], "the other job ends")


def test_telemetry_answers_for_every_rank(loom: LoomHome, job: str) -> None:
    body = loom.request("GET", f"/jobs/{job}/telemetry")[2]
    assert [w["rank"] for w in body["workers"]] == [0, 1]
    assert loom.request("GET", f"/jobs/{job}/telemetry?rank=7")[0] == 422


def test_logs_of_one_rank_and_of_all(loom: LoomHome) -> None:
    job = shell(loom, "talker", "for i in 1 2 3; do echo line $i of $RANK; done", "--nproc-per-node", "2")
    wait_for(lambda: loom.request("GET", f"/jobs/{job}")[2]["ended"], "it ends")
    logs = loom.request("GET", f"/jobs/{job}/logs")[2]["logs"]
    assert [log["rank"] for log in logs] == [0, 1]
    assert "line 3 of 1" in logs[1]["text"] and "of 0" not in logs[1]["text"]
    one = loom.request("GET", f"/jobs/{job}/logs?rank=0&tail=1")[2]["logs"]
    assert len(one) == 1 and one[0]["text"].splitlines() == ["line 3 of 0"]
    shown = loom.loom("logs", job, "--rank", "1").stdout
    assert "[rank 1] line 1 of 1\n" in shown and "rank 0" not in shown


def test_a_stream_resumes_without_loss_or_repeat(loom: LoomHome) -> None:
    job = shell(
        loom, "counter", "for i in $(seq 1 200); do echo n $i; sleep 0.01; done", "--nproc-per-node", "2"
    )
    lines: dict[int, list[str]] = {0: [], 1: []}
    place, ended, cuts = "", False, 0
    while not ended:
        client = api(loom)
        for kind, id, body in client.stream(f"/jobs/{job}/logs/stream", place):
            place = id
            if kind == "end":
                ended = True
                break
            lines[body["rank"]] += body["text"].splitlines()
            if cuts < 5:
                cuts += 1
                break  # the connection is dropped in the middle, the next one goes on from `place`
        client.close()
    for rank in (0, 1):
        assert [x for x in lines[rank] if x.startswith("n ")] == [f"n {i}" for i in range(1, 201)]
    assert cuts == 5


def test_a_made_up_stream_id_is_refused(loom: LoomHome, job: str) -> None:
    assert loom.request("GET", f"/jobs/{job}/logs/stream", Last_Event_ID="1:2,evil")[0] == 422


def test_stop_ends_a_job_and_delete_forgets_it(loom: LoomHome) -> None:
    job = loom.sleeper(name="to-stop")
    loom.loom("stop", job, "--grace", "1")
    assert loom.json("status", job)["state"] == "stopped"
    assert "already ended" in loom.loom("stop", job).stdout
    loom.loom("delete", job)
    loom.loom("status", job, code=3)


def test_more_nodes_than_are_connected_is_said_at_once(loom: LoomHome) -> None:
    said = loom.loom("submit", "--nnodes", "2", "--no-python", "sleep", "1", code=2).stderr
    assert "the job needs 2 nodes, but only 1 are connected" in said
