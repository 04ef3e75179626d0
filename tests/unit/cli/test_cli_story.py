"""What happens to a job is told once, in sentences."""

from __future__ import annotations

from typing import Any

from torchloom.cli.fleet import incidents
from torchloom.cli.jobs.follow import exit_code
from torchloom.cli.show import output, story


def view(**changes: Any) -> dict[str, Any]:
    return {
        "id": "job",
        "state": "running",
        "reason": "all is well",
        "ended": False,
        "generation": 1,
        "restarts": 0,
        "world_size": 2,
        "wanted_workers": 2,
        "running_workers": 2,
        "step": 10,
        "total_steps": None,
        "steps_per_s": 0.0,
        "eta_s": None,
        "goodput": None,
        "elapsed_s": 3.0,
        "workers": [{"node": "n", "devices": []}],
        "incident_list": [],
    } | changes


def incident(**changes: Any) -> dict[str, Any]:
    return {
        "id": "job.1",
        "verdict": "rank 1 was killed by signal 9 (SIGKILL) at step 212",
        "decision": "restart 1 of 10",
        "action": "restart",
        "outcome": "done",
        "recovery_s": None,
        "open": True,
        "resolution": "",
        "ended_by": "",
    } | changes


def test_how_an_incident_was_recovered_from() -> None:
    def said(ended_by: str, **more: Any) -> str:
        made: Any = incident(open=False, ended_by=ended_by, resolution="any words", **more)
        return incidents.recovered(made)

    assert said("rollback") == "rolled back" and said("itself") == "by itself"
    assert said("job") == said("generation") == said("") == "no" and said("", recovery_s=0.5) == "0.50 s"


def test_states_are_told_once() -> None:
    told = story.Story("job")
    assert [text for text, _ in told.tell(view(state="starting"))] == ["job: 2 workers starting"]
    assert told.tell(view(state="starting")) == []
    assert [text for text, _ in told.tell(view())] == ["job is running: 2 workers on n"]
    assert told.tell(view(step=11)) == []


def test_an_incident_is_told_when_it_happens_and_when_it_is_over() -> None:
    told = story.Story("job")
    told.tell(view())
    first = told.tell(view(state="recovering", incident_list=[incident()]))
    assert first == [("rank 1 was killed by signal 9 (SIGKILL) at step 212; restart 1 of 10", "bad")]
    assert told.tell(view(state="starting", generation=2, incident_list=[incident()])) == []
    over = told.tell(view(generation=2, incident_list=[incident(recovery_s=0.14)]))
    assert over == [("recovered: first step 0.14 s after the fault", "good")]
    assert told.tell(view(generation=2, incident_list=[incident(recovery_s=0.14)])) == []


def test_what_is_only_reported_is_told_once_and_then_how_it_ended() -> None:
    told = story.Story("job")
    told.tell(view())
    hang = {"verdict": "rank 1 has not entered for 2.4 s", "decision": "reported only", "outcome": "reported"}
    assert told.tell(view(incident_list=[incident(**hang)])) == [
        ("rank 1 has not entered for 2.4 s; reported only", "bad")
    ]
    later = hang | {"verdict": "rank 1 has not entered for 5.0 s", "decision": "reported only, again"}
    assert told.tell(view(incident_list=[incident(**later)])) == []
    over = incident(**later, open=False, resolution="rank 1 continued after 6.1 s")
    assert told.tell(view(incident_list=[over])) == [("rank 1 continued after 6.1 s", "good")]
    assert told.tell(view(incident_list=[over])) == []


def test_a_report_that_becomes_a_restart_is_told_again() -> None:
    told = story.Story("job")
    told.tell(view(incident_list=[incident(decision="reported only", outcome="reported")]))
    said = told.tell(view(state="recovering", incident_list=[incident(decision="certain; restart 1")]))
    assert [mark for _, mark in said] == ["bad"] and "restart 1" in said[0][0]


