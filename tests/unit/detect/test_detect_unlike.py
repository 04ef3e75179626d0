"""Another root or another reduction in a collective that ends well: told by what windows of agents say."""

from __future__ import annotations

from detect_windows import reduce, window

from torchloom.core.detect.encoding import Recorded
from torchloom.core.detect.unlike import other_operations
from torchloom.core.detect.window import Collective, GroupPosition, RankWindow

STEPS = 20


def rank(
    number: int, size: int, of: list[dict[str, object]], steps: int = STEPS, unread: tuple[int, ...] = ()
) -> RankWindow:
    """A rank that does these operations in each step, as its agent reads them. `unread` steps came too fast
    for the agent, which leaves them out."""
    recorded: Recorded[str] = Recorded()
    seq = 0
    for step in range(1, steps + 1):
        mine: list[tuple[str, Collective]] = []
        for one in of:
            seq += 1
            fields = {"finished_ns": 10**12, **one}
            mine.append(("dp", reduce(seq, 1.0, **fields)))
        if step not in unread:
            recorded.step(step, 10**8, 0, mine, {"dp": 0})
    groups = (GroupPosition("dp", size, number, seq, seq),)
    return window(number, steps=tuple(recorded.steps), groups=groups, steps_done=steps)


SUM: dict[str, object] = {"reduction": "SUM"}
MAX: dict[str, object] = {"reduction": "MAX"}


def root(number: int) -> dict[str, object]:
    return {"op": "broadcast", "peer": number}


def test_max_against_sum_is_told() -> None:
    windows = [rank(r, 4, [SUM, MAX if r == 2 else SUM]) for r in range(4)]
    (found,) = other_operations(windows)
    assert (found.kind, found.ranks, found.certain) == ("divergence", (2,), True)
    assert found.sentence.startswith(
        "not all ranks do the same as #40 of group dp: rank 2: all_reduce MAX; "
        "ranks 0, 1 and 3: root 0, or a sum"
    )


def test_another_root_is_told_among_two() -> None:
    (found,) = other_operations([rank(0, 2, [SUM, root(0)]), rank(1, 2, [SUM, root(1)])])
    assert found.ranks == (0, 1) and "rank 1: broadcast with root 1" in found.sentence


def test_ranks_that_agree_are_let_be_though_they_are_looked_at_at_different_times() -> None:
    windows = [rank(r, 3, [SUM, MAX, root(1)], STEPS + r) for r in range(3)]
    assert other_operations(windows) == []


def test_a_step_that_an_agent_could_not_read_is_no_difference() -> None:
    """Seen with FSDP2, whose gradients are averages, on a busy host."""
    windows = [rank(0, 2, [SUM, MAX], unread=(STEPS - 3, STEPS - 2)), rank(1, 2, [SUM, MAX])]
    assert other_operations(windows) == []
    windows = [rank(0, 2, [SUM, SUM], unread=(STEPS - 3,)), rank(1, 2, [SUM, MAX], unread=(STEPS - 4,))]
    (found,) = other_operations(windows)
    assert "#40 of group dp" in found.sentence, "the steps that both were read of are compared"


def test_nothing_is_said_of_a_group_whose_ranks_are_not_all_seen_or_not_told() -> None:
    assert other_operations([rank(0, 3, [SUM]), rank(1, 3, [MAX])]) == []
    many = [MAX] * 20
    assert other_operations([rank(0, 2, [SUM] * 20), rank(1, 2, many)]) == []


SAMPLED: dict[str, object] = {"exact": False}


def test_a_recorder_that_samples_is_compared_by_the_place_in_the_step() -> None:
    """The backend's numbers differ by what each rank sent and received meanwhile."""
    windows = [rank(r, 4, [SUM | SAMPLED, (MAX if r == 2 else SUM) | SAMPLED]) for r in range(4)]
    (found,) = other_operations(windows)
    assert (found.kind, found.ranks, found.certain) == ("divergence", (2,), False)
    assert found.sentence.startswith(
        "not all ranks do the same as collective 2 of step 20 of group dp: rank 2:"
    )


def test_sampled_ranks_that_agree_or_make_different_numbers_are_let_be() -> None:
    alike = [rank(r, 3, [SUM | SAMPLED, MAX | SAMPLED], STEPS + r) for r in range(3)]
    assert other_operations(alike) == []
    more = [rank(r, 2, [MAX | SAMPLED, *[SUM | SAMPLED] * r]) for r in range(2)]
    assert other_operations(more) == []
