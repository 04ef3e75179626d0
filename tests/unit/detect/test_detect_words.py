"""Numbers in verdicts are fine enough to say something."""

from __future__ import annotations

import pytest
from detect_windows import reduce

from torchloom.core.detect import words


@pytest.mark.parametrize(
    ("before_s", "after_s", "said"),
    [
        (0.0812, 0.094, "81.2 ms to 94 ms"),
        (0.104, 0.1351, "104 ms to 135 ms"),
        (0.9, 1.25, "0.9 s to 1.25 s"),
        (12.04, 15.16, "12 s to 15.2 s"),
    ],
)
def test_a_change_is_told_in_one_unit_and_its_difference_is_seen(
    before_s: float, after_s: float, said: str
) -> None:
    assert words.change(before_s, after_s) == said


def test_a_group_without_a_name_is_not_named() -> None:
    """torchft's process groups have none."""
    assert words.operation(reduce(24, 1.0, group="")) == "all_reduce #24"
    assert words.operation(reduce(24, 1.0, group="dp")) == "all_reduce #24 of group dp"
