"""`loom upgrade --check` from a description of what runs: problems, and the order of the swap."""

from __future__ import annotations

from typing import Any

import pytest

from torchloom.cli.service import upgrade
from torchloom.cli.service.upgrade_plan import make_plan, number
from torchloom.wire.schema_versions import SCHEMAS

NOW = {schema.name: schema.version for schema in SCHEMAS}


def found(**changes: Any) -> Any:
    made: dict[str, Any] = {
        "services": [
            {"name": "a", "version": "0.1.0", "leads": True, "blocked": ""},
            {"name": "b", "version": "0.1.0", "leads": False, "blocked": ""},
        ],
        "nodes": [{"node": "n1", "state": "ready", "version": "0.1.0", "refused": ""}],
        "jobs": [{"job": "j", "workers": {"0.1.0": 2}}],
        "schemas": NOW,
    }
    return made | changes


def test_nothing_to_do_where_all_parts_have_this_version() -> None:
    plan = make_plan(found(), "0.1.0")
    assert plan.ok and not plan.steps and len(plan.parts) == 4


def test_followers_then_the_leader_then_agents_then_workers() -> None:
    plan = make_plan(found(), "0.2.0")
    assert plan.ok
    whom = [step.split(" (")[0] for step in plan.steps]
    assert whom == [
        "replace the control service b",
        "replace the control service a",
        "replace the agent of n1",
        "workers of j",
    ]


def test_an_older_version_goes_the_other_way() -> None:
    plan = make_plan(found(), "0.0.9")
    assert plan.steps[0].startswith("workers of j")
    assert "control service b" in plan.steps[-1]


def test_parts_that_report_no_version_are_older() -> None:
    assert number("") < number("0.1.0") < number("0.1.10") < number("0.2.0")
    plan = make_plan(found(nodes=[{"node": "n1", "state": "ready", "version": "", "refused": ""}]), "0.1.0")
    assert plan.ok and plan.steps == ["replace the agent of n1 (not reported); its workers continue"]


def test_what_this_version_cannot_read_is_a_problem() -> None:
    plan = make_plan(found(schemas=NOW | {"events": NOW["events"] + 1}), "0.1.0")
    assert not plan.ok
    assert plan.problems == [f"this version reads events {NOW['events']}, and what runs writes 2"]


def test_parts_that_do_not_fit_together_are_problems() -> None:
    blocked = {"name": "b", "version": "0.1.0", "leads": False, "blocked": "b cannot read event 7"}
    newer = {"node": "n1", "state": "ready", "version": "0.2.0", "refused": ""}
    refused = {"node": "n2", "state": "ready", "version": "0.1.0", "refused": "n2 is too old"}
    leader = {"name": "a", "version": "0.1.0", "leads": True, "blocked": ""}
    plan = make_plan(found(services=[leader, blocked], nodes=[newer, refused]), "0.2.0")
    assert plan.problems[:2] == ["b cannot read event 7", "n2 is too old"]
    assert "the agent of n1 (0.2.0) is newer than the control service that leads" in plan.problems[2]


def test_nodes_that_left_are_not_parts() -> None:
    left = {"node": "n9", "state": "left", "version": "0.0.1", "refused": ""}
    assert "n9" not in {part.name for part in make_plan(found(nodes=[left]), "0.1.0").parts}


def test_what_it_reads_is_printed_one_kind_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    unread = {"snapshots": NOW["snapshots"] + 1}
    upgrade._show(make_plan(found(schemas=NOW | unread), "0.1.0"))
    lines = capsys.readouterr().out.splitlines()
    first = lines.index("It reads what is stored:") + 1
    kinds = [(one.name, one.version) for one in SCHEMAS if one.stored and one.name not in unread]
    assert lines[first : first + len(kinds)] == [f"  {name}, version {version}" for name, version in kinds]
    assert lines[first + len(kinds)].startswith("problem: this version reads snapshots")
    assert max(map(len, lines)) <= 80
