"""Subjects are built and parsed in one place, and parse back to what they were built from."""

from __future__ import annotations

import pytest

from torchloom.errors import UsageError
from torchloom.model.ids import check_token, replica_id, token_from, worker_id
from torchloom.wire import subjects


def matches(pattern: str, subject: str) -> bool:
    """NATS' own rule: `*` is one token, `>` the rest."""
    wanted, parts = pattern.split("."), subject.split(".")
    for i, token in enumerate(wanted):
        if token == ">":
            return len(parts) > i
        if i >= len(parts) or token not in ("*", parts[i]):
            return False
    return len(parts) == len(wanted)


def test_events_and_telemetry_name_their_node() -> None:
    assert subjects.node_of(subjects.node_event("host-1")) == "host-1"
    assert subjects.node_of(subjects.telemetry("host-1")) == "host-1"


@pytest.mark.parametrize(
    "subject", ["", "loom.v1.event.node", "loom.v2.event.node.a.report", "other", subjects.command("a")]
)
def test_other_subjects_name_no_node(subject: str) -> None:
    assert subjects.node_of(subject) is None
    assert subjects.node_of(subjects.weaver_event("submit")) is None


def test_what_is_appended_is_in_the_stream_and_nothing_else() -> None:
    for appended in (subjects.node_event("a"), subjects.weaver_event("timer"), subjects.DECISIONS):
        assert matches(subjects.EVENTS, appended)
    for other in (subjects.telemetry("a"), subjects.command("a"), subjects.query("a")):
        assert not matches(subjects.EVENTS, other)
    assert matches(subjects.TELEMETRY, subjects.telemetry("a"))


@pytest.mark.parametrize("good", ["a", "train-1", "0", "a" * 63])
def test_good_tokens(good: str) -> None:
    assert check_token(good, "job id") == good


@pytest.mark.parametrize(
    "bad", ["", "-a", "a-", "A", "a.b", "a b", "*", ">", "../x", "a/b", "ä", "a" * 64, "a\n"]
)
def test_bad_tokens_are_refused_in_one_sentence(bad: str) -> None:
    with pytest.raises(UsageError, match="is not a valid job id"):
        check_token(bad, "job id")


@pytest.mark.parametrize(
    ("text", "token"),
    [("Train_GPT.py", "train-gpt-py"), ("...", "job"), ("x" * 90, "x" * 48), ("é", "job")],
)
def test_the_nearest_token(text: str, token: str) -> None:
    assert token_from(text, "job") == token
    check_token(token_from(text, "job"), "job id")


def test_names_of_replicas_and_workers() -> None:
    assert replica_id("job", 2) == "job/2" and worker_id("job", 5) == "job/rank-5"
