"""What is said of what is found: once, at the right time, and how it ends; which policies are understood."""

from __future__ import annotations

from typing import Any

import pytest

from torchloom.core.policy.parsing import policy_from
from torchloom.core.policy.reporting import (
    AGAIN_S,
    CALM_S,
    NOBODYS_FOR_S,
    SLOW_FOR_S,
    Ended,
    Seen,
    choose,
    key,
)
from torchloom.core.policy.rules import DecisionFacts, decide, level_of, wanted
from torchloom.errors import UsageError
from torchloom.model.findings import Finding
from torchloom.model.fleet import Act, RestartPlan
from torchloom.model.incidents import DecisionOutcome
from torchloom.model.policy import Policy


def finding(kind: str = "hang", lasting_s: float = 2.5, **change: object) -> Finding:
    fields: dict[str, object] = {
        "kind": kind, "ranks": (1,), "sentence": "it hangs", "confidence": 0.9, "lasting_s": lasting_s,
    }  # fmt: skip
    return Finding(**{**fields, **change})  # type: ignore[arg-type]


class Looks:
    """One look after the other, half a second apart."""

    def __init__(self) -> None:
        self.faults: dict[str, Seen] = {}
        self.now_s = 100.0
        self.number = 0

    def look(self, *found: Finding, after_s: float = 0.5, **more: Any) -> tuple[list[Finding], list[Ended]]:
        self.now_s += after_s
        self.number += 1
        self.faults, say, ended = choose(self.faults, found, now_s=self.now_s, look=self.number, **more)
        return say, ended


def test_a_hang_is_said_once_and_again_when_it_lasts_twice_as_long() -> None:
    looks = Looks()
    said = [len(looks.look(finding(lasting_s=2.0 + n / 2))[0]) for n in range(30)]
    assert [n for n, count in enumerate(said) if count] == [0, 4, 12, 28]


def test_it_is_said_again_when_it_becomes_certain_or_names_somebody_else() -> None:
    looks = Looks()
    looks.look(finding())
    assert looks.look(finding())[0] == []
    assert looks.look(finding(certain=True, may_act=True))[0]
    assert looks.look(finding(certain=True, may_act=True, ranks=(2,)))[0]


def test_nothing_is_said_before_the_evidence_is_there() -> None:
    looks = Looks()
    assert looks.look(finding(), ready=False) == ([], [])
    assert looks.look(finding())[0]


def test_a_pause_that_ends_is_over_at_once() -> None:
    looks = Looks()
    looks.look(finding(lasting_s=2.5))
    looks.look(finding(lasting_s=4.2))
    assert looks.look()[1] == [Ended("stuck", 4.2)]
    assert looks.look() == ([], [])


def test_what_was_never_said_need_not_be_ended() -> None:
    looks = Looks()
    looks.look(finding(), ready=False)
    assert looks.look() == ([], [])


def test_a_weaver_that_takes_over_ends_what_another_one_said() -> None:
    looks = Looks()
    assert looks.look(open_keys=("stuck",)) == ([], [])
    assert looks.look(open_keys=("stuck",), after_s=CALM_S)[1] == [Ended("stuck", 0.0)]


def test_slowness_must_be_found_more_than_once_and_for_a_while() -> None:
    looks, slow = Looks(), finding("compute-slow", 0.0)
    assert looks.look(slow)[0] == [] and looks.look(slow)[0] == []
    assert looks.look(slow, after_s=SLOW_FOR_S)[0] == [slow]
    assert looks.look(slow)[0] == []


def test_a_slowdown_of_nobody_must_last_longer() -> None:
    """A job may do something else for a while: a search for the learning rate, another data set."""
    looks, slow = Looks(), finding("global-slowdown", 0.0, ranks=())
    assert looks.look(slow)[0] == [] and looks.look(slow)[0] == []
    assert looks.look(slow, after_s=SLOW_FOR_S)[0] == []
    assert looks.look(slow, after_s=NOBODYS_FOR_S - SLOW_FOR_S)[0] == [slow]


def test_a_number_that_is_bad_again_is_said_again_but_not_at_every_step() -> None:
    looks = Looks()

    def nan(step: int) -> Finding:
        return finding("not-a-number", 0.0, certain=True, inputs={"step": step})

    assert looks.look(nan(50))[0]
    assert looks.look(nan(50), after_s=2 * AGAIN_S)[0] == [], "it is the one that was told"
    assert looks.look(nan(51))[0], "another one, long after"
    assert looks.look(nan(52), after_s=AGAIN_S / 3)[0] == [] == looks.look(nan(53), after_s=AGAIN_S / 3)[0]
    assert looks.look(nan(54), after_s=AGAIN_S)[0]


def test_looks_that_do_not_agree_are_chance() -> None:
    looks, slow = Looks(), finding("compute-slow", 0.0)
    for _ in range(20):
        assert looks.look(slow, after_s=2.0)[0] == [] and looks.look(slow, after_s=2.0)[0] == []
        assert looks.look() == ([], [])


