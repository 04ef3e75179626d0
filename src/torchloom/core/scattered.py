"""Whether any of many workers is as asked, in an order that suits no order of arrival badly.

Asked after each of thousands of reports whether one is still missing, a walk from the front finds it at the
end if the reports come in order: a job of n ranks would cost n² / 2 looks. Leaping through the ranks finds it
after as many looks as chance would need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd

from torchloom.model.fleet import Worker

GOLDEN = 0.6180339887498949


def any_of(workers: Sequence[Worker], is_so: Callable[[Worker], bool]) -> bool:
    count = len(workers)
    leap = max(1, int(count * GOLDEN))
    while gcd(leap, count) > 1:
        leap += 1
    at = 0
    for _ in range(count):
        if is_so(workers[at]):
            return True
        at = (at + leap) % count
    return False
