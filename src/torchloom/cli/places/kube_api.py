"""The few calls to the Kubernetes API that we make, with the pod's own service account. Reads only.

The standard library's client: two lists do not need the official one and what it brings along.
"""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from torchloom.errors import NotAllowed, TimedOut

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
CALLS = (("", "pods", "list"), ("", "nodes", "list"))
"""API group, resource and verb of every call below. The chart's roles allow these and nothing else; a test
compares the two."""
SELECTOR = "torchloom.dev/agent=true"
ANSWER_WITHIN_S = 20.0


class KubeApi:
    def __init__(self, url: str, account: Path = ACCOUNT) -> None:
        self._url, self._account = url.rstrip("/"), account

    def pods(self, namespace: str) -> list[dict[str, Any]]:
        """Pods with an agent."""
        query = urllib.parse.urlencode({"labelSelector": SELECTOR})
        return self._list(f"/api/v1/namespaces/{urllib.parse.quote(namespace)}/pods?{query}")

    def nodes(self) -> list[dict[str, Any]]:
        return self._list("/api/v1/nodes")

    def _list(self, path: str) -> list[dict[str, Any]]:
        token = (self._account / "token").read_text().strip()  # read again: the kubelet renews it
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        authority = self._account / "ca.crt"
        context = ssl.create_default_context(cafile=str(authority)) if self._url.startswith("https") else None
        request = urllib.request.Request(self._url + path, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_WITHIN_S, context=context) as answer:
                found: list[dict[str, Any]] = json.load(answer).get("items") or []
                return found
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                raise NotAllowed(f"the Kubernetes API refuses {path}: {error.reason}") from None
            raise TimedOut(f"the Kubernetes API answers {error.code} to {path}") from None
        except (OSError, ValueError) as error:
            raise TimedOut(f"the Kubernetes API does not answer: {error}") from None
