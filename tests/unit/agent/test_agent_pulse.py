"""The metrics a worker logs reach the pulse: written by the probe, read by the agent, no stand-in between."""

from __future__ import annotations

import json
import math

from torchloom.agent.observe.pulse import numbers
from torchloom.probe.observe.metrics import Metrics
from torchloom.wire.blackbox import METRICS, SIZE, View


def test_what_the_probe_writes_is_what_the_agent_tells() -> None:
    view = View(memoryview(bytearray(SIZE)))
    Metrics(view).log({"loss": 0.5, "step": 7, "bad": float("nan"), "text": "x"}, step=3, now_ns=1)
    blob = view.read_blob(METRICS)
    assert blob is not None
    told = numbers(json.loads(blob))
    assert told.pop("bad") != told.get("bad")
    assert told == {"loss": 0.5, "step": 7.0}


def test_infinities_are_news_and_nonsense_is_not() -> None:
    assert numbers({"values": {"a": "Infinity", "b": None, "c": True}}) == {"a": math.inf, "c": 1.0}
    assert numbers({"values": 3}) == numbers([]) == numbers(None) == {}
