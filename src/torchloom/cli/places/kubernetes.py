"""`loom kubernetes`: tells the control service which pods are gone for good and which hosts are cordoned.

A small loop in a process of its own: lists, compares (pods.py), and reports through the API as any operator
would. Without it torchloom works as well, but a pod that died with its host needs `loom node gone`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from torchloom.cli.places.kube_api import KubeApi
from torchloom.cli.places.pods import PodMemory, pod_actions, unlisted
from torchloom.errors import LoomError, NotFound

EVERY_S = 5.0


def main(argv: Sequence[str]) -> int:

    parser = argparse.ArgumentParser(
        prog="loom kubernetes",
        description="Tell the control service what Kubernetes knows (production).",
        epilog="example: loom kubernetes --namespaces training,research; the chart runs it",
    )
    parser.add_argument("--namespaces", required=True, help="where agents run, by commas")
    parser.add_argument("--every", type=float, default=EVERY_S, metavar="S", help="(%(default)s)")
    parser.add_argument(
        "--alive",
        type=Path,
        help="file for probes, touched after each round that succeeded; FILE.turns: after every one",
    )
    options = parser.parse_args(argv)
    api = KubeApi.of(os.environ)
    ends = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ends.set())
    memory, trouble = PodMemory(), ""
    while not ends.is_set():
        try:
            look(api, memory, options.namespaces.split(","))
            trouble = ""
            if options.alive is not None:
                options.alive.touch()
        except LoomError as error:
            if str(error) != trouble:
                print(f"loom: {error}", file=sys.stderr)
            trouble = str(error)
        if options.alive is not None:
            options.alive.with_name(f"{options.alive.name}.turns").touch()
        ends.wait(options.every)
    return 0


def look(api: KubeApi, memory: PodMemory, namespaces: Sequence[str]) -> None:
    """One round. Raises LoomError if somebody does not answer; then nothing is concluded."""
    from torchloom.client import Client, Endpoint

    pods = [pod for namespace in namespaces if namespace for pod in api.pods(namespace)]
    hosts = api.nodes()
    with Client(Endpoint.find()) as client:
        nodes = client.nodes()
        for namespace, name in unlisted(memory, pods, nodes):
            pods += api.pod(namespace, name) if namespace in namespaces else []
        for action in pod_actions(memory, pods, hosts, nodes, namespaces):
            print(f"{action.node}: {action.what} {action.why}", file=sys.stderr)
            try:
                match action.what:
                    case "gone":
                        client.node_gone(action.node)
                        # Nobody has its key any more, or ought to.
                        with contextlib.suppress(NotFound):
                            client.revoke_node(action.node)
                    case "drain":
                        client.drain_node(action.node, {"why": action.why, "keep": True, "force": False})
                    case "open":
                        client.open_node(action.node)
            except LoomError as error:
                print(f"loom: {action.node}: {error}", file=sys.stderr)
