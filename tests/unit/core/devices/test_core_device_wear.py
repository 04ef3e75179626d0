"""What is counted on devices, how it fades, and the risk that follows from it."""

from __future__ import annotations

import msgspec
import pytest

from torchloom.core.devices.hazard import BIAS, WEIGHTS, features, risk
from torchloom.core.devices.wear import DAY_S, SLOT_S, WearMeter, at, grown
from torchloom.model.device_wear import TestMetric, TestResult, WearCounts, WearHistory
from torchloom.model.devices import DeviceReading

NOW = 10**18


def reading(source: str = "nvml", states: tuple[str, ...] = (), **values: float) -> DeviceReading:
    return DeviceReading(device="GPU-0", source=source, values=values, states=states)


def counted(meter: WearMeter) -> WearCounts:
    (found,) = meter.report()
    return found.counts


def after(days: float = 2, **counts: float) -> WearHistory:
    """A device that was watched for so long, with these counts at the end."""
    quiet = grown(None, WearCounts(watched_s=0.9 * days * DAY_S), NOW - int(DAY_S * 1e9))
    return grown(quiet, WearCounts(watched_s=0.1 * days * DAY_S, **counts), NOW)


def test_only_what_is_new_counts_and_a_counter_that_was_reset_starts_again() -> None:
    meter = WearMeter()
    for second, errors in enumerate((1000, 1003, 1003, 5)):
        meter.take(reading(ecc_corrected_errors=errors), float(second))
    found = counted(meter)
    assert (found.ecc_corrected, found.watched_s) == (8, 3)
    assert meter.report() == ()


def test_two_sources_of_one_device_do_not_double_its_time() -> None:
    meter = WearMeter()
    for second in range(11):
        meter.take(reading("nvml"), float(second))
        meter.take(reading("scrape"), second + 0.5)
    assert counted(meter).watched_s == pytest.approx(10.5)


def test_time_in_which_a_source_did_not_answer_was_not_watched() -> None:
    meter = WearMeter()
    for second in (0.0, 10.0, 5000.0, 5010.0):
        meter.take(reading(states=("throttle: thermal",)), second)
    found = counted(meter)
    assert (found.watched_s, found.throttled_s) == (20, 20)


def test_xids_of_the_hardware_count_and_those_of_programs_do_not() -> None:
    meter = WearMeter()
    meter.take(reading(), 0.0)
    meter.take(reading(states=("xid: 13", "xid: 48")), 1.0)
    meter.take(reading(states=("xid: 13", "xid: 48", "xid: garbage", "xid: 48")), 2.0)
    assert meter.eventful
    assert counted(meter).hard_errors == 2
    assert not meter.eventful


def test_sums_fade_with_their_half_lives() -> None:
    wear = after(ecc_corrected=100)
    week = at(wear, NOW + int(7 * DAY_S * 1e9))
    assert week.week.ecc_corrected == pytest.approx(50)
    assert at(wear, NOW + int(DAY_S / 4 * 1e9)).recent.ecc_corrected == pytest.approx(50)
    assert week.watched_s == wear.watched_s


def test_a_device_that_was_hardly_watched_is_not_judged() -> None:
    assert risk(None, [], NOW).probability is None
    found = risk(after(days=0.5, ecc_corrected=10_000), [], NOW)
    assert found.probability is None and found.why == "not enough data: watched for 12.0 of 24 h"


def test_a_device_without_signs_has_the_base_risk_and_every_sign_raises_it() -> None:
    base = risk(after(), [], NOW)
    assert base.probability is not None and base.probability < 0.005
    assert base.why == "no signs" and base.drivers == ()
    for sign in ("ecc_corrected", "hard_errors", "link_errors", "blamed"):
        found = risk(after(**{sign: 5.0}), [], NOW)
        assert found.probability is not None and found.probability > base.probability, sign
        assert found.drivers
    hot = risk(after(throttled_s=0.2 * DAY_S), [], NOW)
    assert hot.probability is not None and hot.probability > base.probability
    assert all(weight > 0 for weight in WEIGHTS.values()) and BIAS < 0


def test_the_reasons_are_in_words_and_the_strongest_is_first() -> None:
    found = risk(after(ecc_corrected=5000, link_errors=1), [], NOW)
    assert found.drivers[0].feature == "rising"
    assert "corrected ECC errors rising from" in found.why
    assert [one.weight for one in found.drivers] == sorted(
        (one.weight for one in found.drivers), reverse=True
    )


def spans(*errors: float, watched_s: float = 6 * 3600.0) -> WearHistory:
    """A device with so many corrected errors in each of the last spans of six hours; None was not watched."""
    wear, found = None, NOW - NOW % int(SLOT_S * 1e9)
    for at_, count in enumerate(errors):
        counts = WearCounts(watched_s=watched_s, ecc_corrected=count)
        wear = grown(wear, counts, found - int((len(errors) - at_) * SLOT_S * 1e9))
    assert wear is not None
    return wear


