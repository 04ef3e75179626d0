"""Steering over real HTTP, on a weaver of its own with ranks that answer: changes, phases, refusals.

It has more than 400 lines because all of it, the command line too, is tried on one server and its ranks.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_server import TOKEN, ApiServer, api_server
from loom_home import LOOM, wait_for
from msgspec.structs import replace
from steered_ranks import OFFSET, Ranks

from torchloom.cli.shell import complete
from torchloom.core.steering import driver as core_steering
from torchloom.model.checkpoints import CheckpointPlace
from torchloom.model.events import CheckpointStoreOpened
from torchloom.model.messages import WorkerPulse
from torchloom.model.transaction.messages import Kind, Phase
from torchloom.model.worker import WorkerRef
from torchloom.weaver.requests import steering as weaver_steering


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with api_server(tokens_file=tmp_path_factory.mktemp("home") / "tokens.json") as made:
        yield made


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits, waits until the test has looked at it."""
    monkeypatch.setitem(core_steering.VOTE_TIMEOUT_S, Kind.SET, 600.0)
    monkeypatch.setattr(weaver_steering, "HEARD_WITHIN_S", 600.0)


@pytest.fixture
def job(server: ApiServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """A job of two ranks that steps."""
    name = server.submit(world_size=2)
    server.steer(name, Ranks())
    yield name
    server.request("DELETE", f"/jobs/{name}?force=true")


def patch(server: ApiServer, job: str, body: dict[str, Any], **headers: str) -> tuple[int, Any]:
    status, _, answer = server.request("PATCH", f"/jobs/{job}/config", body, **headers)
    return status, answer


def ended(server: ApiServer, job: str, operation: str) -> Any:
    for _ in range(30):
        view = server.request("GET", f"/jobs/{job}/operations/{operation}?wait_s=5")[2]
        if view["ended"]:
            return view
    raise AssertionError(view)


def config(server: ApiServer, job: str) -> Any:
    return server.request("GET", f"/jobs/{job}/config")[2]


def values(view: Any) -> dict[str, Any]:
    return {place["address"]: place["value"] for s in view["settings"] for place in s["places"]}


def test_the_config_shows_settings_types_and_places(server: ApiServer, job: str) -> None:
    view = config(server, job)
    assert view["known"] and view["version"] == 0 and not view["paused"]
    assert values(view)["optimizer0.lr@1"] == 0.2 and values(view)["dropout"] == 0.1
    dropout = next(s for s in view["settings"] if s["name"] == "dropout")
    assert (dropout["minimum"], dropout["below"], dropout["maximum"]) == (0.0, 1.0, None)
    assert dropout["allowed"] == "a number, at least 0, below 1" and "left out" in dropout["description"]


def test_a_change_is_an_operation_that_ends_applied(server: ApiServer, job: str) -> None:
    status, headers, plan = server.request(
        "PATCH", f"/jobs/{job}/config", {"values": {"lr": "1e-3", "dropout": 0.5}, "why": "flat"}
    )
    assert status == 202 and headers["location"].endswith(f"/jobs/{job}/operations/{plan['operation']}")
    assert {d["address"]: (d["before"], d["after"]) for d in plan["differences"]} == {
        "optimizer0.lr@0": (0.1, 1e-3),
        "optimizer0.lr@1": (0.2, 1e-3),
        "dropout": (0.1, 0.5),
    }
    view = ended(server, job, plan["operation"])
    assert view["state"] == "applied" and view["by"] == "admin" and view["why"] == "flat"
    assert view["training_step"] == view["at_step"] + OFFSET
    assert {c["address"] for c in view["changed"]} == {"optimizer0.lr@0", "optimizer0.lr@1", "dropout"}
    server.wait(lambda: server.weaver.pulse(job)[0].config_version)
    now = config(server, job)
    assert now["version"] == view["version"] and values(now)["dropout"] == 0.5
    held = next(p for s in now["settings"] for p in s["places"] if p["address"] == "optimizer0.lr@0")
    assert (held["mode"], held["own"], held["version"]) == ("hold", 0.1, now["version"])
    (told,) = server.request("GET", f"/jobs/{job}/config/history")[2]
    assert (told["step"], told["by"], told["why"], told["in_force"]) == (
        view["training_step"],
        "admin",
        "flat",
        True,
    )


def test_a_dry_run_only_tells(server: ApiServer, job: str) -> None:
    status, plan = patch(server, job, {"values": {"lr": 0.5}, "mode": "scale", "dry_run": True})
    assert status == 200 and plan["dry_run"] and plan["operation"] == ""
    assert [d["after"] for d in plan["differences"]] == [0.05, 0.1]
    assert server.request("GET", f"/jobs/{job}/operations")[2] == []
    assert server.agents[0].steered[job].seen == []


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"values": {"lrr": 1}}, "did you mean lr?"),
        ({"values": {"lr": -1}}, "at least 0"),
        ({"values": {"lr@7": 1}}, "count from 0"),
        ({"values": {"scheduler": "step"}}, "cosine, linear"),
        ({"values": {"dropout": 1}}, "below 1"),
        ({"values": {"betas": [0.9]}}, "2 numbers"),
        ({"values": {"lr": 1, "optimizer0.lr@0": 2}}, "twice"),
        ({"values": {"lr": 10**400}}, "lr"),
        ({"values": {}}, "values"),
        ({"values": {"lr": 1}, "mode": "add"}, "mode"),
        ({"values": {"lr": 1}, "at_step": 1}, "step"),
        ({"values": {"lr": 1}, "valuse": {}}, "valuse"),
    ],
)
def test_what_is_not_allowed_is_refused_before_any_rank_hears_of_it(
    server: ApiServer, job: str, body: dict[str, Any], says: str
) -> None:
    status, problem = patch(server, job, body)
    assert status == 422 and says in f"{problem['detail']} {problem.get('field', '')}", problem
    assert server.agents[0].steered[job].seen == []


