"""A job's history: what is recorded of steps, logged values and settings, and how much it takes."""

from __future__ import annotations

import math

import msgspec

from torchloom.core.history.job_history import MOST_NAMES, PHASES, RANKS_BYTES, History, restored
from torchloom.model.messages import WorkerPulse
from torchloom.model.windows import RankWindow, StepTimes
from torchloom.model.worker import WorkerRef

MS = 1_000_000


def pulse(rank: int, **more: object) -> WorkerPulse:
    known = {"pid": 1, "steps": 5, "step_s": 0.1, "idle_s": 0.0, "phase": "training", "phase_s": 1.0}
    return WorkerPulse(ref=WorkerRef("j", 1, rank, 1), **{**known, **more})  # type: ignore[arg-type]


def window(rank: int, *steps: tuple[int, int, int]) -> RankWindow:
    """Steps as (number, whole ms, waited ms)."""
    made = tuple(StepTimes(n, whole * MS, 0, wait * MS) for n, whole, wait in steps)
    return RankWindow(rank=rank, node="n", taken_ns=0, steps=made)


def highs(history: History, name: str) -> list[float]:
    return [b.high for b in history.tracks[name].best(0).read(0, 1000) if not math.isnan(b.mean)]


def test_every_step_counts_once_and_the_slow_one_is_seen() -> None:
    history = History()
    pulses = {0: pulse(0), 1: pulse(1)}
    history.record(100.0, 1, 2, pulses, [window(0, (1, 100, 90), (2, 100, 90)), window(1, (1, 100, 5))], {})
    history.record(102.0, 1, 2, pulses, [window(0, (2, 100, 90), (3, 700, 5)), window(1, (1, 100, 5))], {})
    assert [round(high, 3) for high in highs(history, "step_s")] == [0.1, 0.7]
    ranks = history.ranks
    assert ranks is not None
    own = ranks.recent.matrix(ranks.recent.high, 0, 100, 100)
    assert max(v for v in own[0] if v == v) > 0.69, "rank 0 took 0.695 s for itself in step 3"
    assert max(v for v in own[1] if v == v) < 0.1
    count = sum(ranks.life.count[lane] for lane in range(0, len(ranks.life.count), ranks.life.lanes))
    assert count == 3, "step 2 was in two windows and counts once"


def test_steps_of_the_next_generation_begin_at_one_again() -> None:
    history = History()
    history.record(1.0, 1, 1, {0: pulse(0)}, [window(0, (500, 100, 0))], {})
    history.record(2.0, 2, 1, {0: pulse(0)}, [window(0, (1, 300, 0))], {})
    assert highs(history, "step_s")[-1] > 0.29


def test_logged_values_and_settings_are_kept_and_what_is_no_number_is_not() -> None:
    history = History()
    pulses = {0: pulse(0, metrics={"loss": 2.0, "bad": math.nan}), 1: pulse(1, metrics={"loss": 4.0})}
    history.record(1.0, 1, 2, pulses, [], {"setting:lr": 0.1})
    (bucket,) = history.tracks["metric:loss"].recent.read(0, 10)
    assert (bucket.mean, bucket.low, bucket.high) == (3.0, 2.0, 4.0)
    assert "metric:bad" not in history.tracks and "setting:lr" in history.tracks
    for number in range(200):
        history.record(2.0, 1, 1, {0: pulse(0, metrics={f"m{number}": 1.0})}, [], {})
    assert len(history.tracks) == MOST_NAMES


def test_a_stalled_rank_and_a_paused_one_are_told_apart() -> None:
    history = History()
    pulses = {0: pulse(0, idle_s=60.0), 1: pulse(1, phase="paused", idle_s=60.0), 2: pulse(2, phase="mine")}
    history.record(1.0, 1, 3, pulses, [window(0), window(1), window(2)], {})
    assert history.ranks is not None
    assert [PHASES[code] for code in history.ranks.recent.codes] == ["stalled", "paused", "other"]


def test_the_history_of_a_thousand_ranks_takes_a_few_megabytes_and_survives_packing() -> None:
    history, ranks = History(), 1000
    pulses = {rank: pulse(rank) for rank in range(ranks)}
    for sample in range(50):
        at = [window(rank, (sample + 1, 100 + rank % 7, 20)) for rank in range(ranks)]
        history.record(sample * 1920.0, 1, ranks, pulses if sample == 0 else {}, at, {})
    data = msgspec.msgpack.encode(history.pack())
    assert len(data) < RANKS_BYTES + (1 << 20)
    again = restored(msgspec.msgpack.decode(data, type=type(history.pack())))
    assert again.ranks is not None and again.ranks.life.buckets * again.ranks.life.width_s >= 86_400
    assert history.ranks is not None
    assert again.ranks.life.high.tobytes() == history.ranks.life.high.tobytes()
