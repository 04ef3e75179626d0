"""What the answer of Kubernetes proves about a token."""

from __future__ import annotations

from typing import Any

import pytest

from torchloom.cli.places.pod_review import PodReview, proven_pod
from torchloom.errors import NotAllowed, UsageError
from torchloom.model.admission import ProvenPod

HERE = frozenset({"ml"})


def status(**changed: Any) -> dict[str, Any]:
    user = {
        "username": changed.pop("username", "system:serviceaccount:ml:default"),
        "extra": {"authentication.kubernetes.io/pod-name": changed.pop("pods", ["train-0-abcde"])},
    }
    return {"authenticated": True, "audiences": ["torchloom"], "user": user} | changed


def test_a_pod_is_proven_by_the_name_that_its_token_is_bound_to() -> None:
    assert proven_pod(status(), HERE) == ProvenPod("train-0-abcde", "ml", "train-0-abcde")
    assert proven_pod(status(pods=["a.b"]), HERE).node.startswith("a-b-"), "other names, other nodes"


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"authenticated": False}, "does not know"),
        ({"authenticated": "true"}, "does not know"),
        ({"audiences": []}, "not for torchloom"),
        ({"audiences": ["https://kubernetes.default.svc"]}, "not for torchloom"),
        ({"username": "system:serviceaccount:other:default"}, "namespace other"),
        ({"username": "ml:system:serviceaccount"}, "may not join"),
        ({"username": "admin"}, "may not join"),
        ({"pods": []}, "no pod"),
        ({"pods": ["a", "b"]}, "no pod"),
        ({"user": None}, "may not join"),
    ],
)
def test_anything_else_proves_nothing(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(NotAllowed, match=why):
        proven_pod(status(**changed), HERE)


def test_pods_join_only_where_namespaces_are_named() -> None:
    assert PodReview.of({}) is None
    with pytest.raises(UsageError, match="in a pod only"):
        PodReview.of({"LOOM_POD_NAMESPACES": "ml"})
