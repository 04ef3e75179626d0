"""A recorded incident is replayed event by event, and compared with the decisions that were recorded."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from torchloom.core import replaying
from torchloom.core.reducer import apply
from torchloom.core.replaying import Replaying, difference
from torchloom.model.effects import StartWorkers
from torchloom.model.events import Decided, Envelope
from torchloom.model.fleet import Fleet
from torchloom.model.replayed import Replay, ReplayedStep, StateChange

RECORDINGS = Path(__file__).parents[2] / "replay" / "recordings"
Stream = list[tuple[int, int, Envelope]]


def stream_of(name: str) -> Stream:
    lines = map(json.loads, (RECORDINGS / f"{name}.jsonl").read_text().splitlines())
    return [(one["seq"], one["at_ns"], msgspec.convert(one["envelope"], Envelope)) for one in lines]


def replay(stream: Stream, begin: int = 0) -> Replay:
    """Replayed from the fleet as of `begin` events."""
    end = Fleet()
    for seq, at_ns, envelope in stream:
        apply(end, envelope, seq, at_ns)
    fleet = Fleet()
    for seq, at_ns, envelope in stream[:begin]:
        apply(fleet, envelope, seq, at_ns)
    made = Replaying(fleet, end.incidents["recorded.1"])
    for seq, at_ns, envelope in stream[begin:]:
        made.apply(envelope, seq, at_ns)
        if made.over:
            break
    return made.result(stream[begin][0])


def step(found: Replay, kind: str) -> ReplayedStep:
    return next(one for one in found.steps if one.kind == kind)


def test_a_killed_worker_is_explained_event_by_event() -> None:
    found = replay(stream_of("killed-worker"))
    exited = step(found, "worker-exited")
    changed = {change.what: (change.before, change.after) for change in exited.changes}
    assert "SIGKILL" in changed["rank 1"][1] and changed["rank 1"][0].startswith("running")
    assert changed["job"] == ("running", "recovering") and "SIGKILL" in changed["why"][1]
    assert changed["incident recorded.1"] == ("", "open")
    stop = next(one for one in exited.decisions if one.effect.__struct_config__.tag == "stop-workers")
    assert stop.ranks == (0,) and stop.effect.reason and stop.recorded == "same"
    starts = [one for s in found.steps for one in s.decisions if isinstance(one.effect, StartWorkers)]
    assert {rank for one in starts for rank in one.ranks} == {0, 1}
    over = [
        c for s in found.steps for c in s.changes if c == StateChange("incident recorded.1", "open", "over")
    ]
    assert len(over) == 1, "it ends where the incident ended"
    assert found.checked > 2 and not found.differing and not found.dropped_before and not found.left_out


@pytest.mark.parametrize("name", [path.stem for path in sorted(RECORDINGS.glob("*.jsonl"))])
def test_every_recorded_incident_replays_to_the_recorded_decisions(name: str) -> None:
    found = replay(stream_of(name))
    assert found.steps and not found.differing
    assert any(c.what.startswith("incident recorded.1") for s in found.steps for c in s.changes)
    assert [one.seq for one in found.steps] == sorted({one.seq for one in found.steps})


def test_a_decision_that_differs_from_the_record_is_counted_and_marked() -> None:
    forged, seen = [], 0
    for seq, at_ns, envelope in stream_of("killed-worker"):
        body = envelope.body
        if isinstance(body, Decided) and any(isinstance(e, StartWorkers) for e in body.effects):
            effects = tuple(
                msgspec.structs.replace(e, restart_count=99) if isinstance(e, StartWorkers) else e
                for e in body.effects
            )
            envelope, seen = (
                msgspec.structs.replace(envelope, body=Decided(epoch=body.epoch, effects=effects)),
                1,
            )
        forged.append((seq, at_ns, envelope))
    found = replay(forged)
    assert seen and found.differing == 1
    marked = [one for s in found.steps for one in s.decisions if one.recorded == "differs"]
    assert [type(one.effect) for one in marked] == [StartWorkers]


def test_a_replay_that_begins_inside_the_incident_says_so() -> None:
    stream = stream_of("killed-worker")
    opened = step(replay(stream), "worker-exited").seq
    begin = next(at for at, (seq, _, _) in enumerate(stream) if seq > opened)
    found = replay(stream, begin)
    assert found.dropped_before == stream[begin][0] and found.steps[0].seq > opened


def test_too_many_steps_are_left_out_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = replay(stream_of("killed-worker"))
    monkeypatch.setattr(replaying, "MOST_STEPS", 6)
    cut = replay(stream_of("killed-worker"))
    assert len(cut.steps) == 6 and cut.left_out == len(whole.steps) - 6
    assert cut.steps[0] == whole.steps[0] and cut.steps[-1] == whole.steps[-1]


def test_ranks_that_change_alike_are_one_entry() -> None:
    before, after = dict.fromkeys(range(4), "running"), {0: "running", 1: "exited", 2: "exited", 3: "lost"}
    found = difference({**before, "job": "running"}, {**after, "job": "running"})
    assert found == (
        StateChange("ranks 1 and 2", "running", "exited"),
        StateChange("rank 3", "running", "lost"),
    )
