"""Which faults may be asked for, and to whom an injection goes."""

from __future__ import annotations

import pytest

from torchloom.core.faults import KINDS, check, kind_of
from torchloom.errors import UsageError
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
    ],
)
def test_what_makes_no_sense_is_refused(fault: Fault, ranks: tuple[int, ...], world: int, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        check(fault, ranks, world)


def test_a_wrong_name_gets_the_nearest_one() -> None:
    with pytest.raises(UsageError) as refusal:
        kind_of("kil")
    assert "kill" in str(refusal.value.hint)
