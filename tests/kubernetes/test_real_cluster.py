"""On a real cluster: install, run a job of two pods, kill a pod, drain a node, upgrade, uninstall.

    KUBECONFIG=~/.kube/config LOOM_IMAGE=registry.example/torchloom:0.1.0 make test-kubernetes

Needs kubectl on PATH, an image with a tag that the cluster can pull or has already, rights to make a
namespace and cluster roles, one node with a free core and 4 GB (kind will do), and a storage class: the
default one, or LOOM_STORAGE_CLASS. LOOM_RWX_CLASS names one for ReadWriteMany, where the pods share their
checkpoints; without it they are on a volume of one node, and both pods are bound to it. What is missing is
reported before anything is made. Everything is in a namespace of its own, in which Kubernetes enforces the
restricted Pod Security Standard and which is deleted at the end, after a failure and after Ctrl-C too
(LOOM_KEEP=1 keeps it, to look at). One node is cordoned and uncordoned; of its pods only ours are evicted.
Each wait takes at most LOOM_PATIENCE_S (900), of which the first includes pulling the image. Skipped without
KUBECONFIG. What the test itself asks for is checked without a cluster in test_story.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from cluster_story import Cluster, play

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(
        not os.environ.get("KUBECONFIG") or not os.environ.get("LOOM_IMAGE"),
        reason="KUBECONFIG and LOOM_IMAGE name no cluster and no image; run by `make test-kubernetes`",
    ),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    missing = made.missing()
    if missing:
        pytest.fail("; ".join(missing), pytrace=False)
    try:
        made.run("kubectl", "create", "namespace", made.namespace)
        strict = "pod-security.kubernetes.io/enforce=restricted"
        made.run("kubectl", "label", "namespace", made.namespace, strict)
        yield made
    finally:
        made.clean()


def test_install_train_lose_a_pod_drain_upgrade_uninstall(cluster: Cluster) -> None:
    play(cluster)
