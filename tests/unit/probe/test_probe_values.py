"""Values of scripts as JSON, metrics, hyperparameters and the end record: bounded, and never in the way."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch

from torchloom.probe.end_record import end_record, lost_connection, write_end
from torchloom.probe.observe.hyperparameters import Hyperparameters, describe
from torchloom.probe.observe.metrics import INTERVAL_NS, NAMES, Metrics
from torchloom.probe.observe.values import UNREAD, plain
from torchloom.wire.blackbox import END, HYPERPARAMETERS, METRICS, SIZE, Blob, View


@pytest.fixture
def view() -> View:
    return View(memoryview(bytearray(SIZE)))


def text(view: View, blob: Blob) -> Any:
    data = view.read_blob(blob)
    assert data is not None
    return json.loads(data, parse_constant=pytest.fail) if data else None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 1),
        (True, True),
        (0.5, 0.5),
        (math.nan, "NaN"),
        (math.inf, "Infinity"),
        (-math.inf, "-Infinity"),
        ("x" * 300, "x" * 200),
        (10**400, "1" + "0" * 199),
        ((0.9, 0.999), [0.9, 0.999]),
        ((1, object()), [1, None]),
        (torch.tensor(2.0), 2.0),
        (torch.tensor([[3]]), 3),
        (torch.tensor(math.nan), "NaN"),
        (torch.tensor(True), True),
        (torch.nn.Parameter(torch.tensor(1.5)), 1.5),
        (torch.ones(2), UNREAD),
        (torch.ones((), device="meta"), UNREAD),
        (torch.tensor(1j), UNREAD),
        (numpy.float32(0.25), 0.25),
        (numpy.array([7]), 7),
        (numpy.ones(3), UNREAD),
        (object(), UNREAD),
        ({"a": 1}, UNREAD),
    ],
)
def test_a_value_becomes_json_or_is_left_unread(value: object, expected: object) -> None:
    taken = plain(value)
    assert taken == expected and type(taken) is type(expected)


def test_metrics_are_written_now_and_then_and_alarms_at_once(view: View) -> None:
    metrics = Metrics(view)
    metrics.log({"loss": 1.0}, step=1, now_ns=INTERVAL_NS)
    metrics.log({"loss": 0.5, "accuracy": 0.1}, step=2, now_ns=INTERVAL_NS + 1)
    assert text(view, METRICS)["values"] == {"loss": 1.0}
    metrics.write(3 * INTERVAL_NS)
    assert text(view, METRICS) == {
        "step": 2,
        "at_ns": 3 * INTERVAL_NS,
        "values": {"loss": 0.5, "accuracy": 0.1},
        "broken": [],
        "peaks": {"loss": [1, 1.0]},
        "parameters": True,
    }
    assert metrics.is_finite
    metrics.log({"loss": math.nan}, step=3, now_ns=3 * INTERVAL_NS + 1)
    assert text(view, METRICS)["values"]["loss"] == "NaN" and not metrics.is_finite
    metrics.parameters(False, step=3, now_ns=3 * INTERVAL_NS + 2)
    metrics.log({"loss": 0.5}, step=4, now_ns=3 * INTERVAL_NS + 3)
    assert not metrics.is_finite, "its parameters are not"
    metrics.parameters(True, step=5, now_ns=3 * INTERVAL_NS + 4)
    assert metrics.is_finite


def test_parameters_that_are_no_numbers_are_told_at_once_and_begin_a_run(view: View) -> None:
    metrics = Metrics(view)
    metrics.parameters(False, 7, now_ns=INTERVAL_NS)
    assert text(view, METRICS)["parameters"] is False
    assert text(view, METRICS)["broken"] == [1, 7, "parameters", "NaN"]
    metrics.log({"loss": math.nan}, step=8, now_ns=INTERVAL_NS + 1)
    assert text(view, METRICS)["broken"][0] == 1, "it is the same misfortune"
    metrics.log({"loss": 1.0}, step=9, now_ns=INTERVAL_NS + 2)
    metrics.parameters(True, 10, now_ns=INTERVAL_NS + 3)
    metrics.log({"loss": math.nan}, step=11, now_ns=INTERVAL_NS + 4)
    assert text(view, METRICS)["parameters"] is True and text(view, METRICS)["broken"][:2] == [2, 11]


def test_metrics_are_bounded(view: View) -> None:
    metrics = Metrics(view)
    metrics.log({f"{n}" + "y" * 300: "é" * 300 for n in range(1000)}, step=1, now_ns=INTERVAL_NS)
    assert 0 < len(text(view, METRICS)["values"]) < NAMES


def test_a_number_on_a_device_is_fetched_without_waiting(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU here: a stand-in for the copy shows the order of events."""
    metrics = Metrics(view)
    arrived = False
    host, event = torch.tensor(4.0), SimpleNamespace(query=lambda: arrived)
    monkeypatch.setattr(metrics, "_fetch", lambda name, value: metrics._coming.update({name: (host, event)}))
    metrics.log({"loss": torch.ones((), device="meta")}, step=1, now_ns=INTERVAL_NS)
    assert text(view, METRICS)["values"] == {"loss": None}
    metrics.write(3 * INTERVAL_NS)
    arrived = True
    metrics.write(5 * INTERVAL_NS)
    assert text(view, METRICS)["values"] == {"loss": 4.0}


def test_hyperparameters_are_rewritten_only_when_they_change(view: View) -> None:
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))], lr=torch.tensor(0.5))
    hyper = Hyperparameters(view)
    hyper.write_changed([optimizer], 1)
    first = view.blob_version(HYPERPARAMETERS)
    hyper.write_changed([optimizer], 2)
    assert view.blob_version(HYPERPARAMETERS) == first
    optimizer.param_groups[0]["lr"].fill_(0.25)
    hyper.write_changed([optimizer], 3)
    told = text(view, HYPERPARAMETERS)
    assert told["step"] == 3
    assert told["optimizers"][0]["groups"][0]["lr"] == 0.25
    assert told["optimizers"][0]["groups"][0]["betas"] == [0.9, 0.999]
    hyper.write_changed([], 4)
    assert text(view, HYPERPARAMETERS) == told


def test_a_learning_rate_on_a_device_is_not_read() -> None:
    group = {"params": [1, 2], "lr": torch.ones((), device="meta"), "param_names": ["a", "b"]}
    described, left_out = describe([SimpleNamespace(param_groups=[group])])
    assert described[0]["groups"] == [{"parameters": 2, "lr": None}]
    assert left_out == 0


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (RuntimeError("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:1"), True),
        (RuntimeError("Read error [127.0.0.1]:34501: Connection reset by peer"), True),
        (
            torch.distributed.DistNetworkError("Failed to recv, got 0 bytes. Connection was likely closed."),
            True,
        ),
        (
            torch.distributed.DistBackendError(
                "NCCL error: remote process exited or there was a network error"
            ),
            True,
        ),
        (RuntimeError("CUDA out of memory"), False),
        (ConnectionResetError(104, "Connection reset by peer"), False),
        (ValueError("connection closed by peer"), False),
    ],
)
def test_a_secondary_exit_is_told_from_a_culprits(error: BaseException, lost: bool) -> None:
    assert lost_connection(error) is lost
    assert end_record(error, stopped=False)["connection_lost"] is lost


def test_an_end_record_always_fits_and_is_json(view: View) -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    for error in (RuntimeError("\x00é" * 100_000), Broken(), SystemExit("☃" * 10_000), SystemExit(-1)):
        write_end(view, end_record(error, stopped=False))
        assert text(view, END)["code"] == (255 if error.args == (-1,) else 1)
