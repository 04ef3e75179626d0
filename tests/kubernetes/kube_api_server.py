"""The few calls of the Kubernetes API that torchloom makes, answered as an API server answers them.

No API server can be had where the tests run. Requests are checked against the real schema of a TokenReview,
and answers have the fields that the documentation of bound service account tokens names.
"""

from __future__ import annotations

import json
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Call = tuple[str, str, str]
ACCOUNT_TOKEN = "token-of-the-weaver"
PROGRESS = "/trainer/status"
"""Where Trainer wants the progress of a TrainJob; it puts the address into the pods' environment."""


class ApiServer:
    """Knows tokens of pods: token → (namespace, pod)."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self.tokens: dict[str, tuple[str, str]] = {}
        self.calls: list[Call] = []
        self.progress: list[tuple[str, dict[str, Any]]] = []
        """What pods reported to Kubeflow Trainer: authorization and body."""
        self.listed: dict[str, list[dict[str, Any]]] = {"pods": [], "nodes": []}
        self._http = ThreadingHTTPServer((host, port), self._handler())
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)
        self._folder = tempfile.TemporaryDirectory(prefix="loom-account-")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def account(self) -> Path:
        """As the kubelet mounts it."""
        (Path(self._folder.name) / "token").write_text(ACCOUNT_TOKEN + "\n")
        return Path(self._folder.name)

    def pod(self, namespace: str, pod: str) -> str:
        """The token of a pod, as the kubelet would mount it for the audience `torchloom`."""
        token = f"head.{namespace}-{pod.replace('.', '_')}.signature"
        self.tokens[token] = (namespace, pod)
        return token

    def __enter__(self) -> ApiServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._folder.cleanup()

    def _handler(server: ApiServer) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                resource = self.path.partition("?")[0].rpartition("/")[2]
                server.calls.append(("", resource, "list"))
                self._answer({"items": server.listed[resource]})

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if self.path == PROGRESS:
                    server.progress.append((self.headers["authorization"], asked))
                    self._answer({})
                    return
                _, _, group, version, resource = self.path.split("/")
                assert asked["apiVersion"] == f"{group}/{version}" and asked["kind"] == "TokenReview"
                server.calls.append((group, resource, "create"))
                self._answer({**asked, "status": server.review(**asked["spec"])}, 201)

            def _answer(self, body: dict[str, Any], status: int = 200) -> None:
                if self.path != PROGRESS and self.headers["authorization"] != f"Bearer {ACCOUNT_TOKEN}":
                    body, status = {"kind": "Status", "code": 401}, 401
                text = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def review(self, token: str, audiences: list[str]) -> dict[str, Any]:
        found = self.tokens.get(token)
        if found is None or audiences != ["torchloom"]:
            return {"authenticated": False, "error": "invalid bearer token"}
        namespace, pod = found
        user = {
            "username": f"system:serviceaccount:{namespace}:default",
            "groups": ["system:serviceaccounts", f"system:serviceaccounts:{namespace}"],
            "extra": {"authentication.kubernetes.io/pod-name": [pod]},
        }
        return {"authenticated": True, "audiences": audiences, "user": user}
