"""How changes are read from a command line and told: values, phases, outcomes, settings, history."""

from __future__ import annotations

import json
from typing import Any

import pytest

from torchloom.cli.declared import EndVerb
from torchloom.cli.show import output, story
from torchloom.cli.steer import config, outcome
from torchloom.cli.steer import set as set_verb
from torchloom.errors import Conflict, Diverged, UsageError


def operation(**more: Any) -> Any:
    made = {
        "id": "41d0c2a9e7f3",
        "job": "j",
        "version": 7,
        "kind": "set",
        "state": "applied",
        "ended": True,
        "reason": "applied at step 12 on all ranks",
        "values": {"lr": 1e-4},
        "by": "alice",
        "why": "",
        "asked_at_ns": 1,
        "ended_at_ns": 2,
        "generation": 2,
        "at_step": 12,
        "training_step": 412,
        "attempts": 1,
        "changed": [difference("optimizer0.lr@0", 1e-3, 1e-4)],
        "differing": {},
        "trouble": {},
        "raised": [],
        "unheard": [],
        "reverts": None,
    }
    return {**made, **more}


def difference(address: str, before: Any, after: Any) -> Any:
    return {"address": address, "before": before, "after": after}


def test_only_ranks_that_failed_themselves_are_shown_also_if_the_traceback_was_cut(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cut = 'ng.py", line 12, in set_dropout\nValueError: no'  # the end of a long traceback
    trouble = {"0": "rank 1 failed: ValueError: no", "1": cut, "2": cut}
    outcome.show_trouble(operation(trouble=trouble, raised=[1, 2]))
    assert capsys.readouterr().err.splitlines()[0] == "ranks 1, 2:"
    outcome.show_trouble(operation(trouble={"0": "the script ended"}, raised=[]))
    assert capsys.readouterr().err == "rank 0:\n  the script ended\n"


# -- what is typed ----


def test_names_and_values_go_as_they_were_typed() -> None:
    given = ["lr=1e-4", "betas=0.9,0.95", "note=a=b", "flag=", "lr@1=own"]
    assert set_verb.parse(given, scale=False) == {
        "lr": "1e-4",
        "betas": "0.9,0.95",
        "note": "a=b",
        "flag": "",
        "lr@1": "own",
    }
    assert set_verb.parse(["lr=0.5"], scale=True) == {"lr": 0.5}


@pytest.mark.parametrize(
    ("given", "scale", "says"),
    [
        (["lr"], False, "NAME=VALUE"),
        (["=3"], False, "NAME=VALUE"),
        (["lr=1", "lr=2"], False, "twice"),
        (["lr=half"], True, "a number"),
    ],
)
def test_what_makes_no_sense_is_told_before_anybody_is_asked(
    given: list[str], scale: bool, says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        set_verb.parse(given, scale)


# -- values ----


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (None, "none"),
        (True, "true"),
        (3, "3"),
        (0.1 + 0.2, "0.3"),
        (3e-4, "0.0003"),
        ([0.9, 0.999], "0.9,0.999"),
        ("cosine", "cosine"),
        ("", '""'),
        ({"own": True}, "own"),
        ({"scale": 0.5}, "×0.5"),
        ({"a": 1, "b": "x"}, '{"a": 1, "b": "x"}'),
        (["a", "b"], '["a", "b"]'),
    ],
)
def test_a_value_is_shown_as_one_would_type_it(given: Any, shown: str) -> None:
    assert outcome.value(given) == shown


def test_places_that_change_alike_are_one_row() -> None:
    rows = outcome.grouped(
        [difference(f"optimizer0.lr@{n}", 0.1, 0.01) for n in range(6)]
        + [difference("optimizer0.betas@0", [0.9, 0.99], [0.9, 0.95]), difference("dropout", 0.1, 0.1)]
    )
    assert rows == [
        ("optimizer0.lr@0 … optimizer0.lr@5 (6 places)", "0.1 → 0.01"),
        ("optimizer0.betas@0", "0.9,0.99 → 0.9,0.95"),
        ("dropout", "0.1 (as before)"),
    ]


# -- phases and outcomes ----


@pytest.mark.parametrize(
    ("about", "told"),
    [
        ({"state": "waiting", "training_step": 900}, "waiting for step 900"),
        ({"state": "waiting", "training_step": None, "at_step": None}, "waiting for earlier operations"),
        ({"state": "preparing"}, "preparing: asking every rank whether it can apply this"),
        ({"state": "arming", "training_step": None}, "arming for step 12 of generation 2"),
        ({"state": "confirmed"}, "armed on all ranks for step 412"),
        ({"state": "applied"}, "applied at step 412"),
    ],
)
def test_every_phase_has_its_words(about: dict[str, Any], told: str) -> None:
    assert outcome.phase(operation(ended=False, **about)) == told


def test_what_was_applied_is_told_with_old_and_new(capsys: pytest.CaptureFixture[str]) -> None:
    other = [difference("optimizer0.lr@0", 2e-3, 1e-4)]
    outcome.conclude(operation(differing={"1": other}, unheard=[2]), "j: done", as_json=False)
    shown = capsys.readouterr()
    assert shown.out == (
        "j: done\n  optimizer0.lr@0  0.001 → 0.0001\n  rank 1:\n    optimizer0.lr@0  0.002 → 0.0001\n"
    )
    assert "rank 2 has not reported" in shown.err


