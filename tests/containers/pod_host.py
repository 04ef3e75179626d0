"""Pods of the chart as containers of Docker, with what a kubelet gives them: the user, a root that cannot be
written, volumes as Kubernetes makes them (of root and the pod's group), variables, secrets, and names
that resolve. No Kubernetes: this class tells the stand-in of tests/kubernetes/kube_api_server.py, which runs
in a container too, which pods and nodes there are.

Fulfils what the story of tests/kubernetes/test_real_cluster.py asks of a cluster.
"""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import shutil
import sys
from pathlib import Path
from typing import Any

from docker_host import ROOT, DockerHost

sys.path.append(str(ROOT / "tests/kubernetes"))
import cluster_story as story
from kube_api_server import ACCOUNT_TOKEN
from manifests import Object, pod_templates, render

GROUP = 10001
SERVER = """
import json, sys, time
sys.path.append("/code")
from kube_api_server import ApiServer
with ApiServer("0.0.0.0", 6443) as server:
    while True:
        state = json.load(open("/state/state.json"))
        server.tokens = {token: tuple(of) for token, of in state["tokens"].items()}
        server.listed = {"pods": state["pods"], "nodes": state["nodes"]}
        time.sleep(0.2)
"""
HOST = "k1"
"""The only node of this cluster."""


