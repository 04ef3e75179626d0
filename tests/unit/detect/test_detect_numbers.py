"""Numbers that went wrong: NaN and Inf, also those that nobody was there to see, and spikes."""

from __future__ import annotations

import random
from math import inf, nan

import pytest
from detect_windows import window
from msgspec.structs import replace

from torchloom.core.detect.numerics import Curves, broken_values, spikes
from torchloom.model.windows import Broken


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_a_broken_value_is_told_at_once(bad: float) -> None:
    _, (found,) = broken_values([window(0, values={"loss": 1.0}), window(1, values={"loss": bad})], {})
    assert found.kind == "not-a-number" and found.ranks == (1,) and found.certain
    _, (everywhere,) = broken_values([window(r, values={"loss": bad}) for r in range(2)], {})
    assert everywhere.ranks == ()
    assert broken_values([window(0, values={"loss": 1.0})], {}) == ({0: 0}, [])


def curve(values: list[float]) -> list[int]:
    """Steps at which a spike is told."""
    curves, told = Curves(), []
    for step, value in enumerate(values, 1):
        curves, found = spikes(curves, step, {"loss": value})
        told += [step] * len(found)
    return told


def test_a_spike_is_told_and_a_falling_or_noisy_curve_is_not() -> None:
    chance = random.Random(1)
    falling = [2 + 8 / (1 + n / 20) + chance.gauss(0, 0.05) for n in range(300)]
    assert curve(falling) == []
    assert curve([*falling[:200], 12.0, *falling[200:]]) == [201]
    assert curve([chance.lognormvariate(0, 0.4) for _ in range(500)]) == []


def test_a_spike_is_told_by_its_training_step() -> None:
    curves, told = Curves(), ""
    for step, value in enumerate([*[1.0] * 60, 12.0], 1):
        curves, found = spikes(curves, step, {"loss": value}, offset=500)
        told += "".join(one.sentence for one in found)
    assert told.startswith("loss jumped to 12 at step 561,")


def test_a_higher_level_becomes_the_usual_one() -> None:
    told = curve([*[1.0] * 50, *[3.0] * 200])
    assert told and told[-1] < 100


def test_a_loss_that_may_be_negative_is_left_alone() -> None:
    assert curve([*[-1.0, 1.0] * 30, 1000.0]) == []


def test_a_value_that_was_broken_between_two_looks_is_told_once() -> None:
    runs, found = broken_values([window(0, values={"loss": 1.0}), window(1, values={"loss": 1.0})], {})
    assert found == []
    seen = [window(0), window(1, values={"loss": 1.0}, broken=Broken(1, 480, "loss", "NaN"))]
    counted = [replace(one, offset=100) for one in seen]
    assert "at step 580" in broken_values(counted, runs)[1][0].sentence, "as the script counts them"
    runs, (told,) = broken_values(seen, runs)
    assert told.ranks == (1,) and told.inputs["step"] == 480 and "at step 480" in told.sentence
    assert broken_values(seen, runs) == (runs, [])
    again = [window(0), window(1, broken=Broken(2, 495, "loss", "Infinity"))]
    assert broken_values(again, runs)[1][0].inputs["step"] == 495


def test_whoever_looks_for_the_first_time_tells_no_old_stories() -> None:
    old = [window(0), window(1, broken=Broken(3, 100, "loss", "NaN"))]
    runs, found = broken_values(old, {})
    assert found == [] and runs == {0: 0, 1: 3}


def test_parameters_that_are_no_numbers_are_told_without_blaming_a_batch() -> None:
    nobody = [window(r, values={"parameters": nan, "loss": 1.0}) for r in range(2)]
    _, (found,) = broken_values(nobody, {})
    assert found.kind == "not-a-number" and found.ranks == () and "step" not in found.inputs
    assert "the parameters of ranks 0 and 1 on node a are not all finite numbers" in found.sentence
    _, (both,) = broken_values([window(0, values={"parameters": nan, "loss": nan})], {})
    assert "step" in both.inputs
    assert both.sentence.startswith("loss, parameters of rank 0 on node a are not finite numbers")