def test_a_rank_that_cannot_keeps_all_from_it(server: ApiServer, job: str) -> None:
    ranks = server.agents[0].steered[job]
    ranks.fail = {1: "Traceback (most recent call last):\n  here\nValueError: no such dropout"}
    _, plan = patch(server, job, {"values": {"dropout": 0.3}})
    view = ended(server, job, plan["operation"])
    assert view["state"] == "not applied" and "no such dropout" in view["reason"]
    assert view["trouble"]["1"].endswith("ValueError: no such dropout") and view["raised"] == [1]
    ranks.fail, ranks.refuse = {}, "the store does not answer"
    _, plan = patch(server, job, {"values": {"dropout": 0.3}})
    assert "the store does not answer" in ended(server, job, plan["operation"])["reason"]
    assert values(config(server, job))["dropout"] == 0.1
    assert all(not told["in_force"] for told in server.request("GET", f"/jobs/{job}/config/history")[2])


def test_revert_undoes_the_last_change_or_goes_back_to_a_version(server: ApiServer, job: str) -> None:
    plans = [patch(server, job, {"values": {"dropout": dropout}})[1] for dropout in (0.2, 0.3)]
    first, second = (ended(server, job, plan["operation"])["version"] for plan in plans)
    server.wait(lambda: server.weaver.pulse(job)[0].config_version == second)
    _, _, plan = server.request("POST", f"/jobs/{job}/config/revert", {"version": 0, "dry_run": True})
    assert [(d["before"], d["after"]) for d in plan["differences"]] == [(0.3, 0.1)]
    status, _, plan = server.request("POST", f"/jobs/{job}/config/revert")
    view = ended(server, job, plan["operation"])
    assert status == 202 and view["state"] == "applied" and view["reverts"] == first
    wait_for(lambda: values(config(server, job))["dropout"] == 0.2, "the value before")
    assert server.request("POST", f"/jobs/{job}/config/revert", {"version": 77})[0] in (404, 422)