def test_what_was_not_applied_is_a_conflict_with_tracebacks(capsys: pytest.CaptureFixture[str]) -> None:
    trouble = {"0": "Traceback:\nValueError: no", "3": "Traceback:\nValueError: no"}
    failed = operation(state="not applied", reason="undone on every rank", trouble=trouble, changed=[])
    with pytest.raises(Conflict, match=r"the change lr=0.0001 was not applied: undone on every rank\."):
        outcome.conclude(failed, "", as_json=False)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "ranks 0, 3:\n  Traceback:\n  ValueError: no\n"
    with pytest.raises(EndVerb) as end:
        outcome.conclude(failed, "", as_json=True)
    assert end.value.exit_code == 5
    assert json.loads(capsys.readouterr().out)["state"] == "not applied"


def test_diverged_is_said_loudly() -> None:
    with pytest.raises(Diverged, match="RANKS DIVERGED"):
        outcome.conclude(operation(state="diverged", reason="rank 0 applied, rank 1 did not"), "", False)


# -- config ----


def place(address: str, value: Any, mode: Any = None, own: Any = None, version: Any = None) -> Any:
    return {"address": address, "value": value, "mode": mode, "own": own, "version": version}


def setting(name: str, *places: Any, **more: Any) -> Any:
    made = {"name": name, "type": "a number", "allowed": "a number, at least 0", "description": ""}
    return {**made, "places": list(places), **more}


def test_places_that_are_alike_are_one_row_and_others_are_not() -> None:
    both = setting("lr", place("optimizer0.lr@0", 0.1), place("optimizer0.lr@1", 0.1))
    row = ("the script", "a number, at least 0")
    assert config.rows(both, ["AdamW"]) == [("lr (AdamW, 2 places)", "0.1", *row)]
    assert config.rows(both, []) == [("lr (2 places)", "0.1", *row)], "the class is not known"
    unlike = setting(
        "lr",
        place("optimizer0.lr@0", 0.05, "scale", 0.1, 3),
        place("optimizer0.lr@1", 0.2, "hold", 0.1),
        description="how fast",
    )
    assert config.rows(unlike, ["AdamW"]) == [
        (
            "optimizer0.lr@0 (AdamW)",
            "0.05",
            "scaled by version 3; the script's own value is 0.1",
            "a number, at least 0 – how fast",
        ),
        ("optimizer0.lr@1 (AdamW)", "0.2", "held; the script's own value is 0.1", ""),
    ]
    gan = setting("lr", place("optimizer0.lr@0", 0.1), place("optimizer1.lr@0", 0.2))
    assert [row[0] for row in config.rows(gan, ["AdamW", "SGD"])] == [
        "optimizer0.lr@0 (AdamW)",
        "optimizer1.lr@0 (SGD)",
    ]
    own = config.rows(setting("dropout", place("dropout", 0.3, version=4)), ["AdamW"])
    assert own[0][0] == "dropout" and own[0][2] == "set by version 4"
    assert config.rows(setting("eps"), ["AdamW"]) == [("eps", "–", "–", "a number, at least 0")]


def test_the_config_tells_what_is_to_come_and_under_way(capsys: pytest.CaptureFixture[str]) -> None:
    entry = {"version": 8, "step": 900, "values": {"lr": 1e-5}, "by": "bob", "why": "", "in_force": False}
    entry["superseded_by"] = None
    view: Any = {
        "job": "j",
        "version": 7,
        "paused": True,
        "known": True,
        "optimizers": ["AdamW"],
        "settings": [setting("lr", place("optimizer0.lr@0", 0.1))],
        "schedule": [{**entry, "version": 7, "step": 1, "in_force": True}, entry],
        "operations": [operation(state="waiting", ended=False, version=9, training_step=2000)],
    }
    config.show(view)
    shown = capsys.readouterr().out
    assert shown.startswith("j: version 7, paused\n")
    assert "in progress: lr=0.0001 · waiting for step 2000 · requested by alice (41d0c2a9e7f3)" in shown
    assert "scheduled: version 8 at step 900: lr=1e-05" in shown and "version 7 at step 1" not in shown
    config.show({**view, "settings": [], "known": False})
    assert "at their first step" in capsys.readouterr().out


def test_history_tells_who_why_and_what_came_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    def one(**more: Any) -> Any:
        made = {
            "version": 1,
            "operation": "x",
            "state": "applied",
            "reason": "applied at step 3",
            "step": 3,
            "values": {"lr": 0.1},
            "changed": [difference("optimizer0.lr@0", 0.2, 0.1)],
            "by": "alice",
            "why": "flat loss",
            "at_ns": 1,
            "reverts": None,
            "in_force": True,
            "superseded_by": None,
        }
        return {**made, **more}

    config.show_history(
        [
            one(superseded_by=7),
            one(version=2, in_force=False, reverts=0, why=""),
            one(version=3, state="not applied", reason="rank 1 refused", changed=[], step=None),
            one(version=4, values={"lr": {"scale": 0.5}, "noise": {"a": 1}}, why=""),
        ]
    )
    shown = capsys.readouterr().out
    assert "superseded by 7" in shown
    assert "optimizer0.lr@0 0.2 → 0.1 · “flat loss”" in shown
    assert "rolled back" in shown and "back to version 0" in shown
    assert "not applied" in shown and "lr=0.1 · rank 1 refused" in shown
    assert shown.rstrip().endswith("optimizer0.lr@0 0.2 → 0.1 · lr=×0.5")


# -- elsewhere ----


def test_a_paused_job_is_told_as_such() -> None:
    view: Any = {"state": "running", "paused": True}
    assert output.state(view) == "running, paused" and output.state({**view, "paused": False}) == "running"
    told = story.Story("j")
    view |= {"incident_list": [], "generation": 2, "config_version": 0}
    assert told.tell(view) == [("j is paused; `loom resume j` continues it", "")]
    assert told.tell(view) == []
    assert told.tell({**view, "paused": False, "config_version": 4}) == [
        ("j continues", ""),
        ("config version 4 is in force; see `loom config j`", ""),
    ]
