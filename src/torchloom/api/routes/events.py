"""The route of the one event stream: everything that happens to jobs, workers, incidents, nodes and devices.

The id of an event is its place in the durable stream, so a client that reconnects with Last-Event-ID misses
nothing, whichever service it asks. If events are no longer kept, the stream sends `reset`: read everything
again, then continue with the stream.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import APIRouter, Header, Query

from torchloom.api.find import job_of
from torchloom.api.ports import Control
from torchloom.api.schemas.bodies import EventView, JobId, ResetView
from torchloom.api.sse import COMMENT, KEEP_ALIVE_S, EventStream, event
from torchloom.errors import UsageError
from torchloom.model.notice import Notice, Topic

GATHER_S = 0.05
"""Events that come within this time travel together: many followers cost a packet each time."""
AT_ONCE = 256
RENDERED = 2048

PLACE = r"^[0-9]{1,15}$"


class Renderer:
    """Each notice is encoded once, however many clients follow."""

    def __init__(self) -> None:
        self._made: OrderedDict[int, tuple[Notice, bytes]] = OrderedDict()

    def __call__(self, notice: Notice) -> bytes:
        known = self._made.get(notice.seq)
        if known is not None and known[0] is notice:
            return known[1]
        data = event(notice.topics[0], notice, str(notice.seq))
        self._made[notice.seq] = (notice, data)
        if len(self._made) > RENDERED:
            self._made.popitem(last=False)
        return data


def routes(control: Control) -> APIRouter:
    router = APIRouter(tags=["events"])
    render = Renderer()

    @router.get(
        "/events",
        operation_id="events",
        status_code=200,
        response_class=EventStream,
        responses={200: {"model": EventView | ResetView, "description": "A stream of server-sent events"}},
    )
    async def events(
        topic: Annotated[list[Topic] | None, Query()] = None,
        kind: Annotated[list[str] | None, Query(max_length=32)] = None,
        job: Annotated[JobId | None, Query()] = None,
        after: Annotated[int | None, Query(ge=0, le=2**53)] = None,
        follow: bool = True,
        last_event_id: Annotated[str | None, Header(pattern=PLACE)] = None,
    ) -> EventStream:
        """Live from now on, or from `after` or `Last-Event-ID`. With `follow=false` it ends with the present.

        `after=0` begins with the oldest event that is kept. Where events after another place are no longer
        kept, a `reset` comes first.

        `topic` is job, worker, incident, node, device, config or system (the last only when asked for);
        `kind` is the name of an event such as `worker-exited`.
        """
        if job is not None and after is None and last_event_id is None:
            job_of(control, job)
        place = control.fleet.seq if after is None else after
        if last_event_id is not None:
            place = int(last_event_id)
        from_oldest = after == 0 and last_event_id is None
        return EventStream(
            _follow(control, render, WantedNotices(topic, kind, job), place, follow, from_oldest)
        )

    return router


class WantedNotices:
    """Which notices a client asked for."""

    def __init__(self, topics: list[Topic] | None, kinds: list[str] | None, job: str | None) -> None:
        if any(len(kind) > 64 for kind in kinds or ()):
            raise UsageError("No event has so long a name.")
        self._topics, self._kinds, self._job = set(topics or ()), set(kinds or ()), job

    def __call__(self, notice: Notice) -> bool:
        if self._topics:
            if not self._topics.intersection(notice.topics):
                return False
        elif notice.topics == ("system",) and not self._kinds:
            return False
        if self._kinds and notice.kind not in self._kinds:
            return False
        return self._job is None or notice.job == self._job or any(c.id == self._job for c in notice.jobs)


async def _follow(
    control: Control, render: Renderer, wanted: WantedNotices, place: int, follow: bool, from_oldest: bool
) -> AsyncGenerator[bytes, None]:
    clock = asyncio.get_running_loop().time
    yield b": torchloom events\nretry: 500\n\n"
    spoke = clock()
    if not await control.reach_back(place):
        if from_oldest:
            place = control.notices_from()
        else:
            place = control.fleet.seq
            yield _reset(place, "events since then are no longer kept")
    while True:
        notices = control.notices(place, AT_ONCE)
        if notices is None:
            # The client reads slower than events arrive. One that only paused between two reads reconnects.
            if not await control.reach_back(place):
                place = control.fleet.seq
                yield _reset(place, "this client was too slow; the events it missed are no longer kept")
            continue
        if notices:
            place = notices[-1].seq
            chunk = b"".join(render(notice) for notice in notices if wanted(notice))
            if chunk:
                spoke = clock()
                yield chunk
        if len(notices) == AT_ONCE:
            continue
        if not follow:
            return
        if clock() - spoke > KEEP_ALIVE_S:
            spoke = clock()
            yield COMMENT
        await control.changed(
            max(place, control.fleet.seq), KEEP_ALIVE_S - min(KEEP_ALIVE_S, clock() - spoke) + 0.1
        )
        await asyncio.sleep(GATHER_S)


def _reset(place: int, why: str) -> bytes:
    return event("reset", {"seq": place, "reason": why}, str(place))
