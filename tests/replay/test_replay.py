"""Recorded incidents replay to the decisions that were made: the strongest regression test of the core.

A recording is the event stream of a real job (scripts/record_incident.py). Every `Decided` record in it says
what the weaver of that day sent; the core of today must come to the same effects from the same events. Words
may change: reasons are not compared.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from torchloom.core.invariants import broken
from torchloom.core.reducer import apply
from torchloom.model.effects import Effect, StopWorkers
from torchloom.model.events import Decided, Envelope
from torchloom.model.fleet import Fleet, JobState
from torchloom.weaver.snapshot import unpack
from torchloom.wire import codec

RECORDINGS = sorted(Path(__file__).parent.glob("recordings/*.jsonl"))


def records(path: Path) -> Iterator[tuple[int, int, Envelope]]:
    for line in path.read_text().splitlines():
        record = json.loads(line)
        yield record["seq"], record["at_ns"], msgspec.convert(record["envelope"], Envelope)


def replay(path: Path) -> tuple[Fleet, dict[str, Effect], dict[str, Effect]]:
    """The fleet at the end, the effects of today's core, and the effects that were decided then."""
    fleet, now, then = Fleet(), {}, {}
    for seq, at_ns, envelope in records(path):
        for effect in apply(fleet, envelope, seq, at_ns):
            now[effect.id] = effect
        assert broken(fleet) == [], f"after event {seq}"
        if isinstance(envelope.body, Decided):
            then.update((effect.id, effect) for effect in envelope.body.effects)
    return fleet, now, then


def unworded(effect: Effect | None) -> Effect | None:
    return effect and msgspec.structs.replace(effect, reason="")


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda p: p.stem)
def test_the_same_events_lead_to_the_recorded_decisions(path: Path) -> None:
    fleet, now, then = replay(path)
    assert then, "a recording without decisions shows nothing"
    assert {id: unworded(now.get(id)) for id in then} == {id: unworded(effect) for id, effect in then.items()}
    assert all(job.ended for job in fleet.jobs.values())
    assert fleet.outbox == {}


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda p: p.stem)
def test_a_snapshot_at_any_event_leads_to_the_same_end(path: Path) -> None:
    end, _, _ = replay(path)
    stream = list(records(path))
    for cut in range(0, len(stream), 5):
        fleet = Fleet()
        for number, (seq, at_ns, envelope) in enumerate(stream):
            if number == cut:
                fleet = codec.decode_fleet(codec.encode(fleet))
            apply(fleet, envelope, seq, at_ns)
        assert codec.encode(fleet) == codec.encode(end)


def test_a_stopped_worker_is_named_and_replaced() -> None:
    fleet, _, _ = replay(next(p for p in RECORDINGS if p.stem == "stopped-worker"))
    job = fleet.jobs["recorded"]
    assert job.state is JobState.STOPPED and job.restarts == 1 and len(job.incidents) == 1
    incident = fleet.incidents[job.incidents[0]]
    assert incident.kind == "hang" and incident.culprit == 1 and "SIGSTOP" in incident.verdict
    assert incident.decision.startswith("certain") and {e.rank for e in incident.evidence} == {0, 1}
    line = incident.timeline
    assert (
        0 < line.first_sign_ns < line.detected_ns <= line.decided_ns <= line.stopped_ns < line.first_step_ns
    )


def test_a_pause_was_told_and_let_be() -> None:
    fleet, now, _ = replay(next(p for p in RECORDINGS if p.stem == "pause"))
    job = fleet.jobs["recorded"]
    assert job.restarts == 0 and job.generation == 1
    incident = fleet.incidents[job.incidents[0]]
    assert incident.kind == "hang" and incident.resolution.startswith("rank 1 continued after")
    assert "tokenize() at faulty.py" in incident.verdict
    stops = [e for e in now.values() if isinstance(e, StopWorkers)]
    assert all("stopped by" in e.reason for e in stops), "only a person ended anything"


def test_ranks_that_disagreed_were_restarted() -> None:
    fleet, _, _ = replay(next(p for p in RECORDINGS if p.stem == "desync"))
    job = fleet.jobs["recorded"]
    incident = fleet.incidents[job.incidents[0]]
    assert incident.kind == "desync" and job.restarts == 1 and incident.timeline.first_step_ns


def test_a_killed_worker_tells_its_story() -> None:
    path = next(p for p in RECORDINGS if p.stem == "killed-worker")
    fleet, _, _ = replay(path)
    job = fleet.jobs["recorded"]
    assert job.state is JobState.STOPPED and job.restarts == 1
    incident = fleet.incidents[job.incidents[0]]
    assert incident.culprit == 1 and "SIGKILL" in incident.verdict
    line = incident.timeline
    assert line.fault_ns <= line.decided_ns <= line.stopped_ns <= line.spawned_ns <= line.first_step_ns


def test_ranks_that_died_of_a_mismatch_at_once_were_told_as_disagreeing_and_the_odd_one_was_named() -> None:
    fleet, _, _ = replay(next(p for p in RECORDINGS if p.stem == "injected-mismatch"))
    job = fleet.jobs["recorded"]
    incident = fleet.incidents[job.incidents[0]]
    assert incident.kind == "desync" and incident.culprit == 1 and job.restarts == 1
    assert "rank 1" in incident.verdict and "where ranks 0 and 2 called" in incident.verdict


def test_a_circle_of_waiting_was_certain_and_ended() -> None:
    fleet, _, _ = replay(next(p for p in RECORDINGS if p.stem == "injected-deadlock"))
    job = fleet.jobs["recorded"]
    incident = fleet.incidents[job.incidents[0]]
    assert incident.kind == "ordering-deadlock" and job.restarts == 1
    assert incident.decision.startswith("certain") and incident.timeline.first_step_ns


def test_a_snapshot_of_an_earlier_version_is_continued() -> None:
    """Its events may be dropped by then: a fleet that today's code cannot read would be lost. Never make
    these files again; a new format gets another file beside them."""
    found = sorted(Path(__file__).parent.glob("snapshots/*.fleet-*"))
    assert found
    for snapshot in found:
        recording = next(path for path in RECORDINGS if path.stem == snapshot.stem)
        fleet, (end, _, _) = unpack(snapshot.read_bytes()), replay(recording)
        assert 0 < fleet.seq < end.seq and any(not job.ended for job in fleet.jobs.values())
        for seq, at_ns, envelope in records(recording):
            apply(fleet, envelope, seq, at_ns)
        assert fleet.jobs.keys() == end.jobs.keys() and fleet.outbox == end.outbox == {}
        for name, job in fleet.jobs.items():
            then = end.jobs[name]
            assert (job.state, job.generation, job.restarts) == (then.state, then.generation, then.restarts)
            assert [fleet.incidents[i].verdict for i in job.incidents] == [
                end.incidents[i].verdict for i in then.incidents
            ]