def lasting_at_end(wear: WearHistory) -> float:
    return features(wear, [], NOW - NOW % int(SLOT_S * 1e9))["lasting ecc"]


def test_errors_that_last_are_told_from_a_burst_and_from_a_device_that_always_has_some() -> None:
    quiet = [0.0] * 6
    burst, lasts = spans(*quiet, 0, 40), spans(*quiet, 20, 40)
    assert lasting_at_end(burst) == 0.0 and 1.2 < lasting_at_end(lasts) < 1.4
    assert lasting_at_end(spans(*quiet, 40, 0)) == 0.0, "a burst that is over"
    assert lasting_at_end(spans(*[30.0] * 8)) == 0.0, "as always"
    assert lasting_at_end(spans(*quiet, 1e9, 1e9)) == 1.5
    now = NOW - NOW % int(SLOT_S * 1e9)
    said = next(one.says for one in risk(lasts, [], now).drivers if one.feature == "lasting ecc")
    assert said == "corrected ECC errors that last: 20 or more in six hours, 0 a day before"
    assert lasting_at_end(spans(*quiet, 20, 40, watched_s=1800.0)) == 0.0, "half an hour is too short"


def test_spans_are_bounded_and_reports_of_one_span_are_added() -> None:
    wear = spans(*[1.0] * 50)
    assert len(wear.slots) == 9
    again = grown(wear, WearCounts(watched_s=60.0, ecc_corrected=5.0), wear.at_ns)
    assert len(again.slots) == 9 and again.slots[-1].ecc_corrected == 6.0
    back = grown(wear, WearCounts(ecc_corrected=1.0), wear.at_ns - int(DAY_S * 1e9))
    assert back.slots[-1].number == wear.slots[-1].number, "a clock that goes back makes no new span"
    old = msgspec.json.decode(msgspec.json.encode(wear).replace(b'"slots"', b'"unknown"'), type=WearHistory)
    assert old.slots == () and lasting_at_end(old) == 0.0, "a snapshot from before"


def test_only_a_recent_test_counts() -> None:
    slow = TestMetric(name="gemm", value=1.0, median=2.0, shortfall=0.5)
    result = TestResult(source="superbench", passed=True, metrics=(slow,), at_ns=NOW)
    assert features(after(), [result], NOW)["slow"] == 0.5
    found = risk(after(), [result], NOW)
    assert "gemm is 50 % worse than the fleet's median" in found.why
    failed = TestResult(source="loom", passed=False, why="wrong", at_ns=NOW)
    assert features(after(), [result, failed], NOW)["slow"] == 1.0
    assert features(after(), [result], NOW + int(31 * DAY_S * 1e9))["slow"] == 0.0


def test_the_shipped_weights_rank_devices_of_a_fleet_they_were_not_fitted_to() -> None:
    """A small fleet with a fixed seed; `python bench/prediction.py` has the figures."""
    from torchloom.chaos.device_lives import FleetKind, observations

    kind = FleetKind(devices=150, days=20, degrades_a_day=0.02)
    seen = list(observations(kind, seed=7))
    assert seen == list(observations(kind, seed=7)), "the same seed is the same fleet"
    scores = [(sum(WEIGHTS[n] * v for n, v in one.features.items()), one) for one in seen]
    failing = [score for score, one in scores if one.failed and one.cause not in ("silent", "sudden")]
    healthy = [score for score, one in scores if not one.failed]
    assert len(failing) > 20
    above = sum(f > h for f in failing for h in healthy) / (len(failing) * len(healthy))
    assert above > 0.75
    hopeless = [score for score, one in scores if one.failed and one.cause == "silent"]
    assert hopeless and sum(hopeless) / len(hopeless) < sum(failing) / len(failing)


def test_reports_are_sent_hourly_and_less_often_when_nothing_happened() -> None:
    from types import SimpleNamespace

    from torchloom.agent.health.wear_reports import EVENTFUL_S, QUIET_S, WearReports
    from torchloom.model.worker import DeviceUse

    sent = []
    host = SimpleNamespace(
        node="a",
        session="s",
        devices=SimpleNamespace(all=lambda: (DeviceUse("GPU-0", "gpu", ""),)),
        reporter=SimpleNamespace(say=lambda event, id: sent.append(event)),
    )
    meter = WearMeter()
    reports = WearReports(host, meter)  # type: ignore[arg-type]
    start_s = reports._last_s
    meter.take(reading(), 0.0)
    meter.take(reading(), 1.0)
    reports.look(start_s + EVENTFUL_S + 1)
    assert not sent
    meter.take(reading(states=("xid: 48",)), 2.0)
    reports.look(start_s + EVENTFUL_S + 1)
    assert len(sent) == 1 and sent[0].wear[0].counts.hard_errors == 1
    meter.take(reading(states=("xid: 48",)), 3.0)
    reports.look(start_s + EVENTFUL_S + 9 + QUIET_S)
    assert len(sent) == 2
    reports.look(start_s + EVENTFUL_S + 20 + 2 * QUIET_S)
    assert len(sent) == 2, "nothing was watched since"