class PodHost(story.Cluster):
    def __init__(self, docker: DockerHost, root: Path) -> None:
        super().__init__()
        self.docker, self.root, self.image = docker, root, docker.env["LOOM_IMAGE"]
        self.network = f"{docker.project}-pods"
        self.objects: list[Object] = []
        self.pods_by_name: dict[str, Object] = {}
        self.tokens: dict[str, tuple[str, str]] = {}
        self.unschedulable = self.job_ended = False
        self.claims = root / "claims"
        self.installed = 0
        self._subnet = f"10.{secrets.randbelow(256)}.{secrets.randbelow(256)}"
        self._addresses = 9
        """The last one given to a pod; Docker itself takes some of the first."""

    # -- what the kubelet does --------------------------------------------------------------------------
    def start_pod(self, name: str, template: Object, aliases: tuple[str, ...] = (), **env: str) -> None:
        spec = template["spec"]
        folder = self.root / f"pod-{name}"
        token = f"head.{self.namespace}-{name}.signature"
        self.tokens[token] = (self.namespace, name)
        volumes = {one["name"]: self._volume(folder, one, token) for one in spec.get("volumes", [])}
        volumes |= {one: self._empty(self.claims / name) for one in ("data",)}
        self.pods_by_name[name] = {
            "metadata": {"name": name, "labels": template["metadata"]["labels"]},
            "spec": {"nodeName": HOST},
            "status": {"phase": "Running"},
        }
        self._say()
        if spec.get("automountServiceAccountToken"):
            account = {"token": ACCOUNT_TOKEN}
            volumes["account"] = self._files(folder / "account", account)
        for container in spec.get("initContainers", []):
            self._container(name, container, spec, volumes, (), env, wait=True)
        for container in spec["containers"]:
            self._container(name, container, spec, volumes, aliases, env, wait=False)

    def _container(
        self,
        pod: str,
        container: Object,
        spec: Object,
        volumes: dict[str, Path],
        aliases: tuple[str, ...],
        env: dict[str, str],
        wait: bool,
    ) -> None:
        self._addresses += 1
        address = f"{self._subnet}.{self._addresses}"
        given = {"POD_NAME": pod, "POD_IP": address, **env}
        for one in container.get("env", []):
            source = one.get("valueFrom", {})
            if "secretKeyRef" in source:
                given[one["name"]] = self._secret(source["secretKeyRef"]["name"])[
                    source["secretKeyRef"]["key"]
                ]
            elif "value" in one:
                given[one["name"]] = re.sub(r"\$\((\w+)\)", lambda m: given[m[1]], one["value"])
        mounts = [
            f"{volumes[m['name']]}:{m['mountPath']}{':ro' if m.get('readOnly') else ''}"
            for m in container["volumeMounts"]
        ]
        if "account" in volumes:
            mounts.append(f"{volumes['account']}:/account:ro")
            given |= {"LOOM_KUBERNETES_URL": "http://api:6443", "LOOM_KUBERNETES_ACCOUNT": "/account"}
        words = [*container["command"], *container.get("args", [])]
        words = [re.sub(r"\$\((\w+)\)", lambda m: given[m[1]], word) for word in words]
        security = ["--read-only", "--user", f"{GROUP}:{GROUP}", "--cap-drop", "ALL"]
        security += ["--security-opt", "no-new-privileges", "--group-add", str(GROUP)]
        network = [
            "--network",
            self.network,
            "--ip",
            address,
            *(f"--network-alias={alias}" for alias in aliases),
        ]
        limit = container.get("resources", {}).get("limits", {}).get("memory", "")
        memory = ["--memory", limit.replace("Mi", "m").replace("Gi", "g")] if limit else []
        self.docker.run(
            *(
                "docker",
                "run",
                *([] if wait else ["-d"]),
                "--name",
                f"{self.network}-{pod}-{container['name']}",
            ),
            *("--label", self.network, *security, *network, *memory),
            *(word for mount in mounts for word in ("-v", mount)),
            *(word for name, value in given.items() for word in ("-e", f"{name}={value}")),
            *(self.image, *words),
        )

    def _volume(self, folder: Path, volume: Object, token: str) -> Path:
        where = folder / volume["name"]
        if "secret" in volume:
            found = self._secret(volume["secret"]["secretName"])
            keys = [item["key"] for item in volume["secret"].get("items", [])] or list(found)
            return self._files(where, {key: found[key] for key in keys})
        if "configMap" in volume:
            (public,) = [o["data"] for o in self.objects if o["kind"] == "ConfigMap"]
            return self._files(where, public)
        if "projected" in volume:
            return self._files(where, {"token": token})
        if "persistentVolumeClaim" in volume:
            return self._empty(self.claims / volume["persistentVolumeClaim"]["claimName"])
        return self._empty(where)

    def _empty(self, where: Path) -> Path:
        """As a kubelet makes an emptyDir for a pod with this fsGroup."""
        where.mkdir(parents=True, exist_ok=True)
        os.chown(where, 0, GROUP)
        where.chmod(0o2777)
        return where

    def _files(self, where: Path, files: dict[str, str]) -> Path:
        """As a kubelet mounts a secret: links to files of root and the pod's group."""
        kept = where / "..data"
        kept.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (kept / name).write_text(text)
            os.chown(kept / name, 0, GROUP)
            (kept / name).chmod(0o440)
            if not (where / name).is_symlink():
                (where / name).symlink_to(f"..data/{name}")
        return where

    def _secret(self, name: str) -> dict[str, str]:
        (found,) = [o for o in self.objects if o["kind"] == "Secret" and o["metadata"]["name"] == name]
        return {key: base64.b64decode(value).decode() for key, value in found["data"].items()}

    def _say(self) -> None:
        """To the API server."""
        spec = {"unschedulable": True} if self.unschedulable else {}
        state = {
            "tokens": self.tokens,
            "pods": [one for one in self.pods_by_name.values() if "torchloom.dev/agent" in _labels(one)],
            "nodes": [{"metadata": {"name": HOST}, "spec": spec}],
        }
        new = self.root / "state/state.new"
        new.parent.mkdir(exist_ok=True)
        new.write_text(json.dumps(state))
        new.replace(new.with_name("state.json"))

    def _name(self, pod: str, container: str) -> str:
        return f"{self.network}-{pod}-{container}"

    def _end_pod(self, pod: str, container: str, *how: str) -> None:
        self.docker.run("docker", *how, self._name(pod, container))

    # -- what Kubernetes' controllers do ----------------------------------------------------------------
    def _template(self, kind: str, name: str) -> Object:
        (found,) = [o for o in self.objects if o["kind"] == kind and o["metadata"]["name"].endswith(name)]
        return pod_templates(found)[0]

    def install(self, *flags: str) -> None:
        first = not self.installed
        made = render(*self.values(), "--set", "nats.replicas=1", *flags, namespace=self.namespace)
        secret = {"Secret", "ConfigMap"}
        kept = [o for o in self.objects if o["kind"] in secret]
        self.objects = [*kept, *(o for o in made if o["kind"] not in secret)] if kept else made
        self.installed += 1
        if first:
            self.docker.run("docker", "network", "create", f"--subnet={self._subnet}.0/24", self.network)
            self._say()
            code = ROOT / "tests/kubernetes"
            self.docker.run(
                *("docker", "run", "-d", "--label", self.network, "--name", self._name("api", "server")),
                *("--network", self.network, "--network-alias", "api", "-v", f"{code}:/code:ro"),
                *("-v", f"{self.root / 'state'}:/state:ro", self.image, "python3", "-u", "-c", SERVER),
            )
            service = f"torchloom-nats.{self.namespace}.svc"
            self.start_pod(
                "torchloom-nats-0",
                self._template("StatefulSet", "nats"),
                (f"torchloom-nats-0.{service}", service),
            )
        api = (f"torchloom.{self.namespace}.svc",)
        if first or any("keepHistory" in flag for flag in flags):
            for number in (0, 1):
                old = f"torchloom-weaver-{self.installed - 1}-{number}"
                if old in self.pods_by_name:
                    self._end_pod(old, "weaver", "stop", "-t", "30")
                    del self.pods_by_name[old]
                name = f"torchloom-weaver-{self.installed}-{number}"
                self.start_pod(name, self._template("Deployment", "weaver"), api)
                self.wait(lambda: self.ask("nodes") is not None, "the control service answers")
        if first:
            self.start_pod("torchloom-controller-0", self._template("Deployment", "controller"))
        if any("daemonset.enabled" in flag for flag in flags):
            self.start_pod("torchloom-agent-0", self._template("DaemonSet", "agent"))

    def _train(self, index: int) -> None:
        name = f"train-{index}-{secrets.token_hex(3)}"
        # As an operator of Kubernetes sets it for a pod of an Indexed Job.
        self.start_pod(name, self.job_template, JOB_COMPLETION_INDEX=str(index))

    def _replace(self, pod: str) -> None:
        self._train(int(pod.split("-")[1]))

    def _look(self) -> None:
        """Note which training pods have ended, and replace those that were taken away."""
        for name, pod in list(self.pods_by_name.items()):
            if not name.startswith("train-") or pod["status"]["phase"] != "Running":
                continue
            state = json.loads(self.docker.run("docker", "inspect", self._name(name, "node")).stdout)[0][
                "State"
            ]
            if state["Running"]:
                continue
            pod["status"]["phase"] = "Succeeded" if state["ExitCode"] == 0 else "Failed"
            if state["ExitCode"]:
                del self.pods_by_name[name]
                if self.unschedulable:
                    self.pending.append(name)
                else:
                    self._replace(name)
            self._say()

    # -- what the story asks for ------------------------------------------------------------------------
    pending: list[str]

    def loom(self, *args: str, check: bool = True) -> str:
        weaver = next(name for name in self.pods_by_name if "weaver" in name)
        words = ["sh", "-c", f'{story.WHERE} exec loom "$@"', "loom", *args]
        done = self.docker.run("docker", "exec", self._name(weaver, "weaver"), *words, check=check)
        if hasattr(self, "job_template"):
            self._look()
        return done.stdout if not done.returncode else ""

    def kubectl(self, *words: str, given: str | None = None, check: bool = True) -> str:
        match words[0]:
            case "rollout":
                return ""
            case "apply":
                one = json.loads(given or "")
                if one["kind"] == "Job":
                    self.job_template, self.pending = pod_templates(one)[0], []
                    for index in (0, 1):
                        self._train(index)
                return ""
            case "delete":
                self._end_pod(words[2], "node", "kill")
                return ""
        raise AssertionError(f"kubectl {words}")

    def get(self, *words: str) -> Any:
        self._look()
        match words[0]:
            case "pods":
                return {"items": [p for n, p in self.pods_by_name.items() if n.startswith("train-")]}
            case "job":
                ended = [p["status"]["phase"] for n, p in self.pods_by_name.items() if n.startswith("train-")]
                return {"status": {"succeeded": ended.count("Succeeded")}}
            case "daemonset":
                return {"status": {"desiredNumberScheduled": 1}}
        return {"items": []}

    def run(
        self, *command: str, given: str | None = None, check: bool = True, limit_s: float = story.ANSWER_S
    ) -> str:
        match command[1:]:
            case ("cordon" | "uncordon" as what, _):
                self.unschedulable = what == "cordon"
                self._say()
                for pod in [] if self.unschedulable else self.pending:
                    self._replace(pod)
                return ""
            case ("create", "--raw", _, *_):
                name = json.loads(given or "")["metadata"]["name"]
                grace = self.job_template["spec"]["terminationGracePeriodSeconds"]
                self._end_pod(name, "node", "stop", "-t", str(grace))
                self._look()
                return ""
            case ("uninstall", *_) | ("get", "clusterroles,clusterrolebindings", *_):
                return ""
        return super().run(*command, given=given, check=check, limit_s=limit_s)

    def facts(self) -> str:
        found = [self.docker.run("docker", "ps", "-a", "--filter", f"label={self.network}").stdout]
        for name in self.docker.run(
            "docker", "ps", "-a", "--filter", f"label={self.network}", "--format", "{{.Names}}"
        ).stdout.split():
            done = self.docker.run("docker", "logs", "--tail=25", name, check=False)
            found.append(f"--- {name}\n{done.stdout[-2500:]}{done.stderr[-2500:]}")
        return "\n".join(found)

    def clean(self) -> None:
        names = self.docker.run("docker", "ps", "-aq", "--filter", f"label={self.network}").stdout.split()
        if names:
            self.docker.run("docker", "rm", "-f", *names, check=False)
        self.docker.run("docker", "network", "rm", self.network, check=False)
        shutil.rmtree(self.claims, ignore_errors=True)


def _labels(pod: Object) -> dict[str, str]:
    found: dict[str, str] = pod["metadata"]["labels"]
    return found