def test_the_end_of_a_job_is_a_setting_that_cannot_lie_behind_it(server: ApiServer, job: str) -> None:
    _, plan = patch(server, job, {"values": {"max_steps": 5000}})
    assert ended(server, job, plan["operation"])["state"] == "applied"
    summary = server.request("GET", f"/jobs/{job}/summary")[2]
    assert summary["max_steps"] == summary["total_steps"] == 5000
    status, problem = patch(server, job, {"values": {"max_steps": 50}})
    assert status == 422 and f"loom stop {job}" in problem["detail"]


def test_the_end_of_a_script_that_tells_no_training_step_cannot_lie_behind_it(server: ApiServer) -> None:
    name = server.submit(world_size=2)
    server.steer(name, Ranks(step=201, offset=None))
    status, problem = patch(server, name, {"values": {"max_steps": 50}})
    assert status == 422 and "has made step 200" in problem["detail"]
    server.request("DELETE", f"/jobs/{name}?force=true")


def test_workers_that_are_starting_can_be_told_where_to_end(server: ApiServer) -> None:
    name = server.submit(world_size=2)
    status, answer = patch(server, name, {"values": {"max_steps": 30}})
    assert status == 202 and "after their first step" in answer["notes"][0]
    assert "optimizers are known" in patch(server, name, {"values": {"dropout": 0.3}})[1]["detail"]
    server.steer(name, Ranks())
    assert ended(server, name, answer["operation"])["state"] == "applied"
    server.request("DELETE", f"/jobs/{name}?force=true")


def test_pause_change_resume(server: ApiServer, job: str) -> None:
    status, _, made = server.request("POST", f"/jobs/{job}/pause", {"why": "look"})
    assert status == 202
    assert ended(server, job, made["operation"])["state"] == "applied"
    summary = server.request("GET", f"/jobs/{job}/summary")[2]
    assert summary["paused"] and summary["eta_s"] is None and summary["steps_per_s"] == 0
    assert config(server, job)["paused"]
    _, plan = patch(server, job, {"values": {"dropout": 0.4}})
    assert ended(server, job, plan["operation"])["state"] == "applied"
    made = server.request("POST", f"/jobs/{job}/resume")[2]
    assert ended(server, job, made["operation"])["state"] == "applied"
    assert not server.request("GET", f"/jobs/{job}/summary")[2]["paused"]
    kinds = [view["kind"] for view in server.request("GET", f"/jobs/{job}/operations")[2]]
    assert kinds == ["pause", "set", "resume"]


def test_a_checkpoint_is_an_operation(server: ApiServer, job: str) -> None:
    status, _, problem = server.request("POST", f"/jobs/{job}/checkpoint")
    assert status == 409 and "loom.Checkpoint" in problem["detail"]
    agent = server.agents[0]
    ref = next(ref for ref in agent.live if ref.job == job and ref.rank == 0)
    place = CheckpointPlace("/nowhere", job)
    server.call(lambda: agent.say(CheckpointStoreOpened(node=agent.node, ref=ref, place=place)))
    server.wait(lambda: server.weaver.fleet.jobs[job].checkpoints is not None)
    made = server.request("POST", f"/jobs/{job}/checkpoint", {})[2]
    assert ended(server, job, made["operation"])["kind"] == "checkpoint"
    assert (Phase.CONFIRM, Kind.CHECKPOINT) in server.agents[0].steered[job].seen


def test_a_size_that_cannot_be_is_refused_before_anything_is_saved(
    server: ApiServer, job: str, tmp_path: Path
) -> None:
    agent = server.agents[0]
    ref = next(ref for ref in agent.live if ref.job == job and ref.rank == 0)
    place = CheckpointPlace("/nowhere", job)
    server.call(lambda: agent.say(CheckpointStoreOpened(node=agent.node, ref=ref, place=place)))
    server.wait(lambda: server.weaver.fleet.jobs[job].checkpoints is not None)
    said = loom(server, tmp_path, "scale", job, "9", code=5).stderr
    assert said.startswith(f"loom: {job} was submitted for 2 workers only: ") and "--max-workers" in said
    assert server.request("GET", f"/jobs/{job}/operations")[2] == [], "nothing was saved for it"
    before = server.weaver.fleet.jobs[job].target
    assert server.request("POST", f"/jobs/{job}/scale", {"workers": 2, "dry_run": True})[0] == 202
    assert server.weaver.fleet.jobs[job].target == before, "only looked at"


