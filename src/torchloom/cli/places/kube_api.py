"""The few calls to the Kubernetes API that we make, with the pod's own service account. Changes nothing.

The standard library's client: these calls do not need the official one and what it brings along.
"""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torchloom.errors import NotAllowed, TimedOut, UsageError

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
CONTROLLER_CALLS = (("", "pods", "list"), ("", "nodes", "list"))
WEAVER_CALLS = (("authentication.k8s.io", "tokenreviews", "create"),)
"""API group, resource and verb of every call below, by who makes it. The chart's roles allow these and
nothing else; a test compares them with the calls that the code makes."""
SELECTOR = "torchloom.dev/agent=true"
ANSWER_WITHIN_S = 20.0


class KubeApi:
    def __init__(self, url: str, account: Path = ACCOUNT) -> None:
        self._url, self._account = url.rstrip("/"), account

    @classmethod
    def url_of(cls, env: Mapping[str, str]) -> str:
        """Where the API server of this pod's cluster is; empty outside of one."""
        host, port = env.get("KUBERNETES_SERVICE_HOST", ""), env.get("KUBERNETES_SERVICE_PORT", "443")
        here = f"https://{f'[{host}]' if ':' in host else host}:{port}" if host else ""
        return env.get("LOOM_KUBERNETES_URL", "") or here

    @classmethod
    def of(cls, env: Mapping[str, str]) -> KubeApi:
        """Raises UsageError outside of a pod."""
        url = cls.url_of(env)
        if not url:
            raise UsageError("KUBERNETES_SERVICE_HOST is not set: this runs in a pod only.")
        return cls(url, Path(env.get("LOOM_KUBERNETES_ACCOUNT", "") or ACCOUNT))

    def pods(self, namespace: str) -> list[dict[str, Any]]:
        """Pods with an agent."""
        return self._pods(namespace, {"labelSelector": SELECTOR})

    def pod(self, namespace: str, name: str) -> list[dict[str, Any]]:
        """The pod of this name, if there is one."""
        return self._pods(namespace, {"fieldSelector": f"metadata.name={name}"})

    def _pods(self, namespace: str, wanted: dict[str, str]) -> list[dict[str, Any]]:
        query = urllib.parse.urlencode(wanted)
        return self._list(f"/api/v1/namespaces/{urllib.parse.quote(namespace)}/pods?{query}")

    def nodes(self) -> list[dict[str, Any]]:
        return self._list("/api/v1/nodes")

    def review(self, token: str, audience: str) -> dict[str, Any]:
        """Status of a TokenReview: whose token it is, if it was made for that audience."""
        asked = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "metadata": {},
            "spec": {"token": token, "audiences": [audience]},
        }
        found = self._call("/apis/authentication.k8s.io/v1/tokenreviews", json.dumps(asked).encode())
        status: dict[str, Any] = found.get("status") or {}
        return status

    def _list(self, path: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._call(path).get("items") or []
        return found

    def _call(self, path: str, body: bytes | None = None) -> dict[str, Any]:
        token = (self._account / "token").read_text().strip()  # read again: the kubelet renews it
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        authority = self._account / "ca.crt"
        context = _trusting(str(authority)) if self._url.startswith("https") else None
        request = urllib.request.Request(self._url + path, data=body, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_WITHIN_S, context=context) as answer:
                found = json.load(answer)
                return found if isinstance(found, dict) else {}
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                raise NotAllowed(f"the Kubernetes API refuses {path}: {error.reason}") from None
            raise TimedOut(f"the Kubernetes API answers {error.code} to {path}") from None
        except (OSError, ValueError) as error:
            raise TimedOut(f"the Kubernetes API does not answer: {error}") from None


def _trusting(authority: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority)
    # Python 3.13 asks for extensions that the authorities of many clusters do not have.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context
