"""Filters, sorts and cuts lists of jobs into pages. Pure.

A cursor is the place of the last job shown in the order asked for, so jobs that are added or removed
meanwhile neither repeat nor hide others.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from torchloom.errors import UsageError
from torchloom.model.fleet import Job

Sort = Literal["submitted", "-submitted", "ended", "-ended", "id", "-id", "state", "-state"]
Place = tuple[int | str, str]

_KEYS: dict[str, Callable[[Job], Place]] = {
    "submitted": lambda job: (job.submitted_at_ns, job.id),
    "ended": lambda job: (job.ended_at_ns, job.id),
    "id": lambda job: (job.id, job.id),
    "state": lambda job: (str(job.state), job.id),
}


def select(jobs: Iterable[Job], states: Iterable[str], labels: Iterable[str], active: bool) -> list[Job]:
    """Jobs in one of the states (any, if none is named) that have all the labels: `key` or `key=value`."""
    wanted, pairs = set(states), [text.partition("=") for text in labels]
    return [
        job
        for job in jobs
        if (not wanted or str(job.state) in wanted)
        and not (active and job.ended)
        and all(
            key in job.spec.labels and (not eq or job.spec.labels[key] == value) for key, eq, value in pairs
        )
    ]


def page(jobs: list[Job], sort: Sort, cursor: str, limit: int) -> tuple[list[Job], str]:
    """One page, and the cursor of the next one; empty when this was the last."""
    key, backward = _KEYS[sort.removeprefix("-")], sort.startswith("-")
    ordered = sorted(jobs, key=key, reverse=backward)
    if cursor:
        last = parse_cursor(cursor, sort)
        ordered = [j for j in ordered if (key(j) < last if backward else key(j) > last)]
    shown = ordered[:limit]
    more = len(ordered) > limit
    return shown, format_cursor(sort, key(shown[-1])) if more else ""


def format_cursor(sort: str, place: Place) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode((sort, *place))).decode().rstrip("=")


def parse_cursor(text: str, sort: str) -> Place:
    kind = int if sort.removeprefix("-") in ("submitted", "ended") else str
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        made_for, first, id = msgspec.json.decode(data, type=tuple[str, kind, str])  # type: ignore[valid-type]
    except (ValueError, binascii.Error, msgspec.DecodeError):
        raise UsageError("The cursor is not one of ours.") from None
    if made_for != sort:
        raise UsageError("The cursor was made for another order.")
    return first, id
