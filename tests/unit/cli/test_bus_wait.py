"""How long a control service waits for its bus when it starts."""

from __future__ import annotations

import pytest

from torchloom.cli.service.weaver import CONNECT_WITHIN_S, connect_within_s
from torchloom.errors import UsageError


@pytest.mark.parametrize(("named", "seconds"), [("", CONNECT_WITHIN_S), ("150", 150.0), ("0.5", 0.5)])
def test_the_environment_says_how_long(monkeypatch: pytest.MonkeyPatch, named: str, seconds: float) -> None:
    monkeypatch.setenv("LOOM_NATS_WAIT_S", named)
    assert connect_within_s() == seconds


@pytest.mark.parametrize("named", ["0", "-1", "nan", "inf", "1e9", "soon"])
def test_what_is_no_time_is_refused(monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    monkeypatch.setenv("LOOM_NATS_WAIT_S", named)
    with pytest.raises(UsageError, match="LOOM_NATS_WAIT_S is a number of seconds"):
        connect_within_s()
