"""Readings as rows of tables: sorted and filtered, all of it text that a terminal only shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torchloom.cli.show import output
from torchloom.terminal import visible

if TYPE_CHECKING:
    from torchloom.client.schema import IncidentView, JobSummary, RanksNow

JOB_COLUMNS = ("JOB", "STATE", "STEP", "SPEED", "LOSS", "ETA", "WORKERS", "GOODPUT", "RESTARTS")
_SPARE = ("RESTARTS", "GOODPUT", "WORKERS", "ETA", "LOSS")
"""Dropped in this order on a narrow terminal: half a number is a wrong number."""
_PADDING = 2
RANK_COLUMNS = ("RANK", "NODE", "STEP", "PHASE", "OWN", "WAIT", "DATA", "COSTS")
INCIDENT_COLUMNS = ("INCIDENT", "STATE", "KIND", "VERDICT")
SORTS: dict[str, Callable[[JobSummary], Any]] = {
    "newest": lambda job: -job["submitted_at_ns"],
    "name": lambda job: job["id"],
    "state": lambda job: (job["ended"], job["state"], job["id"]),
    "speed": lambda job: -job["steps_per_s"],
    "goodput": lambda job: 2.0 if job["goodput"] is None else job["goodput"],
}
RANK_SORTS = ("rank", "costs", "step")

Row = tuple[str, tuple[str, ...]]
"""A key that stays the same while the row changes, and its cells."""


def job_rows(jobs: list[JobSummary], sort: str, wanted: str) -> list[Row]:
    chosen = sorted((job for job in jobs if _matches(wanted, job["id"], job["state"])), key=SORTS[sort])
    return [
        (
            job["id"],
            (
                visible(job["id"]),
                output.state(job),
                output.steps(job),
                output.rate(job["steps_per_s"]),
                output.number(job["last_loss"]),
                output.time_left(job["eta_s"]),
                f"{job['running_workers']}/{job['wanted_workers']}",
                output.percent(job["goodput"]),
                f"{job['restarts']}",
            ),
        )
        for job in chosen
    ]


def that_fit(rows: list[Row], width: int) -> tuple[str, ...]:
    """The columns of jobs that are shown whole in this width; 0: the width is not known yet."""
    kept = list(JOB_COLUMNS)
    lengths = {
        name: _PADDING + max(len(name), *(len(cells[at]) for _, cells in rows), 0)
        for at, name in enumerate(JOB_COLUMNS)
    }
    for name in _SPARE:
        if width and sum(lengths[one] for one in kept) > width:
            kept.remove(name)
    return tuple(kept)


def only(columns: tuple[str, ...], rows: list[Row]) -> list[Row]:
    """These columns of the rows of jobs."""
    places = [JOB_COLUMNS.index(name) for name in columns]
    return [(key, tuple(cells[at] for at in places)) for key, cells in rows]


def rank_rows(found: RanksNow, sort: str) -> list[Row]:
    """Ranks of one job; those that cost most first, or those that are behind."""
    places = list(range(len(found["rank"])))
    if sort == "costs":
        places.sort(key=lambda i: -(found["lost_share"][i] or 0.0))
    elif sort == "step":
        places.sort(key=lambda i: found["step"][i])
    return [
        (
            str(found["rank"][i]),
            (
                str(found["rank"][i]),
                visible(found["nodes"][found["node"][i]]),
                str(found["step"][i]) if found["alive"][i] else f"{found['step'][i]} (gone)",
                visible(found["phases"][found["phase"][i]]) or "–",
                _time(found["own_s"][i]),
                _time(found["wait_s"][i]),
                _time(found["data_s"][i]),
                "–" if found["lost_share"][i] is None else output.percent(found["lost_share"][i]),
            ),
        )
        for i in places
    ]


def incident_rows(found: list[IncidentView], wanted: str) -> list[Row]:
    """Open ones first, then the newest."""
    chosen = [one for one in found if _matches(wanted, one["id"], one["job"], one["kind"])]
    chosen.sort(key=lambda one: (not one["open"], -one["timeline"]["detected_ns"]))
    return [
        (
            one["id"],
            (
                visible(one["id"]),
                "open" if one["open"] else "over",
                visible(one["kind"]),
                visible(one["verdict"]).replace("\n", " "),
            ),
        )
        for one in chosen[:200]
    ]


def _matches(wanted: str, *texts: str) -> bool:
    return not wanted or any(wanted.lower() in text.lower() for text in texts)


def _time(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:.3g} ms"
