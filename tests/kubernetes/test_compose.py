"""The compose file and what it mounts fit the chart and the code. tests/containers runs it."""

from __future__ import annotations

import json

import yaml
from manifests import ROOT

from torchloom.bus import nats_config
from torchloom.bus.protocol import MAX_MESSAGE_BYTES

DOCKER = ROOT / "deploy/docker"


def test_the_demo_has_every_part_with_a_health_check_and_no_rights() -> None:
    services = yaml.safe_load((DOCKER / "docker-compose.yml").read_text())["services"]
    ours = {name: one for name, one in services.items() if name not in ("s3", "prometheus")}
    assert sorted(ours) == ["nats-1", "nats-2", "nats-3", "node-1", "node-2", "weaver-1", "weaver-2"]
    for name, one in ours.items():
        assert one["read_only"] and one["cap_drop"] == ["ALL"], name
    for name, one in services.items():
        assert one["healthcheck"]["test"], name
        assert all(port.startswith("127.0.0.1:") for port in one.get("ports", [])), name
        for mount in one["volumes"]:
            if mount.startswith("."):
                assert (DOCKER / mount.partition(":")[0]).exists(), mount


def test_the_bus_of_the_demo_gives_the_rights_that_the_code_knows() -> None:
    text = (DOCKER / "accounts.conf").read_text()
    for permissions in (nats_config.weaver_permissions(), nats_config.agent_permissions("*")):
        for subject in (*permissions["publish"], *permissions["subscribe"]):  # type: ignore[misc]
            assert f'"{subject}"' in text or subject == "_INBOX_*.>", subject
    assert f'"{nats_config.LEASE_READ}"' in text and f'"{nats_config.LEADER}"' in text
    server = (DOCKER / "nats.conf").read_text()
    assert f"max_payload: {MAX_MESSAGE_BYTES}" in server
    assert f"max_buffered_msgs: {nats_config.BUFFERED_EVENTS}" in server


def test_keys_of_the_demo_fit_together() -> None:
    env = yaml.safe_load((DOCKER / "docker-compose.yml").read_text())["services"]["weaver-1"]["environment"]
    keys = json.loads((DOCKER / "s3.json").read_text())["identities"][0]["credentials"][0]
    assert (env["S3_ACCESS_KEY"], env["S3_SECRET_KEY"]) == (keys["accessKey"], keys["secretKey"])
    assert env["LOOM_TOKEN"] in (DOCKER / "prometheus.yml").read_text()


def test_the_image_is_pinned_and_runs_as_nobody_in_particular() -> None:
    lines = (DOCKER / "Dockerfile").read_text().splitlines()
    assert "USER 10001:10001" in lines, "the user of the chart's pods"
    (base,) = [line.partition("=")[2] for line in lines if line.startswith("ARG BASE=")]
    assert base.rpartition(":")[2].count(".") >= 2, "a version, not a moving name"
