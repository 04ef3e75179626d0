"""Which faults may be asked for, and to whom an injection goes."""

from __future__ import annotations

import pytest
from core_story import Story

from torchloom.core.injection import KINDS, check, kind_of
from torchloom.errors import UsageError
from torchloom.model.effects import InjectFault
from torchloom.model.events import FaultInjected
from torchloom.model.faults import Fault


def test_a_number_left_out_is_filled_in() -> None:
    assert check(Fault(kind="slow"), (1,), 4).amount == KINDS["slow"].default


@pytest.mark.parametrize(
    ("fault", "ranks", "world", "why"),
    [
        (Fault(kind="kill"), (), 2, "No rank"),
        (Fault(kind="kill"), (2,), 2, "no rank 2"),
        (Fault(kind="kill", amount=3), (0,), 2, "no number"),
        (Fault(kind="kill", duration_s=3), (0,), 2, "happens once"),
        (Fault(kind="kill", at_step=3), (0,), 2, "from outside"),
        (Fault(kind="slow", amount=0.5), (0,), 2, "cannot have 0.5"),
        (Fault(kind="slow", where="data"), (0,), 2, "has no place"),
        (Fault(kind="deadlock"), (0,), 2, "all ranks"),
        (Fault(kind="deadlock"), (0,), 1, "all ranks"),
        (Fault(kind="hang", duration_s=-1), (0,), 1, "lasts"),
        (Fault(kind="partition"), (0,), 2, "needs an end"),
        (Fault(kind="partition", duration_s=5, at_step=3), (0,), 2, "from outside"),
        (Fault(kind="slow-link"), (0,), 4, "needs its other end"),
        (Fault(kind="slow-link", peer=0), (0,), 4, "no other end"),
        (Fault(kind="slow-link", peer=4), (0,), 4, "no other end"),
        (Fault(kind="slow-sender", peer=1), (0,), 4, "has no peer"),
        (Fault(kind="slow-receiver"), (0, 1), 2, "Nobody is left"),
        (Fault(kind="slow-sender", amount=0), (0,), 4, "cannot have 0"),
    ],
)
def test_what_makes_no_sense_is_refused(fault: Fault, ranks: tuple[int, ...], world: int, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        check(fault, ranks, world)


def test_a_wrong_name_gets_the_nearest_one() -> None:
    with pytest.raises(UsageError) as refusal:
        kind_of("kil")
    assert "kill" in str(refusal.value.hint)


@pytest.mark.parametrize(
    ("fault", "ranks", "told", "peers"),
    [
        (Fault(kind="slow-sender"), (2,), {2}, ()),
        (Fault(kind="slow-receiver"), (2,), {0, 1, 2, 3}, (2,)),
        (Fault(kind="slow-link", peer=0), (3,), {0, 3}, (0,)),
        (Fault(kind="partition", duration_s=9), (1,), {1}, ()),
    ],
)
def test_a_slow_network_goes_to_those_who_send_and_those_who_know_the_connections(
    fault: Fault, ranks: tuple[int, ...], told: set[int], peers: tuple[int, ...]
) -> None:
    story = Story(a=8)
    story.run(workers=4)
    effects = story.tell(
        FaultInjected(job="j", generation=1, ranks=ranks, fault=fault, by="ann", name="fault-1")
    )
    (effect,) = [effect for effect in effects if isinstance(effect, InjectFault)]
    assert {ref.rank for ref in effect.workers} == told and effect.peers == peers


def test_what_is_done_to_the_store_goes_to_no_worker() -> None:
    story = Story(a=8)
    story.run(workers=2)
    fault = check(Fault(kind="checkpoint-damage"), (0, 1), 2)
    told = FaultInjected(job="j", generation=1, ranks=(0, 1), fault=fault, by="ann", name="fault-1")
    assert story.tell(told) == []
