"""What the chart starts, started here: a server with the rendered configuration, certificates and passwords,
a control service and an agent with their rendered arguments and variables. Addresses and paths are local."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from manifests import ROOT, Object, containers, pod_templates, render

sys.path.append(str(ROOT / "tests/e2e"))
from forked import free_port
from stack import HANG_S, wait_until

from torchloom.bus.nats_binary import find_server
from torchloom.cli.places.pod import JOB_FAILED

BIN = Path(sys.executable).parent


class Parts:
    """The processes of a release with one NATS server."""

    def __init__(self, root: Path) -> None:
        self.root, self.nats_port, self.api_port = root, free_port(), free_port()
        self.objects = render(
            "--set", "nats.replicas=1,daemonset.enabled=true,daemonset.slots=4,trainer.enabled=true"
        )
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.secrets = {
            one["metadata"]["name"]: {k: base64.b64decode(v).decode() for k, v in one["data"].items()}
            for one in self.objects
            if one["kind"] == "Secret"
        }

    def container(self, name: str) -> Object:
        templates = [t for one in self.objects for t in pod_templates(one)]
        (found,) = [c for template in templates for c in containers(template) if c["name"] == name]
        return found

    def local(self, part: str, text: str) -> str:
        """The same text, with this machine's addresses and paths."""
        text = re.sub(r"torchloom-nats-\d\.[a-z.-]+:4222", f"localhost:{self.nats_port}", text)
        text = re.sub(r"torchloom\.default\.svc:8700", f"localhost:{self.api_port}", text)
        text = text.replace("--port=8700", f"--port={self.api_port}").replace(
            "--host=0.0.0.0", "--host=127.0.0.1"
        )
        for path in ("/etc/torchloom", "/var/lib/torchloom", "/data"):
            text = text.replace(path, str(self.root / part) + path)
        return text

    def env(self, part: str) -> dict[str, str]:
        found = {k: v for k, v in os.environ.items() if not k.startswith(("LOOM_", "KUBERNETES_"))}
        given = {"POD_NAME": f"pod-{part}", "POD_IP": "127.0.0.1"}
        for variable in self.container(part).get("env", []):
            name, source = variable["name"], variable.get("valueFrom", {})
            if "secretKeyRef" in source:
                given[name] = self.secrets[source["secretKeyRef"]["name"]][source["secretKeyRef"]["key"]]
            elif "value" in variable:
                expanded = re.sub(r"\$\((\w+)\)", lambda match: given[match[1]], variable["value"])
                given[name] = self.local(part, expanded)
        return found | given

    def files(self, part: str) -> None:
        """What Kubernetes would mount."""
        for where, name in (("tls", "tls"), ("keys", "auth"), ("agent", "agent")):
            folder = Path(self.local(part, f"/etc/torchloom/{where}"))
            folder.mkdir(parents=True)
            for key, value in self.secrets[f"torchloom-{name}"].items():
                (folder / key).write_text(value)
        Path(self.local(part, "/var/lib/torchloom")).mkdir(parents=True)
        Path(self.local(part, "/data")).mkdir()

    def start(self, part: str, command: list[str]) -> None:
        with (self.root / f"{part}.log").open("ab") as log:
            self.processes[part] = subprocess.Popen(command, env=self.env(part), stdout=log, stderr=log)

    def begin(self) -> None:
        for part in ("nats", "weaver", "agent", "node"):
            self.files(part)
        (config,) = [one["data"]["nats.conf"] for one in self.objects if one["kind"] == "ConfigMap"]
        config = self.local("nats", config).replace("port: 4222", f"port: {self.nats_port}")
        (self.root / "nats.conf").write_text(config.replace("http_port: 8222", f"http_port: {free_port()}"))
        self.start("nats", [str(find_server()), "-c", str(self.root / "nats.conf")])
        for part in ("weaver", "agent"):
            given = self.container(part)
            words = [self.local(part, word.replace("$(POD_IP)", "127.0.0.1")) for word in given["args"]]
            self.start(part, [str(BIN / "loom"), *given["command"][1:], *words])

    def pod(self, job: str, *words: str) -> subprocess.CompletedProcess[str]:
        """A training pod, from its first process to its end."""
        env = self.env("node") | {"LOOM_POD_JOB": job, "LOOM_SLOTS": "2"}
        command = [str(BIN / "loom"), *self.container("node")["command"][1:], *words]
        return subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=2 * HANG_S, cwd=self.root
        )

    def loom(self, *args: str) -> subprocess.CompletedProcess[str]:
        env = self.env("node") | {"LOOM_HOME": str(self.root / "client")}
        return subprocess.run(
            [str(BIN / "loom"), *args], env=env, capture_output=True, text=True, timeout=HANG_S, cwd=self.root
        )

    def logs(self) -> str:
        return "\n".join(f"=== {p.name}\n{p.read_text()[-3000:]}" for p in sorted(self.root.glob("*.log")))

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        try:
            return wait_until(condition, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from error

    def close(self) -> None:
        for part in ("agent", "weaver", "nats"):
            if (process := self.processes.get(part)) is None:
                continue
            below = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            process.terminate()
            try:
                process.wait(HANG_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for one in below:  # a container ends with its first process, and all others with it
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()


@pytest.fixture(scope="module")
def parts() -> Iterator[Parts]:
    with tempfile.TemporaryDirectory(prefix="loom-k-") as root:
        made = Parts(Path(root))
        try:
            made.begin()
            yield made
        finally:
            made.close()


def test_a_training_pod_submits_its_job_prints_its_log_and_ends_with_it(parts: Parts) -> None:
    script = parts.root / "short.py"
    script.write_text(
        "import os, sys\nprint('rank', os.environ['RANK'], 'ends')\nsys.exit(int(sys.argv[1]))\n"
    )
    words = ("--spawn", "cold", "--max-restarts", "0", str(script))
    done = parts.pod("good", *words, "0")
    assert done.returncode == 0 and "rank 0" in done.stdout, f"{done}\n{parts.logs()}"
    again = parts.pod("good", *words, "0")
    assert again.returncode == 0 and "good completed" in again.stderr, "its replacement does not run it again"
    failed = parts.pod("bad", *words, "3")
    assert failed.returncode == JOB_FAILED, f"{failed}\n{parts.logs()}"
    trusted = ssl.create_default_context(cafile=parts.env("node")["LOOM_CA"])
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = parts.container("weaver")[kind]["httpGet"]
        url = f"https://localhost:{parts.api_port}{probe['path']}"
        with urllib.request.urlopen(url, timeout=HANG_S, context=trusted) as answer:
            assert answer.status == 200, kind
    assert "pod-node" in parts.loom("nodes").stdout, "its node has the name of the pod"


def test_a_job_runs_on_what_the_chart_starts_and_leaves_with_its_pod(parts: Parts) -> None:
    """Accounts, passwords, TLS, variables and arguments fit together. After SIGTERM to the pod its node has
    left, and the job waits for another one."""
    assert not {"LOOM_TOKEN", "LOOM_ADDRESS"} & parts.env("agent").keys(), "an agent cannot call the API"
    parts.until(lambda: "pod-agent" in parts.loom("nodes").stdout, "the agent's node has joined")
    script = parts.root / "train.py"
    script.write_text("import os, time\nprint('rank', os.environ['RANK'], flush=True)\ntime.sleep(3600)\n")
    done = parts.loom("submit", "--name", "j", "--spawn", "cold", "--nproc-per-node", "2", str(script))
    assert done.returncode == 0, done.stderr + parts.logs()
    parts.until(lambda: "rank 1" in parts.loom("logs", "j").stdout, "both ranks print")
    assert (Path(parts.local("agent", "/var/lib/torchloom/home")) / "alive").exists(), (
        "what the probe looks for"
    )
    agent = parts.processes["agent"]
    began = time.monotonic()
    agent.terminate()
    agent.wait(HANG_S)
    assert agent.returncode == 0, parts.logs()
    assert time.monotonic() - began < 300, "within the grace period"
    parts.until(lambda: "left" in parts.loom("nodes").stdout, "the node has left")
    parts.until(lambda: "waiting" in parts.loom("ps").stdout.lower(), "the job waits for another pod")
