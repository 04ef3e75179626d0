"""A whole job in one file: how it went, curves, ranks over time, incidents, changes and checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchloom.report.charts import curve, ranks_over_time
from torchloom.report.incident import section
from torchloom.report.markup import Html, moment, page, span, table, tag

if TYPE_CHECKING:
    from torchloom.client.schema import (
        CheckpointView,
        HistoryView,
        IncidentDetail,
        JobDetail,
        JobSeries,
        RankSeries,
        SeriesView,
    )

CURVES = 40
"""More named values than this are listed, not drawn: a file that opens at once is worth more."""
_FIRST = ("loss", "step_time", "steps_per_s", "lr")


@dataclass(frozen=True)
class JobRecord:
    """What a report is made of: answers of the API, of one moment."""

    job: JobDetail
    series: JobSeries
    ranks: RankSeries
    incidents: Sequence[IncidentDetail]
    changes: Sequence[HistoryView]
    checkpoints: Sequence[CheckpointView]


def job_page(record: JobRecord) -> str:
    """The whole file."""
    job = record.job
    return page(
        f"{job['id']}: {job['state']}",
        tag("h1", job["id"]),
        tag(
            "p",
            tag("span", job["state"], kind="tag bad" if job["state"] == "failed" else "tag"),
            " ",
            job["reason"],
        ),
        tag("p", f"As of {moment(record.series['as_of_ns'])}. Times are UTC.", kind="soft"),
        _figures(job),
        tag("h2", "Curves"),
        *_curves(record),
        tag("h2", "Ranks over time"),
        tag(
            "p",
            "Own time of a step, without waiting for others. Darker means slower than the median.",
            kind="soft",
        ),
        ranks_over_time(
            record.ranks["at_s"], record.ranks["rows"], record.ranks["ranks_per_row"], "ms per step"
        ),
        tag("h2", f"Incidents ({len(record.incidents)})"),
        *([section(one) for one in record.incidents] or [tag("p", "None.")]),
        tag("h2", f"Changes ({len(record.changes)})"),
        _changes(record.changes),
        tag("h2", f"Checkpoints ({len(record.checkpoints)})"),
        _checkpoints(record.checkpoints),
    )


def _figures(job: JobDetail) -> Html:
    steps = f"{job['step']} of {job['total_steps']}" if job["total_steps"] else f"{job['step']}"
    good = "–" if job["goodput"] is None else f"{job['goodput']:.1%}"
    loss = "–" if job["last_loss"] is None else f"{job['last_loss']}"
    return table(
        ("what", "value"),
        (
            ("program", job["program"]),
            ("submitted by", job["by"]),
            ("started", moment(job["started_at_ns"])),
            ("ended", moment(job["ended_at_ns"])),
            ("ran for", span(job["elapsed_s"])),
            ("workers", job["world_size"]),
            ("steps", steps),
            ("steps per second", f"{job['steps_per_s']:.3g}"),
            ("goodput", good),
            ("last loss", loss),
            ("restarts", f"{job['restarts']} of at most {job['max_restarts']}"),
        ),
    )


def _curves(record: JobRecord) -> list[Html]:
    marks = [
        (one["at_ns"] / 1e9, f"{_version(one)}: {one['state']}, by {one['by']}") for one in record.changes
    ] + [(one["timeline"]["detected_ns"] / 1e9, f"{one['id']}: {one['kind']}") for one in record.incidents]
    ordered = sorted(record.series["series"], key=lambda one: (_place(one), one["name"]))
    still = [one for one in ordered if _constant(one) is not None]
    ordered = [one for one in ordered if _constant(one) is None]
    drawn = [
        tag(
            "figure",
            tag("figcaption", one["name"]),
            curve(one["name"], one["at_s"], one["mean"], one["low"], one["high"], marks),
        )
        for one in ordered[:CURVES]
    ]
    left = [one["name"] for one in ordered[CURVES:]]
    if left:
        drawn.append(tag("p", f"Not drawn: {', '.join(left)}.", kind="soft"))
    if still:
        values = ", ".join(f"{one['name']} = {_constant(one):.6g}" for one in still)
        drawn.append(tag("p", f"Did not change: {values}.", kind="soft"))
    if marks:
        drawn.append(tag("p", "Dashed lines mark changes and incidents.", kind="soft"))
    return drawn or [tag("p", "No numbers were recorded.")]


def _constant(one: SeriesView) -> float | None:
    """Its value, if it always had the same one."""
    known = {value for row in (one["low"], one["high"]) for value in row if value is not None}
    return known.pop() if len(known) == 1 else None


def _place(one: SeriesView) -> int:
    return next((number for number, name in enumerate(_FIRST) if name in one["name"]), len(_FIRST))


def _version(one: HistoryView) -> str:
    return f"version {one['version']}" if one["version"] else "a change"


def _changes(changes: Sequence[HistoryView]) -> Html:
    if not changes:
        return tag("p", "None.")
    return table(
        ("version", "when", "by", "step", "what", "outcome"),
        (
            (
                one["version"] or "–",
                moment(one["at_ns"]),
                one["by"],
                "–" if one["step"] is None else one["step"],
                ", ".join(f"{name} = {value}" for name, value in one["values"].items()),
                f"{one['state']} {one['reason']}".strip(),
            )
            for one in changes
        ),
    )


def _checkpoints(checkpoints: Sequence[CheckpointView]) -> Html:
    if not checkpoints:
        return tag("p", "None.")
    return table(
        ("name", "step", "made", "size", "where", "state"),
        (
            (
                one["name"],
                one["step"],
                moment(one["created_ns"]),
                f"{one['size'] / 1e6:.3g} MB",
                one["where"],
                ("whole" if one["whole"] else f"damaged: {one['why']}")
                + (", pinned" if one["pinned"] else ""),
            )
            for one in checkpoints
        ),
    )
