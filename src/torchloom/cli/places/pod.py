"""`loom pod`: what a training pod runs: an agent, and in the first pod the submission of the job.

Every pod of a JobSet or TrainJob runs the same command. Each is one node, named after its pod. The first one
submits the job, unless it has been submitted before, and prints its log; all of them end when the job ends,
with its status. SIGTERM means that the pod is taken away: the agent lets its jobs save and leave, then the
pod ends with 143, and its replacement is a new node on which the job continues.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torchloom.errors import Conflict, LoomError, NotFound, TimedOut, UsageError
from torchloom.model.ids import distinct_token

if TYPE_CHECKING:
    from torchloom.client import Client
    from torchloom.client.schema import JobDetail

EXAMPLE = "example: loom pod --nnodes 2 --nproc-per-node 8 train.py; see deploy/kubernetes/jobset.yaml"
JOB_FAILED = 70
"""Exit code if the job has failed: another pod would not help (the chart's podFailurePolicy knows it). A job
that a person stopped ends well: nobody wants it to be started again."""
LOOK_S = 5.0
LOG_WITHIN_S = 60.0
"""For the last lines of the log, after the job has ended."""
AGAIN_S = 2.0
ATTEMPT = "pod-attempt"
"""Label of a job: which attempt of the JobSet submitted it."""


def main(argv: Sequence[str]) -> int:
    if argv[:1] in (["-h"], ["--help"]):
        print(f"usage: loom pod [flags of `loom run`] script.py [arguments]\n\n{__doc__}\n{EXAMPLE}")
        return 0
    return Pod(list(argv), dict(os.environ)).run()


class Pod:
    def __init__(self, argv: list[str], env: dict[str, str]) -> None:
        self._argv, self._env = argv, env
        self._ends = threading.Event()
        self._agent: subprocess.Popen[bytes] | None = None
        self._log: subprocess.Popen[bytes] | None = None

    @property
    def job(self) -> str:
        """The job of all pods of one JobSet or TrainJob."""
        found = self._env.get("LOOM_POD_JOB", "") or self._env.get("JOB_ID", "")
        if not found:
            raise UsageError("LOOM_POD_JOB is not set", hint="set it to the name of the JobSet or TrainJob")
        return distinct_token(found)

    @property
    def is_first(self) -> bool:
        index = self._env.get("JOB_COMPLETION_INDEX") or self._env.get("PET_NODE_RANK") or "0"
        return index == "0"

    @property
    def attempt(self) -> str:
        return self._env.get("LOOM_POD_ATTEMPT", "") or "0"

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._ends.set())
        if self._env.get("LOOM_POD_AGENT", "here") == "here":
            self._agent = self._start("agent", *self._agent_flags())
        try:
            return self._follow()
        finally:
            self._close()

    def _agent_flags(self) -> list[str]:
        address = self._env.get("POD_IP", "")
        return ["--address", address] if address else []

    def _start(self, *words: str, **env: str) -> subprocess.Popen[bytes]:
        # A session of its own: a signal to our group must not reach the agent before we pass it on.
        command = [sys.executable, "-P", "-m", "torchloom.cli", *words]
        return subprocess.Popen(command, start_new_session=True, env=self._env | env)

    def _follow(self) -> int:
        from torchloom.cli.places.trainer_status import TrainerStatus

        status = TrainerStatus.of(self._env) if self.is_first else None
        submitted = not self.is_first
        while not self._ends.is_set():
            if self._agent is not None and self._agent.poll() is not None:
                print(f"loom: the agent of this pod ended with {self._agent.returncode}", file=sys.stderr)
                return self._agent.returncode or 1
            try:
                submitted = submitted or self._submit()
                view = self._look()
            except (Conflict, UsageError):
                raise  # waiting would not help
            except LoomError as error:
                print(f"loom: {error}; trying again", file=sys.stderr)
                view = None
            if view is not None:
                if status is not None:
                    status.send(view)
                if view["ended"]:
                    print(f"loom: {self.job} {view['state']}: {view['reason']}", file=sys.stderr)
                    return JOB_FAILED if view["state"] == "failed" else 0
            self._ends.wait(LOOK_S if view is not None else AGAIN_S)
        return 128 + signal.SIGTERM

    def _client(self) -> Client:
        from torchloom.client import Client, Endpoint

        token = self._token()
        if not token:
            return Client(Endpoint.find())
        return Client(Endpoint(self._env.get("LOOM_ADDRESS", ""), token, ca=self._env.get("LOOM_CA", "")))

    def _token(self) -> str:
        """This pod's own token of the API, which its agent got when it joined; empty if others are used."""
        from torchloom.cli.cluster.node_files import JoinedNode
        from torchloom.home import Home

        if self._env.get("LOOM_TOKEN") or not self._env.get("LOOM_ADDRESS"):
            return ""
        home = self._env.get("LOOM_POD_HOME", "")
        joined = JoinedNode.read(Home(Path(home)) if home else Home.default())
        if joined is None:
            raise TimedOut("the agent of this pod has not joined yet")
        return joined.api_token

    def _submit(self) -> bool:
        """Submit the job, unless this attempt has; what an earlier attempt left is replaced."""
        from torchloom.cli.jobs import flags
        from torchloom.cli.jobs.request import job_request

        words = ["--queue", "--name", self.job, "--label", f"{ATTEMPT}={self.attempt}", *self._argv]
        options = flags.parse("run", words)
        with self._client() as client:
            try:
                known = client.job(self.job)
            except NotFound:
                known = None
            if known is not None and known["ended"] and known["labels"].get(ATTEMPT) != self.attempt:
                client.delete(self.job)
                known = None
            if known is None:
                body = job_request(options, self._env, os.getcwd())
                body["labels"] = {**body.get("labels", {}), "pod": self._env.get("LOOM_NODE_FROM", "")[:63]}
                client.submit(body, idempotency_key=f"pod-{self.job}-{self.attempt}")
        token = self._token()
        self._log = self._start("logs", "--follow", self.job, **({"LOOM_TOKEN": token} if token else {}))
        return True

    def _look(self) -> JobDetail | None:
        """The job of this attempt; None while it is not submitted."""
        with self._client() as client:
            try:
                found = client.job(self.job)
            except NotFound:
                return None
        return found if found["labels"].get(ATTEMPT) == self.attempt else None

    def _close(self) -> None:
        if self._log is not None:
            end = time.monotonic() + LOG_WITHIN_S
            while self._log.poll() is None and not self._ends.is_set() and time.monotonic() < end:
                time.sleep(0.1)  # it prints the last lines and ends by itself
            if self._log.poll() is None:
                self._log.terminate()
            self._log.wait()
        if self._agent is not None:
            self._agent.terminate()  # it leaves: its jobs are saved first
            self._agent.wait()
