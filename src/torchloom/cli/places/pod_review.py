"""Whose token a pod presents, by a TokenReview. Fulfils weaver.requests.admission.PodReviewer.

A pod's token is made by the kubelet for this purpose alone (its audience is `torchloom`), lasts an hour, and
names the pod it is bound to. So a pod can prove its own name and nothing else; no secret is shared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from torchloom.cli.places.kube_api import KubeApi
from torchloom.errors import NotAllowed
from torchloom.model.admission import ProvenPod
from torchloom.model.ids import distinct_token

AUDIENCE = "torchloom"
NAMESPACES = "LOOM_POD_NAMESPACES"
_POD = "authentication.kubernetes.io/pod-name"
_USER = "system:serviceaccount:"


class PodReview:
    def __init__(self, api: KubeApi, namespaces: frozenset[str]) -> None:
        self._api, self._namespaces = api, namespaces

    @classmethod
    def of(cls, env: Mapping[str, str]) -> PodReview | None:
        """None where no namespaces are named whose pods may join."""
        named = frozenset(filter(None, env.get(NAMESPACES, "").split(",")))
        return cls(KubeApi.of(env), named) if named else None

    async def review(self, token: str) -> ProvenPod:
        if token.count(".") != 2:  # no JWT: a stranger must not make us ask
            raise NotAllowed("That is no token of a pod's service account")
        return proven_pod(await asyncio.to_thread(self._api.review, token, AUDIENCE), self._namespaces)


def proven_pod(status: Mapping[str, Any], namespaces: frozenset[str]) -> ProvenPod:
    """The pod that the status of a TokenReview proves; NotAllowed if it proves none that may join."""
    # An API server that does not know audiences leaves the list empty: the token may be for anybody.
    if status.get("authenticated") is not True or AUDIENCE not in (status.get("audiences") or ()):
        raise NotAllowed(
            "Kubernetes does not know this token of a pod, or it is not for torchloom",
            hint=f"mount a serviceAccountToken with the audience {AUDIENCE}, as the chart does",
        )
    user = status.get("user") or {}
    name = str(user.get("username", ""))
    namespace = name.removeprefix(_USER).partition(":")[0] if name.startswith(_USER) else ""
    if namespace not in namespaces:
        raise NotAllowed(
            f"pods of the namespace {namespace or '?'} may not join",
            hint="add it to agentNamespaces of the chart",
        )
    pods = (user.get("extra") or {}).get(_POD) or []
    if len(pods) != 1 or not pods[0]:
        raise NotAllowed("This token is bound to no pod", hint="it must be one that the kubelet mounted")
    return ProvenPod(distinct_token(str(pods[0])), namespace, str(pods[0]))