def test_slowness_said_once_is_not_said_again_soon() -> None:
    looks, slow = Looks(), finding("compute-slow", 0.0)
    for _ in range(20):
        looks.look(slow)
    assert looks.look(slow, after_s=20)[0] == []
    assert looks.look(slow, after_s=15)[0] == [slow], "twice as long: it may be worth acting on now"
    assert looks.look(slow, after_s=32)[0] == []


def test_one_look_that_is_repeated_is_not_two() -> None:
    slow = finding("compute-slow", 0.0)
    faults, _, _ = choose({}, [slow], now_s=0.0, look=1)
    _, say, _ = choose(faults, [slow], now_s=60.0, look=1)
    assert say == []


def test_slowness_is_over_only_after_a_while() -> None:
    looks, slow = Looks(), finding("compute-slow", 0.0)
    for _ in range(20):
        looks.look(slow)
    assert looks.look()[1] == [] and looks.look(slow) == ([], [])
    looks.look()
    assert [e.key for e in looks.look(after_s=CALM_S)[1]] == ["slow 1"]


def test_numbers_are_said_at_once() -> None:
    looks, bad = Looks(), finding("not-a-number", 0.0, certain=True)
    assert looks.look(bad)[0] == [bad] and looks.look(bad)[0] == []


def test_causes_of_one_ranks_slowness_are_one_fault() -> None:
    assert key(finding("compute-slow")) == key(finding("host-contention")) != key(finding("hang"))


# -- policies ------------------------------------------------------------------------------------
def test_levels() -> None:
    assert level_of(finding(certain=True)) == "certain"
    assert level_of(finding(may_act=True)) == "lasting"
    assert level_of(finding(confidence=0.85)) == "likely" and level_of(finding(confidence=0.5)) == "suspected"


def test_a_rule_wins_over_the_default() -> None:
    policy = policy_from({"rules": {"hang": {"certain": "report"}, "spike": {"likely": "restart"}}})
    sure = finding(certain=True, may_act=True)
    assert wanted(Policy(), sure) == "restart" and wanted(policy, sure) == "report"
    assert wanted(policy, finding("spike")) == "restart" and wanted(Policy(), finding("spike")) == "report"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"rules": {"hangs": {"certain": "report"}}}, "no detector finds"),
        ({"rules": {"hang": {"sure": "report"}}}, "the level 'sure'"),
        ({"rules": {"hang": {"certain": "evct"}}}, "the action 'evct'; did you mean evict"),
        ({"rules": {"hang": {"certain": "rollback"}}}, "going back helps where numbers are wrong"),
        ({"rules": {"data-imbalance": {"likely": "evict"}}}, "no rank and no node is to blame"),
        ({"rules": {"global-slowdown": {"likely": "restart"}}}, "no rank and no node is to blame"),
        ({"rules": {"compute-slw": {"likely": "report"}}}, "did you mean compute-slow"),
        ({"rules": {"hang": "restart"}}, "is a section"),
        ({"restart_per_hour": 3}, "did you mean restarts_per_hour"),
        ({"dry_run": "yes"}, "dry_run of the policy"),
        ({"rules": {"crash": {"certain": "report"}}}, "no detector finds"),
        ({"dryrun": True}, "dryrun"),
        ({"rules": {"hang": {"certain": "pause"}}}, "reaches no step"),
        ({"cooldown_s": -1}, "must be from 0"),
    ],
)
def test_what_is_not_understood_is_refused_in_a_sentence(data: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        policy_from(data)


def test_another_cause_of_the_same_slowness_is_said_later() -> None:
    looks, first, second = Looks(), finding("host-contention", 0.0), finding("compute-slow", 0.0)
    for _ in range(15):
        looks.look(first)
    assert looks.look(second)[0] == []
    assert looks.look(second, after_s=30)[0] == [second]


def test_a_pause_costs_no_work_and_waits_for_no_cooldown() -> None:
    """A moment after another action: what throws work away has to wait; a pause has not, and delays none."""
    second = 10**9
    nan = finding("not-a-number", 0.0, certain=True)

    def outcome(action: str, before: str) -> DecisionOutcome:
        policy = policy_from({"cooldown_s": 30, "rules": {"not-a-number": {"certain": action}}})
        facts = DecisionFacts(
            plan=RestartPlan(True, 0.0, ""), acts=(Act(before, 95 * second),), now_ns=100 * second
        )
        return decide(policy, nan, facts).outcome

    assert outcome("pause", before="rollback") is DecisionOutcome.DONE
    assert outcome("rollback", before="rollback") is DecisionOutcome.REFUSED
    assert outcome("restart", before="rollback") is DecisionOutcome.REFUSED
    assert outcome("rollback", before="pause") is DecisionOutcome.DONE
