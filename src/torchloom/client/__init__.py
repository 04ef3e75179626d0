"""A typed, synchronous client of the HTTP API, generated from its OpenAPI description. The CLI uses it too.

    from torchloom.client import Client, Endpoint

    client = Client(Endpoint.find())              # LOOM_ADDRESS and LOOM_TOKEN, else this host's stack
    job = client.submit({"world_size": 2})["job"]
    print(client.job(job)["state"])

`operations` and `schema` are generated; `transport` is HTTP with a token, `endpoint` where the service is.
Answers are plain dicts with a TypedDict for the type checker (`torchloom.client.schema`); errors are those of
`torchloom.errors`. Needs only the standard library. It neither prints nor chooses a cluster.
"""

from typing import TYPE_CHECKING

from torchloom.client.endpoint import Endpoint, NothingHere
from torchloom.client.operations import Operations
from torchloom.client.transport import Event, NotAnswering, Unavailable

if TYPE_CHECKING:
    from typing import Literal

    from torchloom.client.schema import JobSummary

    State = Literal[
        "waiting",
        "starting",
        "running",
        "recovering",
        "backoff",
        "stopping",
        "completed",
        "failed",
        "stopped",
    ]
    Sort = Literal["submitted", "-submitted", "ended", "-ended", "id", "-id", "state", "-state"]


class Client(Operations):
    """Every operation of the API as a method. One connection; one thread at a time."""

    def all_jobs(
        self,
        *,
        state: "list[State] | None" = None,
        label: list[str] | None = None,
        active: bool | None = None,
        sort: "Sort | None" = None,
    ) -> "list[JobSummary]":
        """`jobs`, page after page."""
        found = self.jobs(state=state, label=label, active=active, sort=sort)
        while self.next_cursor:
            found += self.jobs(state=state, label=label, active=active, sort=sort, cursor=self.next_cursor)
        return found

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


__all__ = ["Client", "Endpoint", "Event", "NotAnswering", "NothingHere", "Unavailable"]
