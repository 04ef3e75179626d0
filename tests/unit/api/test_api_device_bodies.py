"""Bodies about devices: numbers that are none never reach the stream, where they could not be read again."""

from __future__ import annotations

import json

import msgspec
import pytest
from pydantic import ValidationError

from torchloom.api.schemas.devices import DevicePolicyBody, HealthRequest, ImportedTest
from torchloom.model.device_wear import DeviceResult, TestMetric, TestResult
from torchloom.model.events import DeviceTestsImported

NO_NUMBERS = ("NaN", "Infinity", "-Infinity", "1e400")


@pytest.mark.parametrize("number", NO_NUMBERS)
def test_what_is_no_number_is_refused(number: str) -> None:
    bodies = {
        HealthRequest: '{"level": "ok", "source": "x", "values": {"a": %s}}',
        ImportedTest: '{"node": "n", "passed": true, "metrics": [{"name": "a", "value": %s}]}',
        DevicePolicyBody: '{"risk": %s}',
    }
    for schema, text in bodies.items():
        with pytest.raises(ValidationError):
            schema.model_validate(json.loads(text % number))
    median = '{"node": "n", "passed": true, "metrics": [{"name": "a", "value": 1, "median": %s}]}'
    with pytest.raises(ValidationError):
        ImportedTest.model_validate(json.loads(median % number))


def test_why_it_is_refused_an_event_with_one_cannot_be_read_again() -> None:
    """It becomes null in JSON."""
    metric = TestMetric(name="a", value=float("nan"))
    event = DeviceTestsImported(
        results=(DeviceResult("GPU-a", TestResult(source="x", passed=True, metrics=(metric,))),), by="ann"
    )
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(event), type=DeviceTestsImported)


def test_names_of_values_are_bounded() -> None:
    with pytest.raises(ValidationError):
        HealthRequest.model_validate({"level": "ok", "source": "x", "values": {"a" * 65: 1.0}})
    with pytest.raises(ValidationError):
        HealthRequest.model_validate({"level": "ok", "source": "x\x1b[2J"})
