"""`loom kubernetes`: tells the control service which pods are gone for good and which hosts are cordoned.

A small loop in a process of its own: lists, compares (pods.py), and reports through the API as any operator
would. Without it torchloom works as well, but a pod that died with its host needs `loom node gone`.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from torchloom.cli.places.kube_api import KubeApi
from torchloom.cli.places.pods import PodMemory, pod_actions
from torchloom.errors import LoomError, UsageError

EVERY_S = 5.0


def main(argv: Sequence[str]) -> int:

    parser = argparse.ArgumentParser(
        prog="loom kubernetes",
        description="Tell the control service what Kubernetes knows (production).",
        epilog="example: loom kubernetes --namespaces training,research; the chart runs it",
    )
    parser.add_argument("--namespaces", required=True, help="where agents run, by commas")
    parser.add_argument("--every", type=float, default=EVERY_S, metavar="S", help="(%(default)s)")
    parser.add_argument("--alive", type=Path, help="file that is touched after each round, for a probe")
    options = parser.parse_args(argv)
    host, port = (
        os.environ.get("KUBERNETES_SERVICE_HOST", ""),
        os.environ.get("KUBERNETES_SERVICE_PORT", "443"),
    )
    url = os.environ.get("LOOM_KUBERNETES_URL", "") or (f"https://{_bracketed(host)}:{port}" if host else "")
    if not url:
        raise UsageError("KUBERNETES_SERVICE_HOST is not set: this runs in a pod only.")
    ends = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ends.set())
    memory, trouble = PodMemory(), ""
    while not ends.is_set():
        try:
            look(KubeApi(url), memory, options.namespaces.split(","))
            trouble = ""
            if options.alive is not None:
                options.alive.touch()
        except LoomError as error:
            if str(error) != trouble:
                print(f"loom: {error}", file=sys.stderr)
            trouble = str(error)
        ends.wait(options.every)
    return 0


def look(api: KubeApi, memory: PodMemory, namespaces: Sequence[str]) -> None:
    """One round. Raises LoomError if somebody does not answer; then nothing is concluded."""
    from torchloom.client import Client, Endpoint

    pods = [pod for namespace in namespaces if namespace for pod in api.pods(namespace)]
    hosts = api.nodes()
    with Client(Endpoint.find()) as client:
        for action in pod_actions(memory, pods, hosts, client.nodes()):
            print(f"{action.node}: {action.what} {action.why}", file=sys.stderr)
            try:
                match action.what:
                    case "gone":
                        client.node_gone(action.node)
                    case "drain":
                        client.drain_node(action.node, {"why": action.why, "keep": True, "force": False})
                    case "open":
                        client.open_node(action.node)
            except LoomError as error:
                print(f"loom: {action.node}: {error}", file=sys.stderr)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