def test_damage_is_refused_where_there_is_no_checkpoint(server: ApiServer, job: str) -> None:
    for kind in ("checkpoint-damage", "disk-full"):
        status, _, problem = server.request("POST", f"/jobs/{job}/faults", {"kind": kind})
        assert status == 409 and "saves no checkpoints" in problem["detail"]


def test_links_are_measured_shown_and_kept_with_the_incident(server: ApiServer, job: str) -> None:
    status, _, problem = server.request("GET", f"/jobs/{job}/links")
    assert status == 404 and "loom probe" in problem["detail"]
    assert server.request("POST", f"/jobs/{job}/probe", {"within_s": 100})[0] == 422
    status, headers, made = server.request("POST", f"/jobs/{job}/probe", {"within_s": 0.2, "why": "slow"})
    assert status == 202 and headers["location"].endswith(made["operation"])
    view = ended(server, job, made["operation"])
    assert (view["kind"], view["state"], view["changed"]) == ("probe", "applied", [])
    assert view["values"] == {"within_s": 0.2}
    links = server.request("GET", f"/jobs/{job}/links")[2]["links"]
    assert links["verdict"] in view["reason"] and "from rank 0" in links["verdict"]
    assert {(one["sender"], one["receiver"]): one["transfer_s"] for one in links["delays"]} == {
        (0, 1): 0.2,
        (1, 0): 0.001,
    }
    (incident,) = server.request("GET", f"/incidents?job={job}")[2]
    detail = server.request("GET", f"/incidents/{incident['id']}")[2]
    assert detail["links"] == links and not detail["open"]
    alone = server.submit(world_size=1)
    server.steer(alone, Ranks())
    status, _, problem = server.request("POST", f"/jobs/{alone}/probe")
    assert status == 409 and "one worker" in problem["detail"]
    server.request("DELETE", f"/jobs/{alone}?force=true")


@pytest.mark.usefixtures("patient")
def test_one_that_waits_is_followed_and_given_up(server: ApiServer, job: str) -> None:
    ranks = server.agents[0].steered[job]
    ranks.silent = True
    _, plan = patch(server, job, {"values": {"dropout": 0.3}})
    path = f"/jobs/{job}/operations/{plan['operation']}"
    view = server.request("GET", f"{path}?wait_s=10&state=waiting")[2]
    assert view["state"] == "preparing" and not view["ended"]
    assert [v["id"] for v in server.request("GET", f"/jobs/{job}/operations?active=true")[2]] == [view["id"]]
    assert server.request("GET", f"/jobs/{job}/summary")[2]["operation"] == view["id"]
    assert server.request("DELETE", path)[0] == 202
    view = ended(server, job, plan["operation"])
    assert view["state"] == "not applied" and "admin" in view["reason"]
    assert server.request("GET", f"/jobs/{job}/operations/{'0' * 12}")[0] == 404
    assert server.request("DELETE", f"/jobs/{job}/operations/{'0' * 12}")[0] == 404


def test_a_step_far_ahead_is_waited_for(server: ApiServer, job: str) -> None:
    _, plan = patch(server, job, {"values": {"dropout": 0.3}, "at_step": 5000 + OFFSET})
    view = server.request("GET", f"/jobs/{job}/operations/{plan['operation']}")[2]
    assert view["state"] == "waiting" and view["training_step"] == 5000 + OFFSET
    assert [one["id"] for one in config(server, job)["operations"]] == [view["id"]]
    server.request("DELETE", f"/jobs/{job}/operations/{plan['operation']}")
    ended(server, job, plan["operation"])


