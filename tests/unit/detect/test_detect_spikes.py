"""A jump counts against the curve's own unrest: what jumps about reaches any factor by chance."""

from __future__ import annotations

import json
import random
from math import exp

from detect_windows import window

from torchloom.core.detect.numerics import Curves, peaks_of, spikes
from torchloom.probe.observe.metrics import Metrics
from torchloom.wire.blackbox import METRICS, SIZE, View


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


def test_a_gradient_that_exploded_for_one_step_between_two_looks_is_told_once() -> None:
    chance = random.Random(6)
    curves, said = Curves(), []
    for look in range(1, 60):
        step = 10 * look
        peaks = {"grad_norm": (395, 9e3)} if 40 <= look <= 43 else {"grad_norm": (step - 3, 1.5)}
        curves, found = spikes(curves, step, {"grad_norm": exp(chance.gauss(0, 0.2))}, peaks)
        said += [(finding.inputs["step"], finding.sentence) for finding in found]
    assert len(said) == 1 and said[0][0] == 395 and "9000 at step 395" in said[0][1]


def test_a_peak_counts_where_most_ranks_had_it() -> None:
    at = [window(r, peaks={"loss": (40, 3.0 + r)}) for r in range(3)]
    assert peaks_of([*at, window(3, peaks={"loss": (41, 90.0)})]) == {"loss": (40, 4.0)}
    assert peaks_of([at[0], window(1, peaks={"loss": (41, 90.0)})]) == {}


def test_the_highest_value_stays_in_the_black_box_for_a_while() -> None:
    view = View(memoryview(bytearray(SIZE)))
    metrics = Metrics(view)
    for step in range(260):
        metrics.log({"loss": 50.0 if step == 100 else 1.0}, step, step * 20_000_000)
        told = json.loads(view.read_blob(METRICS) or b"{}")
        if 100 <= step <= 150:
            assert told["peaks"]["loss"] == [100, 50.0]
    assert told["peaks"]["loss"][1] == 1.0


def test_the_highest_of_many_noisy_values_is_no_spike_though_little_is_known_of_the_curve() -> None:
    said = 0
    for seed in range(20):
        chance = random.Random(seed)
        curves = Curves()
        for look in range(1, 120):
            few = [abs(chance.gauss(0, 1)) + 0.05 for _ in range(12)]
            peaks = {"grad_norm": (12 * look - few[::-1].index(max(few)), max(few))}
            curves, found = spikes(curves, 12 * look, {"grad_norm": few[-1]}, peaks)
            said += len(found)
    assert said == 0