def test_a_quick_recovery_is_told_in_order() -> None:
    told = story.Story("job").tell(view(incident_list=[incident(recovery_s=0.14)]))
    assert [mark for _, mark in told] == ["bad", "good"]


def test_the_status_line_shows_what_is_known() -> None:
    assert story.status_line(view()) == "job running · step 10 · 2/2 workers"
    full = view(total_steps=100, steps_per_s=20.0, eta_s=4.5, restarts=1)
    assert story.status_line(full) == "job running · step 10/100 · 20.0/s · ETA 4 s · 2/2 workers · 1 restart"


def on(device: str, name: str, kind: str = "cpu") -> dict[str, Any]:
    return {"node": "n", "devices": [{"device": device, "kind": kind, "name": name}]}


def test_workers_that_share_a_device_are_named() -> None:
    shared = [on("cpu-n-0-1", "CPU cores 0-1") for _ in range(3)]
    assert story.crowded(view(workers=shared)) == ["3 workers share CPU cores 0-1: expect slow steps"]
    assert story.crowded(view(workers=shared[:2])) == []
    assert story.crowded(view(workers=[on("c", "CPU cores 0-2,6")] * 5)) != []
    assert story.crowded(view(workers=[on("c", "CPU cores 0-2,6")] * 4)) == []
    assert story.crowded(view(workers=[on("c", "CPU core 5")] * 2)) != []
    gpus = [on("GPU-1", "H100", "gpu"), on("GPU-2", "H100", "gpu")]
    assert story.crowded(view(workers=gpus)) == []
    assert story.crowded(view(workers=[*gpus, gpus[0]])) == ["2 workers share H100: expect slow steps"]


def test_a_job_whose_steps_nobody_saw_claims_no_goodput() -> None:
    said = story.summary(view(state="completed", step=0, goodput=1.0))
    assert said == (
        "job completed: in 3.00 s; no step was seen: the workers ran no torch optimizer themselves"
    )
    again = story.summary(view(state="completed", step=0, goodput=1.0, restarts=1))
    assert again == "job completed: in 3.00 s; 1 restart; no step was seen since the last restart"


def test_the_summary_has_the_numbers() -> None:
    end = view(state="completed", restarts=1, goodput=0.987, incident_list=[incident(recovery_s=0.14)])
    assert story.summary(end) == (
        "job completed: 10 steps in 3.00 s; 1 restart, recovered in 0.14 s; goodput 98.7%"
    )
    failed = story.summary(view(state="failed", reason="no luck."))
    assert failed == "job failed after 10 steps in 3.00 s. no luck"


def test_a_delay_is_told_with_its_incident_and_not_twice() -> None:
    told = story.Story("job")
    told.tell(view())
    first = told.tell(view(state="recovering", incident_list=[incident()]))
    assert len(first) == 1
    why = f"{incident()['verdict']}; rank 0 followed; restart 1 of 10, in 0.4 s"
    assert told.tell(view(state="backoff", reason=why, incident_list=[incident()])) == []
    alone = story.Story("job")
    alone.tell(view())
    assert alone.tell(view(state="backoff", reason="no room")) == [("backoff: no room", "")]


def test_exit_codes() -> None:
    assert exit_code(view(state="completed"), interrupted=False) == 0
    assert exit_code(view(state="failed"), interrupted=False) == 1
    assert exit_code(view(state="stopped"), interrupted=True) == 130
    assert exit_code(view(state="failed"), interrupted=True) == 130


def test_durations_as_people_say_them() -> None:
    said = [output.seconds(s) for s in (0.141, 12.3, 125, 7500)]
    assert said == ["0.14 s", "12 s", "2 min 05 s", "2 h 05 min"]
    assert output.seconds(None) == "–" and output.rate(0.25) == "4.0 s/step" and output.rate(0) == "–"
    assert output.step_time(0.0231) == "23.1 ms" and output.time_left(8.51) == "9 s"