def test_the_same_key_makes_one_operation(server: ApiServer, job: str) -> None:
    body = {"values": {"dropout": 0.3}}
    made = [patch(server, job, body, Idempotency_Key="k1")[1]["operation"] for _ in range(2)]
    results: list[str] = []
    threads = [
        threading.Thread(
            target=lambda: results.append(patch(server, job, body, Idempotency_Key="k2")[1]["operation"])
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made[0] == made[1] and len(set(results)) == 1 and results[0] != made[0]
    for operation in (made[0], results[0]):
        ended(server, job, operation)
    assert len(server.request("GET", f"/jobs/{job}/operations")[2]) == 2
    assert patch(server, job, {"values": {"dropout": 0.4}}, Idempotency_Key="k1")[0] == 422
    assert server.request("POST", f"/jobs/{job}/pause", {}, Idempotency_Key="k1")[0] == 422


def test_a_restart_of_the_service_keeps_operations_and_config(server: ApiServer, job: str) -> None:
    _, plan = patch(server, job, {"values": {"dropout": 0.3}, "why": "before"})
    view = ended(server, job, plan["operation"])
    server.request("POST", f"/jobs/{job}/pause")
    server.wait(lambda: server.weaver.fleet.jobs[job].paused)
    server.restart()
    again = server.request("GET", f"/jobs/{job}/operations/{plan['operation']}")[2]
    assert again == view
    assert server.request("GET", f"/jobs/{job}/summary")[2]["paused"]
    assert server.request("GET", f"/jobs/{job}/config/history")[2][0]["why"] == "before"


def test_the_audit_names_the_token(server: ApiServer, job: str) -> None:
    eve = server.request("POST", "/tokens", {"name": "eve", "role": "admin"})[2]["token"]
    status, _, plan = server.request(
        "PATCH", f"/jobs/{job}/config", {"values": {"dropout": 0.3}}, token=eve, User_Agent="root"
    )
    assert status == 202 and ended(server, job, plan["operation"])["by"] == "eve"
    assert server.request("GET", f"/jobs/{job}/config/history")[2][0]["by"] == "eve"
    server.request("DELETE", "/tokens/eve")


def test_what_has_ended_or_never_was_cannot_be_steered(server: ApiServer, job: str) -> None:
    assert patch(server, "nobody", {"values": {"lr": 1}})[0] == 404
    assert server.request("POST", "/jobs/nobody/pause")[0] == 404
    server.request("POST", f"/jobs/{job}/stop", {"kill": True})
    server.wait(lambda: server.weaver.fleet.jobs[job].ended)
    assert patch(server, job, {"values": {"lr": 1}})[0] == 409
    for verb in ("pause", "resume", "checkpoint"):
        assert server.request("POST", f"/jobs/{job}/{verb}")[0] == 409
    assert server.request("GET", f"/jobs/{job}/config")[0] == 200


# -- the command line over the same API ----


def address(server: ApiServer, home: Path) -> dict[str, str]:
    return {
        "LOOM_HOME": str(home),
        "LOOM_ADDRESS": f"http://127.0.0.1:{server.port}",
        "LOOM_TOKEN": TOKEN,
        "NO_COLOR": "1",
    }


def loom(server: ApiServer, home: Path, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    env = {
        k: v for k, v in os.environ.items() if not k.startswith("LOOM_") or k == "LOOM_RESTORE_CHECK"
    } | address(server, home)
    done = subprocess.run([LOOM, *words], env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def test_the_command_line_sets_shows_and_reverts(server: ApiServer, job: str, tmp_path: Path) -> None:
    shown = loom(server, tmp_path, "set", job, "lr=1e-3", "dropout=0.5", "--why", "flat", "--dry-run").stdout
    assert "would be set" in shown and "0.1 → 0.5" in shown
    shown = loom(server, tmp_path, "set", job, "dropout=0.5", "--why", "flat").stdout
    assert shown.startswith(f"{job}: version ") and "applied on all ranks at step " in shown
    assert "  dropout  0.1 → 0.5\n" in shown
    history = loom(server, tmp_path, "config", job, "--history").stdout
    assert "dropout 0.1 → 0.5 · “flat”" in history and "admin" in history
    assert "reverted on all ranks" in loom(server, tmp_path, "revert", job).stdout
    assert "dropout" in loom(server, tmp_path, "config", job).stdout
    assert "is paused: all ranks wait before step" in loom(server, tmp_path, "pause", job).stdout
    assert "running, paused" in loom(server, tmp_path, "status", job).stdout
    assert "running, paused" in loom(server, tmp_path, "ps").stdout
    assert "continues with step" in loom(server, tmp_path, "resume", job).stdout
    listed = loom(server, tmp_path, "operations", job).stdout
    assert "pause" in listed and "resume" in listed
    one = server.request("GET", f"/jobs/{job}/operations")[2][0]["id"]
    assert "0.1 → 0.5" in loom(server, tmp_path, "operations", job, one).stdout


@pytest.mark.usefixtures("patient")
def test_the_command_line_says_what_went_wrong(server: ApiServer, job: str, tmp_path: Path) -> None:
    said = loom(server, tmp_path, "set", job, "dropuot=0.5", code=2).stderr
    assert "did you mean dropout?" in said and "Traceback" not in said
    loom(server, tmp_path, "set", job, "dropout", code=2)
    loom(server, tmp_path, "set", job, "dropout=0.5", "--timeout", "soon", code=2)
    assert server.request("GET", f"/jobs/{job}/operations")[2] == []
    loom(server, tmp_path, "set", "nobody", "lr=1", code=3)
    ranks = server.agents[0].steered[job]
    ranks.fail = {1: "Traceback (most recent call last):\nValueError: no such dropout"}
    said = loom(server, tmp_path, "set", job, "dropout=0.5", code=5).stderr
    assert "rank 1:\n  Traceback" in said and "was not applied" in said
    ranks.fail, ranks.silent = {}, True
    said = loom(server, tmp_path, "set", job, "dropout=0.5", "--timeout", "1s", code=6).stderr
    assert "preparing" in said and "loom operations" in said
    one = server.request("GET", f"/jobs/{job}/operations?active=true")[2][0]["id"]
    said = loom(server, tmp_path, "operations", job, "--cancel", one).stdout
    assert "not applied" in said


def test_completion_knows_settings_and_versions(
    server: ApiServer, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in address(server, tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(complete, "ASK_WITHIN_S", 240.0)  # a person would not wait for so long

    def words(*typed: str) -> list[str]:
        return [word for word, _ in complete.candidates(list(typed))]

    assert words("set", job, "dr") == ["dropout="]
    assert words("set", job, "lr") == ["lr="]
    assert words("set", job, "sch") == ["scheduler="]
    assert words("set", job, "scheduler=") == ["scheduler=", "scheduler=cosine", "scheduler=linear"]
    assert words("set", job, "scheduler=l") == ["scheduler=linear"]
    assert "dropout=" not in words("set", job, "dropout=0.1", "")
    assert words("revert", job, "") == ["0"]
    assert words("restore", job, "--config", "") == ["keep", "revert"]
    assert words("set", "--timeout", "5s", job, "dr") == ["dropout="]


@pytest.mark.usefixtures("patient")
def test_a_service_that_has_just_begun_refuses_no_setting_that_it_has_yet_to_hear_of(
    server: ApiServer, job: str
) -> None:
    """Agents repeat settings and those of optimizers each in its own time: the second may come later."""
    ranks = server.agents[0].steered[job]
    whole, late = ranks.pulse, time.monotonic() + 1.0

    def pulse(ref: WorkerRef, pid: int) -> WorkerPulse:
        told = whole(ref, pid)
        return told if time.monotonic() > late else replace(told, hyperparameters="")

    ranks.pulse = pulse  # type: ignore[method-assign]
    server.restart()
    server.wait(lambda: len(server.weaver.pulse(job)) == 2)
    status, plan = patch(server, job, {"values": {"lr": 0.25}})
    assert status == 202, plan
    assert ended(server, job, plan["operation"])["state"] == "applied"
