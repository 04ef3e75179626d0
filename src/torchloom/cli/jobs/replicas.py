"""`--replicas N`: one torchft job as N jobs, one for each replica, submitted, followed and stopped together.

Each replica is a job of its own, so losing one restarts that one and nothing else. They share a lighthouse.
"""

from __future__ import annotations

import contextlib
import threading
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torchloom.cli.jobs.follow import Follower
from torchloom.errors import LoomError, NotFound, UsageError
from torchloom.home import Home

if TYPE_CHECKING:
    from torchloom.client import Client, Endpoint
    from torchloom.client.schema import JobRequest

SET_LABEL = "replica-set"
MOST_REPLICAS = 64


def replica_requests(options: Namespace, body: JobRequest) -> list[JobRequest]:
    """One request for each replica."""
    size, least = options.replicas, options.min_replicas or 1
    if not 1 <= size <= MOST_REPLICAS:
        raise UsageError(f"--replicas takes a number from 1 to {MOST_REPLICAS}, not {size}.")
    if not 1 <= least <= size:
        raise UsageError(f"--min-replicas takes a number from 1 to {size}, not {least}.")
    if (body["nodes"] or 1) > 1:
        raise UsageError("A replica of a torchft job runs on one node: use --replicas without --nnodes.")
    name = str(body["name"])
    made: list[JobRequest] = []
    for index in range(size):
        one: JobRequest = {
            **body,
            "name": f"{name}-r{index}",
            "labels": {**body["labels"], SET_LABEL: name},
            "replica": {"set": name, "index": index, "size": size, "min_replicas": least},
        }
        made.append(one)
    return made


def send_all(home: Home, bodies: Sequence[JobRequest]) -> list[str]:
    """All or none: if one is refused, those before it are stopped."""
    from torchloom.cli.jobs.submit import send
    from torchloom.client import Client, Endpoint

    made: list[str] = []
    try:
        for body in bodies:
            made.append(send(home, body))
    except LoomError:
        for job in made:
            with contextlib.suppress(LoomError):
                Client(Endpoint.find(home)).stop(job, {"kill": True})
        raise
    return made


def follow_all(
    endpoint: Endpoint, jobs: Sequence[str], home: Home | None, shown: frozenset[int] | None, quiet: bool
) -> int:
    """Follow all replicas to their end. Returns the worst of their exit codes; Ctrl-C stops all of them."""
    rest = [ReplicaFollower(endpoint, job, home, shown, quiet) for job in jobs[1:]]
    first = ReplicaFollower(endpoint, jobs[0], home, shown, quiet)
    first.siblings = rest
    codes: list[int] = []
    threads = [threading.Thread(target=lambda f=one: codes.append(f.run()), daemon=True) for one in rest]
    for thread in threads:
        thread.start()
    with first.all_signals():
        codes.append(first.run())
        for thread in threads:
            while thread.is_alive():  # with a limit, so that signals are seen
                thread.join(0.1)
                first.pass_on()
    return max(codes)


class ReplicaFollower(Follower):
    """Follows one replica; marks its lines with its job's name."""

    siblings: Sequence[ReplicaFollower] = ()

    def _show_log(self, body: dict[str, Any]) -> None:
        replica = self._job.rpartition("-")[2]
        marked = "\n".join(f"{replica} {line}" for line in body["text"].removesuffix("\n").split("\n"))
        super()._show_log({**body, "text": marked})

    def _say(self, text: str, mark: str = "") -> None:
        super()._say(text if text.startswith(self._job) else f"{self._job}: {text}", mark)

    @contextlib.contextmanager
    def all_signals(self) -> Iterator[None]:
        with super()._signals():
            yield

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        yield  # the main thread has them

    def _act_on_interrupt(self) -> None:
        self.pass_on()
        super()._act_on_interrupt()

    def pass_on(self) -> None:
        for sibling in self.siblings:
            sibling._interrupts = max(sibling._interrupts, self._interrupts)


def steered(client: Client, name: str) -> str:
    """The job to name in a change: of a torchft job any replica stands for all of them."""
    found = members(client, [name])
    if found == [name]:
        return name
    alive = [job for job in found if not client.job(job)["ended"]]
    return (alive or found)[0]


def members(client: Client, names: Iterable[str]) -> list[str]:
    """Names of jobs; the name of a torchft job stands for its replicas."""
    found: dict[str, None] = {}
    for name in names:
        try:
            client.job(name)
        except NotFound:
            replicas = [job["id"] for job in client.jobs(label=[f"{SET_LABEL}={name}"])]
            if not replicas:
                raise
            found |= dict.fromkeys(replicas)
        else:
            found[name] = None
    return list(found)
