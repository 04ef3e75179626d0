"""The image and the compose file, really built and run: three NATS servers, two control services, two nodes,
S3 and Prometheus; a training that survives the loss of a control service and of a NATS server."""

from __future__ import annotations

import json
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docker_host import DockerHost, why_not

WHY_NOT = why_not()
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(bool(WHY_NOT), reason=f"Docker cannot be used here: {WHY_NOT}"),
]
OURS = ("nats-1", "nats-2", "nats-3", "weaver-1", "weaver-2", "node-1", "node-2")
SERVICES = (*OURS, "s3", "prometheus")
ASK_PROMETHEUS = (
    "import sys, urllib.parse, urllib.request as u; "
    "q = urllib.parse.urlencode({'query': sys.argv[1]}); "
    "print(u.urlopen('http://prometheus:9090/api/v1/query?' + q, timeout=20).read().decode())"
)
LIST_S3 = (
    "import os, obstore; from obstore.store import S3Store; e = os.environ; "
    "s = S3Store(e['S3_BUCKET'], endpoint=e['S3_ENDPOINT'], access_key_id=e['S3_ACCESS_KEY'], "
    "secret_access_key=e['S3_SECRET_KEY'], region='us-east-1', client_options={'allow_http': True}); "
    "print(*(m['path'] for page in obstore.list(s) for m in page), sep=chr(10))"
)


@pytest.fixture(scope="module")
def docker() -> Iterator[DockerHost]:
    with tempfile.TemporaryDirectory(prefix="loom-docker-") as root:
        made = DockerHost(Path(root), f"t{secrets.token_hex(3)}")
        try:
            made.start()
            yield made
        finally:
            made.close()


def job(docker: DockerHost, at: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        docker.inside(at, "loom", "status", "demo", "--json", check=False) or "{}"
    )
    return found


def samples(docker: DockerHost, at: str, query: str) -> list[dict[str, Any]]:
    answer = json.loads(docker.inside(at, "python3", "-c", ASK_PROMETHEUS, query))
    found: list[dict[str, Any]] = answer["data"]["result"]
    return found


def test_the_demo_trains_on_when_a_control_service_and_a_server_are_killed(docker: DockerHost) -> None:
    docker.up()
    docker.wait(lambda: docker.healthy(*SERVICES), "all nine containers are healthy")
    assert docker.inside("node-1", "id", "-u").strip() == "10001", "nobody is root"

    settings = {"MAX_STEPS": "100000", "SLEEP_SEC": "0.1"}
    words = [
        "run",
        "--queue",
        "--detach",
        "--nnodes",
        "2",
        "--name",
        "demo",
        "-m",
        "torchloom.examples.char_gpt",
    ]
    docker.inside("weaver-1", "loom", *words, **settings)
    before = docker.wait(
        lambda: (now := job(docker, "weaver-1")).get("checkpoint_step") and now, "it trains and has saved"
    )
    assert {worker["node"] for worker in before["workers"]} == {"node-1", "node-2"}

    for service in ("weaver-1", "nats-1"):
        docker.run("docker", "kill", docker.container(service))
    docker.wait(
        lambda: job(docker, "weaver-2").get("step", 0) > before["step"] + 50, "it trains on without them"
    )
    now = job(docker, "weaver-2")
    assert (now["generation"], now["restarts"]) == (before["generation"], before["restarts"]), "undisturbed"
    docker.wait(
        lambda: (job(docker, "weaver-2")["checkpoint_step"] or 0) > before["checkpoint_step"], "and saves on"
    )
    docker.inside("weaver-2", "loom", "set", "demo", "lr=0.001")

    docker.up()
    docker.wait(lambda: docker.healthy(*SERVICES), "what was killed is back")
    docker.wait(
        lambda: [one["value"][1] for one in samples(docker, "weaver-1", 'up{job="torchloom"}')] == ["1", "1"],
        "Prometheus has read both control services",
    )
    steps = docker.wait(lambda: samples(docker, "weaver-1", 'loom_job_step{job="demo"}'), "our metrics")
    assert max(float(one["value"][1]) for one in steps) > before["step"]
    stored = docker.inside("weaver-1", "python3", "-c", LIST_S3).split()
    assert any("demo" in path and "step-" in path for path in stored), stored[:20]
    docker.inside("weaver-1", "loom", "stop", "demo")
    assert (
        docker.wait(lambda: (now := job(docker, "weaver-1")).get("ended") and now, "it ends")["state"]
        == "stopped"
    )
