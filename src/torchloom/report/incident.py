"""One incident: verdict first, then whether it is over, what was lost, the timeline and the evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchloom.report.markup import Html, joined, moment, page, safe, span, table, tag

if TYPE_CHECKING:
    from torchloom.client.schema import FindingView, IncidentDetail, IncidentView

_MOMENTS = (
    ("fault_ns", "fault"),
    ("first_sign_ns", "first sign"),
    ("detected_ns", "detected"),
    ("decided_ns", "decided"),
    ("stopped_ns", "workers stopped"),
    ("spawned_ns", "new workers started"),
    ("restored_ns", "state restored"),
    ("first_step_ns", "first step completed"),
)


def incident_page(found: IncidentDetail) -> str:
    """The whole file."""
    return page(f"{found['id']}: {found['kind']} in {found['job'] or 'the control plane'}", section(found, 1))


def section(found: IncidentDetail, level: int = 3) -> Html:
    """The incident as a part of a page."""
    finding = found["finding"]
    blamed = finding["ranks"] if finding is not None else []
    evidence = sorted(found["evidence"], key=lambda one: (one["rank"] not in blamed, one["rank"]))
    return joined(
        [
            tag(f"h{level}", f"{found['id']}  {found['kind']} in {found['job'] or 'the control plane'}"),
            tag("p", found["verdict"], kind="verdict"),
            tag("p", _state(found), " · ", _cost(found)),
            tag("p", "Decision: ", found["decision"] or "none"),
            *([tag("p", "Confidence: ", confidence(finding))] if finding is not None else []),
            timeline(found),
            *(rank(one, one["rank"] in blamed, level + 1) for one in evidence),
            *(_exit(one, level + 1) for one in found["exits"]),
        ]
    )


def timeline(found: IncidentView | IncidentDetail) -> Html:
    """What happened when, and how long after the step before."""
    times: dict[str, Any] = dict(found["timeline"])
    rows, before = [], 0
    for key, words in sorted(_MOMENTS, key=lambda one: times[one[0]]):
        if times[key]:
            rows.append(
                (moment(times[key]), words, f"+ {span((times[key] - before) / 1e9)}" if before else "")
            )
            before = times[key]
    return table(("when", "what", "after"), rows)


def rank(one: Any, blamed: bool, level: int) -> Html:
    """Where a rank was."""
    stack = "\n".join(one["stack"])
    collectives = "\n".join(one["collectives"][-8:])
    log = "\n".join(one["log_tail"])
    return joined(
        [
            tag(
                f"h{level}",
                f"rank {one['rank']} on {one['node']}, step {one['steps']} ",
                tag("span", "blamed", kind="tag bad") if blamed else "",
            ),
            *([tag("p", f"It was {one['doing']}.")] if one["doing"] else []),
            *([tag("pre", stack)] if stack else []),
            *([tag("p", "Last collectives", kind="soft"), tag("pre", collectives)] if collectives else []),
            *([tag("p", "Last output", kind="soft"), tag("pre", log)] if log and blamed else []),
        ]
    )


def _exit(one: Any, level: int) -> Html:
    text = one["traceback"] or "\n".join(one["log_tail"])
    return joined(
        [
            tag(f"h{level}", f"rank {one['rank']} on {one['node']}: {one['how']}"),
            *([tag("pre", text)] if text else []),
        ]
    )


def _state(found: IncidentView | IncidentDetail) -> Html:
    if found["open"]:
        return tag("span", "open", kind="tag bad")
    return Html(
        tag("span", "over", kind="tag") + (" " + safe(found["resolution"]) if found["resolution"] else "")
    )


def _cost(found: IncidentView | IncidentDetail) -> str:
    lost = (
        "lost steps unknown"
        if found["lost_steps"] is None
        else f"{found['lost_steps']} steps repeated or lost"
    )
    return f"{lost}, recovered in {span(found['recovery_s'])}" if found["recovery_s"] is not None else lost


def confidence(finding: FindingView) -> str:
    """How sure it is, and why."""
    sure = "certain" if finding["certain"] else f"{finding['confidence']:.0%}"
    return f"{sure}: {finding['certainty']}" if finding["certainty"] else sure
