"""The story of tests/kubernetes/test_real_cluster.py with containers of Docker as pods: read-only roots, the
user and the volumes that Kubernetes would give them, one NATS server. What needs Kubernetes itself is not
shown here."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker_host import DockerHost, why_not
from pod_host import PodHost, story

WHY_NOT = why_not() or ("" if os.geteuid() == 0 else "volumes are given to the pods' group, which needs root")
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(bool(WHY_NOT), reason=f"Docker cannot be used here: {WHY_NOT}"),
]


@pytest.fixture(scope="module")
def pods() -> Iterator[PodHost]:
    with tempfile.TemporaryDirectory(prefix="loom-pods-") as root:
        docker = DockerHost(Path(root), f"t{secrets.token_hex(3)}")
        made = PodHost(docker, Path(root))
        try:
            docker.start()
            docker.compose("build", limit_s=3000)
            yield made
        finally:
            made.clean()
            docker.close()


def test_the_story_of_a_cluster_in_containers(pods: PodHost) -> None:
    story.play(pods)
