"""Jobs over HTTP: defaults, keys, pages, purge, forced deletion, errors as problems, metrics."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator
from pathlib import Path

import pytest
from api_server import ApiServer, api_server
from prometheus_client.parser import text_string_to_metric_families

from torchloom.model.events import FindingMade
from torchloom.model.findings import Finding
from torchloom.model.windows import RankWindow, RefWindow, StepTimes, WindowBatch
from torchloom.model.worker import WorkerRef
from torchloom.weaver.detection import loop
from torchloom.wire import codec, subjects

SECRETS = {"S3_SECRET_KEY": "hush-hush", "S3_ACCESS_KEY": "access", "SLEEP_SEC": "0.5", "USE_S3": "1"}
SETTINGS = {
    "MAX_RESTARTS": "3",
    "CHECKPOINT_DIR": "/ckpt",
    "CHECKPOINT_EVERY": "7",
    "HEARTBEAT_TIMEOUT": "2.5",
}


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    with api_server(
        nodes=2, slots=64, env=SECRETS | SETTINGS | {"WORLD_SIZE": "2", "JOB_ID": "named"}
    ) as made:
        yield made


def test_a_world_size_alone_runs_the_example(server: ApiServer) -> None:
    status, headers, made = server.request("POST", "/jobs", {"world_size": 4})
    assert status == 201 and made == {"job": "named", "created": True}
    assert headers["location"] == "/api/v1/jobs/named"
    view = server.request("GET", "/jobs/named")[2]
    assert view["program"] == "torchloom.examples.char_gpt" and view["world_size"] == 4
    assert server.request("POST", "/jobs", {})[2]["job"].startswith("torchloom-examples-char-gpt-")


def test_the_services_environment_gives_defaults_and_no_secret_is_told(server: ApiServer) -> None:
    job = server.submit(env={"SLEEP_SEC": "9", "MINE": "private"}, checkpoint={"every": 5})
    server.wait(lambda: any(job in agent.env for agent in server.agents))
    env = dict(next(agent.env[job] for agent in server.agents if job in agent.env))
    assert env.pop("LOOM_RUN") and len(env.pop("LOOM_STORE_SECRET")) == 64
    assert env == SECRETS | SETTINGS | {"SLEEP_SEC": "9", "MINE": "private", "CHECKPOINT_EVERY": "5"}
    view = server.request("GET", f"/jobs/{job}")[2]
    assert view["world_size"] == 2 and view["max_restarts"] == 3
    assert {"MINE", "S3_SECRET_KEY"} <= set(view["env_names"])
    everything = b"".join(record.data for record in server.hub.records)
    for value in (b"hush-hush", b"private"):
        assert value not in everything
    told = "".join(str(server.request("GET", path)) for path in (f"/jobs/{job}", "/jobs", "/metrics"))
    assert "hush-hush" not in told and "private" not in told


def test_a_larger_world_is_dealt_to_several_nodes_or_refused(server: ApiServer) -> None:
    job = server.submit(world_size=128, queue=True)
    assert server.request("GET", f"/jobs/{job}/summary")[2]["world_size"] == 128
    status, _, problem = server.request("POST", "/jobs", {"world_size": 4096})
    assert status == 409 and "the largest node holds 64" in problem["detail"]
    waiting = server.submit(world_size=4096, queue=True)
    assert server.request("GET", f"/jobs/{waiting}")[2]["state"] == "waiting"
    server.request("DELETE", f"/jobs/{waiting}?force=true")
    server.request("DELETE", f"/jobs/{job}?force=true")


def test_replicas_are_shown_one_by_one(server: ApiServer) -> None:
    job = server.submit(replicas=2, workers=3)
    view = server.request("GET", f"/jobs/{job}/summary")[2]
    assert [(r["id"], r["workers"]) for r in view["replicas"]] == [(f"{job}/0", 3), (f"{job}/1", 3)]
    status, _, problem = server.request("POST", "/jobs", {"world_size": 3, "replicas": 2})
    assert status == 422 and "replicas" in problem["detail"]


def test_clients_with_one_key_at_once_get_one_job(server: ApiServer) -> None:
    def submit(_: int) -> tuple[int, str]:
        body = {"command": ["true"], "env": {"A": "1"}}
        status, _, made = server.request("POST", "/jobs", body, Idempotency_Key="the-key")
        return status, made["job"]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(submit, range(16)))
    assert len({job for _, job in answers}) == 1
    assert sorted(status for status, _ in answers) == [200] * 15 + [201]
    other = server.request("POST", "/jobs", {"command": ["false"]}, Idempotency_Key="the-key")
    assert other[0] == 422 and "another request" in other[2]["detail"]
    env = server.request("POST", "/jobs", {"command": ["true"], "env": {"A": "2"}}, Idempotency_Key="the-key")
    assert env[0] == 422, "other values of the environment are another request"
    server.restart()
    assert submit(0) == (200, answers[0][1]), "a key survives a restart"
    job = answers[0][1]
    assert server.request("DELETE", f"/jobs/{job}?force=true")[0] == 204
    gone = server.request(
        "POST", "/jobs", {"command": ["true"], "env": {"A": "1"}}, Idempotency_Key="the-key"
    )
    assert gone[0] == 409 and "deleted" in gone[2]["detail"]


def test_lists_are_filtered_sorted_and_cut_into_pages(server: ApiServer) -> None:
    names = [f"page-{i}" for i in range(7)]
    for number, name in enumerate(names):
        server.submit(name=name, labels={"set": "pages", "odd": str(number % 2)})

    def ids(query: str) -> list[str]:
        return [job["id"] for job in server.request("GET", f"/jobs?label=set%3Dpages&{query}")[2]]

    assert ids("") == names and ids("sort=-id") == names[::-1]
    assert ids("label=odd%3D1") == names[1::2]
    assert server.request("GET", "/jobs?label=nothing")[2] == []
    seen: list[str] = []
    path = "/api/v1/jobs/summaries?label=set%3Dpages&limit=3&sort=-submitted"
    while path:
        _, headers, body = server.request("GET", path)
        seen += [job["id"] for job in body]
        path = headers.get("link", "").partition(">")[0].removeprefix("<")
        if len(seen) == 3:
            assert server.request("DELETE", f"/jobs/{seen[2]}?force=true")[0] == 204  # pages do not slip
    assert seen == names[::-1]
    assert ids("state=completed") == []
    for bad in ("cursor=nonsense", "sort=color", "state=odd", "limit=0", "limit=1001"):
        assert server.request("GET", f"/jobs?{bad}")[0] == 422


def test_a_running_job_goes_only_by_force_and_its_files_unless_kept(server: ApiServer) -> None:
    first, second = server.submit(name="del-one"), server.submit(name="del-two")
    status, headers, problem = server.request("DELETE", f"/jobs/{first}")
    assert (
        status == 409 and headers["content-type"] == "application/problem+json" and first in problem["detail"]
    )
    assert server.request("DELETE", f"/jobs/{first}?force=true")[0] == 204
    assert server.request("DELETE", f"/jobs/{second}?force=true&keep_logs=true")[0] == 204
    server.wait(lambda: any("del-one" in agent.removed for agent in server.agents))
    assert not any("del-two" in agent.removed for agent in server.agents)
    assert server.request("GET", f"/jobs/{first}")[0] == 404


def test_purge_takes_what_was_asked_for_and_says_so_before(server: ApiServer) -> None:
    jobs = [server.submit(name=f"purge-{i}", labels={"purge": "yes"}) for i in range(3)]
    for job in jobs[:2]:
        server.request("POST", f"/jobs/{job}/stop", {"kill": True})
        server.wait(lambda job=job: server.weaver.fleet.jobs[job].ended)
    asked = {"labels": {"purge": "yes"}, "older_than_s": 0.0}
    assert server.request("POST", "/jobs/purge")[2]["jobs"] == [], "a week unless said otherwise"
    assert server.request("POST", "/jobs/purge", asked | {"states": ["completed"]})[2]["jobs"] == []
    dry = server.request("POST", "/jobs/purge", asked | {"dry_run": True})[2]
    assert dry == {"jobs": jobs[:2], "kept": {}, "dry_run": True}
    assert server.request("POST", "/jobs/purge", asked)[2]["jobs"] == jobs[:2]
    assert server.request("GET", f"/jobs/{jobs[0]}")[0] == 404
    assert server.request("GET", f"/jobs/{jobs[2]}")[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "kind", "field"),
    [
        ("GET", "/nowhere", None, 404, "not-found", None),
        ("GET", "/api/v1/nowhere", None, 404, "not-found", None),
        ("PUT", "/jobs", {}, 405, "usage", None),
        ("POST", "/jobs", {"world_size": 0}, 422, "usage", "world_size"),
        ("POST", "/jobs", {"limits": {"hang_act_s": -1}}, 422, "usage", "limits.hang_act_s"),
        ("POST", "/jobs", {"name": "purge"}, 422, "usage", None),
        ("POST", "/jobs", b"{", 422, "usage", None),
        ("POST", "/jobs", b"\xff\xfe", 422, "usage", None),
        ("POST", "/jobs", b"x" * 1_000_000, 413, "usage", None),
        ("GET", "/jobs/x%0d%0aSet-Cookie:a", None, 400, "usage", None),
        ("GET", "/jobs/..%2f..%2fetc%2fpasswd", None, 404, "not-found", None),
        ("GET", "/incidents/%00", None, 400, "usage", None),
        ("GET", "/jobs?limit=many", None, 422, "usage", "limit"),
    ],
)
def test_every_error_is_a_problem_document(
    server: ApiServer, method: str, path: str, body: object, status: int, kind: str, field: str | None
) -> None:
    headers = {"Content_Type": "application/json"} if body is not None else {}
    got, answered, problem = server.request(method, path, body, **headers)
    assert (got, answered["content-type"]) == (status, "application/problem+json"), problem
    assert problem["type"] == f"urn:torchloom:{kind}" and problem["status"] == status and problem["detail"]
    assert field is None or problem["field"] == field


def test_without_the_bus_reading_works_and_changing_says_why(server: ApiServer) -> None:
    server.wait(lambda: server.weaver.ready)
    server.cut_bus(True)
    try:
        assert server.request("GET", "/jobs")[0] == 200
        status, headers, problem = server.request("POST", "/jobs", {"command": ["true"]})
        assert status == 503 and problem["type"] == "urn:torchloom:unavailable" and headers["retry-after"]
    finally:
        server.cut_bus(False)


def test_metrics_can_be_read_by_prometheus(server: ApiServer) -> None:
    status, headers, text = server.request("GET", "/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["loom_nodes"].type == "gauge"
    by_state = {s.labels["state"]: s.value for s in families["loom_nodes"].samples}
    assert sum(by_state.values()) == 2
    assert families["loom_job_restarts"].type == "counter"
    documented = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    for family in families.values():
        assert f"`{family.name}" in documented, f"docs/metrics.md does not know {family.name}"


def test_what_every_rank_costs_is_told_live(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "FRESH_S", 600.0)  # they come only once here
    job = server.submit(name="late", world_size=3)
    agent = server.agents[0]
    server.wait(lambda: sum(ref.job == job for ref in agent.live) == 3)
    refs = sorted((ref for ref in agent.live if ref.job == job), key=lambda ref: ref.rank)
    assert server.request("GET", f"/jobs/{job}/stragglers")[2] == {
        "job": job,
        "generation": 1,
        "steps_per_s": None,
        "stands": "",
        "missing": [0, 1, 2],
        "ranks": [],
    }

    def seen(ref: WorkerRef) -> RefWindow:
        own_ms = 80 if ref.rank == 1 else 40
        steps = tuple(StepTimes(n, 100 * 10**6, 0, (100 - own_ms) * 10**6) for n in range(1, 20))
        return RefWindow(ref, RankWindow(rank=ref.rank, node="n1", taken_ns=1, steps=steps))

    batch = WindowBatch(node="n1", session="s", windows=tuple(map(seen, refs)))
    server.call(lambda: agent.bus.publish(subjects.windows("n1"), codec.encode(batch)))
    server.wait(lambda: len(server.weaver.windows(job)) == 3)
    found = server.request("GET", f"/api/v1/jobs/{job}/stragglers")[2]
    assert found["missing"] == [] and found["steps_per_s"] == pytest.approx(10)
    assert [one["lost_share"] for one in found["ranks"]] == pytest.approx([0, 0.4, 0])
    assert found["ranks"][1]["lost_steps_per_s"] == pytest.approx(10 / 0.6 - 10)
    hang = Finding(kind="hang", ranks=(1,), node="n1", sentence="rank 1 has not entered", confidence=0.9)
    server.call(
        lambda: server.weaver._stream.say("finding", FindingMade(job=job, generation=1, finding=hang))
    )
    assert server.request("GET", f"/jobs/{job}/stragglers")[2]["stands"] == f"{job}.1"
    metrics = server.request("GET", "/metrics")[2]
    assert f'loom_worker_lost_ratio{{job="{job}",rank="1"}} 0.4' in metrics.replace(
        "0.40000000000000002", "0.4"
    )
    assert server.request("GET", "/jobs/nobody/stragglers")[0] == 404
