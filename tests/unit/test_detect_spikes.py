"""A jump counts against the curve's own unrest: what jumps about reaches any factor by chance."""

from __future__ import annotations

import random
from math import exp

from torchloom.core.detect.numerics import Curves, spikes


def told(values: list[float]) -> list[str]:
    curves, said = Curves(), []
    for step, value in enumerate(values, start=1):
        curves, found = spikes(curves, step, {"grad_norm": value})
        said += [finding.sentence for finding in found]
    return said


def test_a_gradient_that_is_mostly_noise_is_no_spike_though_it_reaches_many_times_its_usual_value() -> None:
    chance = random.Random(4)
    values = [abs(chance.gauss(0, 1)) + 0.05 for _ in range(2000)]
    assert max(values) > 4 * sorted(values)[1000]
    assert told(values) == []


def test_five_times_the_usual_value_of_a_quiet_curve_is_a_spike() -> None:
    chance = random.Random(5)
    values = [exp(chance.gauss(0, 0.3)) for _ in range(100)]
    assert len(told([*values, 5 * max(values)])) == 1
