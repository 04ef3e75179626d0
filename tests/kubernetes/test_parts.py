"""What the chart starts, started here: a server with the configuration that its first container writes, a
control service and an agent with their rendered arguments and variables. Addresses and paths are local, and
an API server of our own says which pod a token belongs to (kube_api_server.py)."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
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

import cluster_story as story
import psutil
import pytest
from kube_api_server import PROGRESS, ApiServer
from manifests import ROOT, Object, containers, pod_templates, render, trainer_status_errors

sys.path.append(str(ROOT / "tests/e2e"))
from forked import free_port
from stack import HANG_S, wait_until

from torchloom.bus.address import BusAddress
from torchloom.bus.keys import new_seed, public_key
from torchloom.bus.nats import NatsBus
from torchloom.bus.nats_binary import find_server
from torchloom.cli.cluster.node_files import JoinedNode
from torchloom.cli.places.pod import JOB_FAILED
from torchloom.client import Client, Endpoint
from torchloom.errors import NotAllowed
from torchloom.home import Home
from torchloom.model.ids import distinct_token

BIN = Path(sys.executable).parent


class Parts:
    """The processes of a release with one NATS server."""

    def __init__(self, root: Path) -> None:
        self.root, self.nats_port, self.api_port = root, free_port(), free_port()
        self.monitor_port = free_port()
        self.objects = render(
            "--set", "nats.replicas=1,daemonset.enabled=true,daemonset.slots=4,trainer.enabled=true"
        )
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.kubernetes = ApiServer()
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
        for path in (
            "/etc/torchloom",
            "/var/lib/torchloom",
            "/var/run/secrets/torchloom",
            "/data",
            "/tmp/alive",
        ):
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
        if part in ("weaver", "controller"):
            account = str(self.kubernetes.account())
            given |= {"LOOM_KUBERNETES_URL": self.kubernetes.url, "LOOM_KUBERNETES_ACCOUNT": account}
        return found | given

    def files(self, part: str) -> None:
        """What Kubernetes would mount."""
        (public,) = [one["data"] for one in self.objects if one["kind"] == "ConfigMap"]
        token = {"token": self.kubernetes.pod("default", f"pod-{part}")}
        for where, files in (
            ("/etc/torchloom/tls", self.secrets["torchloom-tls"]),
            ("/etc/torchloom/keys", self.secrets["torchloom-auth"]),
            ("/etc/torchloom/ca", public),
            ("/var/run/secrets/torchloom", token),
        ):
            if not any(self.local("", where) in mount for mount in self.mounts(part)):
                continue
            folder = Path(self.local(part, where))
            folder.mkdir(parents=True)
            for key, value in files.items():
                (folder / key).write_text(value)
        for where in ("/var/lib/torchloom", "/data", "/etc/torchloom/nats"):
            Path(self.local(part, where)).mkdir(parents=True, exist_ok=True)

    def mounts(self, part: str) -> list[str]:
        """Where volumes are mounted in the pod of a part."""
        names = ("config", part) if part == "nats" else (part,)
        return [
            self.local("", mount["mountPath"])
            for name in names
            for mount in self.container(name)["volumeMounts"]
        ]

    def start(self, part: str, command: list[str]) -> None:
        with (self.root / f"{part}.log").open("ab") as log:
            self.processes[part] = subprocess.Popen(command, env=self.env(part), stdout=log, stderr=log)

    def begin(self) -> None:
        self.kubernetes.__enter__()
        for part in ("nats", "weaver", "agent", "node", "controller"):
            self.files(part)
        config = Path(self.local("nats", "/etc/torchloom/nats/nats.conf"))
        words = [
            self.local("nats", w).replace("$(POD_NAME)", "nats-0") for w in self.container("config")["args"]
        ]
        command = [str(BIN / "loom"), *self.container("config")["command"][1:], *words]
        subprocess.run(
            command, check=True, timeout=HANG_S, env=os.environ | {"LOOM_HOME": str(self.root / "x")}
        )
        assert config.stat().st_mode & 0o077 == 0, "it holds the password of the routes"
        text = json.loads(config.read_text()) | {"port": self.nats_port, "http_port": self.monitor_port}
        config.write_text(json.dumps(text, ensure_ascii=False))
        self.start("nats", [str(find_server()), *self.container("nats")["args"][:1], str(config)])
        for part in ("weaver", "agent"):
            self.begin_part(part)

    def begin_part(self, part: str) -> None:
        given = self.container(part)
        words = [self.local(part, word.replace("$(POD_IP)", "127.0.0.1")) for word in given["args"]]
        self.start(part, [str(BIN / "loom"), *given["command"][1:], *words])

    def pod(self, job: str, *words: str) -> subprocess.CompletedProcess[str]:
        """A training pod, from its first process to its end."""
        env = self.env("node") | {"LOOM_POD_JOB": job, "LOOM_SLOTS": "2"}
        (self.root / "trainer-token").write_text("of-trainer\n")
        env |= {
            "KUBEFLOW_TRAINER_STATUS_URL": self.kubernetes.url + PROGRESS,
            "KUBEFLOW_TRAINER_STATUS_TOKEN": str(self.root / "trainer-token"),
        }
        command = [str(BIN / "loom"), *self.container("node")["command"][1:], *words]
        return subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=2 * HANG_S, cwd=self.root
        )

    def loom(self, *args: str) -> subprocess.CompletedProcess[str]:
        admin = {"LOOM_TOKEN": self.secrets["torchloom-auth"]["token"]}
        env = self.env("node") | {"LOOM_HOME": str(self.root / "client")} | admin
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
        self.kubernetes.__exit__()
        for part in ("controller", "agent", "weaver", "nats"):
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
    authorization, body = parts.kubernetes.progress[-1]
    assert authorization == "Bearer of-trainer"
    assert body["trainerStatus"]["progressPercentage"] == 100
    assert trainer_status_errors(body) == []
    again = parts.pod("good", *words, "0")
    assert again.returncode == 0 and "good completed" in again.stderr, "its replacement does not run it again"
    failed = parts.pod("bad", *words, "3")
    assert failed.returncode == JOB_FAILED, f"{failed}\n{parts.logs()}"
    trusted = ssl.create_default_context(cafile=parts.env("node")["LOOM_CA"])
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        for part, address in (
            ("weaver", f"https://localhost:{parts.api_port}"),
            ("nats", f"http://localhost:{parts.monitor_port}"),
        ):
            url = address + parts.container(part)[kind]["httpGet"]["path"]
            with urllib.request.urlopen(url, timeout=HANG_S, context=trusted) as answer:
                assert answer.status == 200, kind
    assert "pod-node" in parts.loom("nodes").stdout, "its node has the name of the pod"


def test_a_job_runs_on_what_the_chart_starts_and_leaves_with_its_pod(parts: Parts) -> None:
    """Accounts, passwords, TLS, variables and arguments fit together. After SIGTERM to the pod its node has
    left, and the job waits for another one."""
    assert "LOOM_TOKEN" not in parts.env("agent"), "an agent has no secret that others have"
    parts.until(lambda: "pod-agent" in parts.loom("nodes").stdout, "the agent's node has joined")
    script = parts.root / "train.py"
    script.write_text("import os, time\nprint('rank', os.environ['RANK'], flush=True)\ntime.sleep(3600)\n")
    done = parts.loom("submit", "--name", "train", "--spawn", "cold", "--nproc-per-node", "2", str(script))
    assert done.returncode == 0, done.stderr + parts.logs()
    parts.until(lambda: "rank 1" in parts.loom("logs", "train").stdout, "both ranks print")
    _answers_as_the_story_of_a_cluster_reads_them(parts)
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


def _answers_as_the_story_of_a_cluster_reads_them(parts: Parts) -> None:
    """cluster_story.py asks in a pod what is asked here."""
    cluster = story.Cluster()
    cluster.loom = lambda *args, check=True: parts.loom(*args).stdout  # type: ignore[method-assign]
    found = {node["id"]: (node["state"], node["drained"]) for node in cluster.nodes()}
    assert found["pod-agent"] == ("ready", "")
    read = {"state", "workers", "step", "checkpoint_step", "generation", "restarts", "ended"}
    job = cluster._job()
    assert read <= job.keys() and {worker["node"] for worker in job["workers"]} == {"pod-agent"}
    assert cluster.ask("operations", "train") == []
    assert cluster.ask("status", "nobody") is None, "an error is nothing that could be read"


def test_a_pod_that_is_gone_loses_its_credential(parts: Parts) -> None:
    """The controller reports it, and revokes what the pod had: nobody needs it any more."""
    pods = parts.kubernetes.listed["pods"]
    pods.append(
        {"metadata": {"name": "pod-agent"}, "spec": {"nodeName": "k1"}, "status": {"phase": "Running"}}
    )
    alive = Path(parts.local("controller", "/tmp/alive"))
    alive.parent.mkdir(parents=True, exist_ok=True)
    parts.begin_part("controller")
    parts.until(alive.exists, "the controller has looked")
    # The pods of the tests before are gone, and a controller that never saw them knows it.
    said = (parts.root / "controller.log").read_text()
    assert "pod-agent: gone" not in said, "a pod that is listed is not gone"
    pods.clear()
    parts.until(lambda: "pod-agent: gone" in (parts.root / "controller.log").read_text(), "it is reported")
    looked_ns = alive.stat().st_mtime_ns
    parts.until(lambda: alive.stat().st_mtime_ns > looked_ns, "and the next round is over")
    done = parts.loom("node", "revoke", "pod-agent")
    assert done.returncode == 3 and "has no credential" in done.stderr, f"{done}\n{parts.logs()}"


def join(parts: Parts, token: str, key: str) -> dict[str, Any]:
    with Client(Endpoint(f"https://localhost:{parts.api_port}", "", ca=parts.env("node")["LOOM_CA"])) as api:
        return dict(api.join_pod({"token": token, "key": key}))


def test_a_pod_has_rights_of_its_own_until_they_are_revoked(parts: Parts) -> None:
    """Each pod becomes the node of its own name and no other. `loom node revoke` ends its connection to the
    bus and its token of the API, and its proof does not bring it back."""
    url, ca = f"https://localhost:{parts.api_port}", parts.env("node")["LOOM_CA"]
    seed, mine = new_seed(), parts.kubernetes.pod("default", "mine.0")
    got = join(parts, mine, public_key(seed))
    assert got["node"] == distinct_token("mine.0") != "mine.0"
    assert join(parts, mine, public_key(seed))["api_token"] == got["api_token"], "an answer that was lost"
    with pytest.raises(NotAllowed, match="has been admitted before"):
        join(parts, mine, public_key(new_seed()))
    for token, why in (
        (parts.kubernetes.pod("elsewhere", "mine.0"), "namespace elsewhere may not join"),
        ("not.a.token", "does not know this token"),
        (parts.secrets["torchloom-auth"]["token"], "no token of a pod"),
    ):
        with pytest.raises(NotAllowed, match=why):
            join(parts, token, public_key(new_seed()))

    node = JoinedNode(got["node"], "127.0.0.1", tuple(got["servers"]), (), seed, got["claims"])
    home = Home(parts.root / "mine")
    home.prepare()
    node.write(home, got["ca"])
    with Client(Endpoint(url, got["api_token"], ca=ca)) as api:
        api.nodes()
        with pytest.raises(NotAllowed, match="needs an admin"):
            api.revoke_node("pod-node")
        asyncio.run(_only_for_itself_and_cut_off(parts, node.bus(home), got["node"]))
        with pytest.raises(NotAllowed):
            api.nodes()
    with pytest.raises(NotAllowed, match="has been revoked"):
        join(parts, mine, public_key(new_seed()))


async def _only_for_itself_and_cut_off(parts: Parts, address: BusAddress, node: str) -> None:
    bus = await NatsBus.connect(address, name="mine", wait_s=HANG_S)
    with pytest.raises(NotAllowed):
        await bus.append("loom.v1.event.node.pod-node.report", b"x", id="x")
    for subject in ("loom.v1.command.pod-node", f"loom.v1.telemetry.{node}", "_INBOX.>"):
        with pytest.raises(NotAllowed):
            await bus.subscribe(subject, asyncio.sleep)  # type: ignore[arg-type]
    lost = asyncio.ensure_future(bus._link.until_lost())
    done = await asyncio.to_thread(parts.loom, "node", "revoke", node)
    assert done.returncode == 0, f"{done}\n{parts.logs()}"
    await asyncio.wait_for(lost, HANG_S)
    await bus.close()
    with pytest.raises(NotAllowed):
        await NatsBus.connect(address, name="mine", wait_s=HANG_S)
