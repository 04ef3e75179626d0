"""What an upgrade keeps and refuses: helm reads the release's objects back from an API server of our own.

`helm template --dry-run=server` asks the cluster for what `lookup` names, as `helm upgrade` does.
"""

from __future__ import annotations

import base64
import json
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from manifests import CHART, HELM, Object, read

RESOURCES = {
    "/api/v1": [("secrets", "Secret"), ("configmaps", "ConfigMap")],
    "/apis/apps/v1": [("statefulsets", "StatefulSet")],
}


class Cluster:
    """Objects by path, and the few other answers that helm asks for first."""

    def __init__(self, folder: Path) -> None:
        self.objects: dict[str, Object] = {}
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{self._http.server_port}"
        self.config = folder / "kubeconfig"
        self.config.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "here",
                    "clusters": [{"name": "here", "cluster": {"server": url}}],
                    "users": [{"name": "me", "user": {}}],
                    "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
                }
            )
        )

    def keep(self, *objects: Object) -> None:
        paths = {"Secret": "/api/v1", "ConfigMap": "/api/v1", "StatefulSet": "/apis/apps/v1"}
        names = {kind: resource for some in RESOURCES.values() for resource, kind in some}
        for one in objects:
            if one["kind"] in paths:
                name, space = one["metadata"]["name"], one["metadata"]["namespace"]
                path = f"{paths[one['kind']]}/namespaces/{space}/{names[one['kind']]}/{name}"
                self.objects[path] = one

    def upgrade(self, *flags: str) -> subprocess.CompletedProcess[str]:
        command = [str(HELM), "template", "torchloom", str(CHART), "--namespace", "ml", "--is-upgrade"]
        asks = ["--dry-run=server", "--kubeconfig", str(self.config), "--kube-version", "1.36.0"]
        return subprocess.run(
            [*command, *asks, *flags], capture_output=True, text=True, timeout=120, check=False
        )

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def _handler(cluster: Cluster) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0].rstrip("/")
                found = _discovery(path) or cluster.objects.get(path)
                missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound"}
                body = json.dumps(found or missing | {"code": 404}).encode()
                self.send_response(200 if found else 404)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        return Handler


def _discovery(path: str) -> dict[str, Any] | None:
    if path == "/version":
        return {"major": "1", "minor": "36", "gitVersion": "v1.36.0"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        apps = {"groupVersion": "apps/v1", "version": "v1"}
        group = {"name": "apps", "versions": [apps], "preferredVersion": apps}
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]}
    if path in RESOURCES:
        resources = [
            {
                "name": name,
                "singularName": name[:-1],
                "namespaced": True,
                "kind": kind,
                "verbs": ["get", "list"],
            }
            for name, kind in RESOURCES[path]
        ]
        version = path.removeprefix("/apis/").removeprefix("/api/")
        return {"kind": "APIResourceList", "groupVersion": version, "resources": resources}
    return None


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.close()


def rendered(done: subprocess.CompletedProcess[str]) -> list[Object]:
    assert done.returncode == 0, done.stderr
    return read(done.stdout)


def kept(objects: list[Object]) -> dict[str, Any]:
    return {
        f"{one['kind']}/{one['metadata']['name']}": one["data"]
        for one in objects
        if one["kind"] in ("Secret", "ConfigMap")
    }


def test_an_upgrade_keeps_every_key_and_certificate(cluster: Cluster) -> None:
    first = rendered(cluster.upgrade())
    assert kept(first) != kept(rendered(cluster.upgrade())), "without a release they are made anew"
    cluster.keep(*first)
    assert kept(rendered(cluster.upgrade("--set", "weaver.keepHistory=30000"))) == kept(first)


def test_an_authority_of_your_own_is_given_to_every_namespace(cluster: Cluster) -> None:
    mine = {"ca.crt": base64.b64encode(b"-----BEGIN mine").decode(), "tls.crt": "eA==", "tls.key": "eA=="}
    meta = {"name": "mine", "namespace": "ml"}
    cluster.keep({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": mine})
    objects = rendered(cluster.upgrade("--set", "tls.existingSecret=mine,agentNamespaces={team}"))
    given = [one for one in objects if one["kind"] == "ConfigMap"]
    assert sorted(one["metadata"]["namespace"] for one in given) == ["ml", "team"]
    assert {one["data"]["ca.crt"].strip() for one in given} == {"-----BEGIN mine"}


def test_a_release_of_chart_0_1_is_refused_with_what_to_do(cluster: Cluster) -> None:
    (servers,) = [one for one in rendered(cluster.upgrade()) if one["kind"] == "StatefulSet"]
    cluster.keep(servers)
    assert cluster.upgrade().returncode == 0, "one of this chart is not"
    servers["spec"]["template"]["metadata"]["annotations"] = {"checksum/accounts": "0" * 64}
    done = cluster.upgrade()
    assert done.returncode != 0
    assert "chart 0.1" in done.stderr and "docs/operations.md" in done.stderr
