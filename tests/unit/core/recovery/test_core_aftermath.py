"""Workers that die at once of a collective that does not match: the incident says so and not `crash`."""

from __future__ import annotations

from core_story import KILLED, Story

from torchloom.core.recovery.culprit import disagreement
from torchloom.model.fleet import JobState
from torchloom.model.incidents import ExitReport
from torchloom.model.windows import Collective
from torchloom.model.worker import Exit

ABORTED = Exit(None, 6, "spawner")


def all_reduce(seq: int, size: int = 8_700, finished_ns: int = 0) -> Collective:
    return Collective("all_reduce", "default", seq, size, "float32", 100 + seq, finished_ns)


def left(rank: int, *collectives: Collective) -> ExitReport:
    return ExitReport(rank=rank, node="a", exit=ABORTED, at_ns=0, steps=70, collectives=collectives)


def test_sizes_that_differ_at_the_same_number_are_told_and_the_odd_one_is_named() -> None:
    story = Story(a=8)
    story.run(workers=3)
    story.exit(0, ABORTED, steps=70, collectives=(all_reduce(75, finished_ns=1), all_reduce(76)))
    assert story.incident().kind == "crash" and story.incident().culprit == 0, "nothing else is known yet"
    story.exit(1, ABORTED, steps=70, collectives=(all_reduce(76, size=49_388),))
    assert story.incident().kind == "desync" and story.incident().culprit is None, "one against one"
    story.exit(2, KILLED, steps=70, collectives=(all_reduce(76),))
    incident = story.incident()
    assert incident.kind == "desync" and incident.culprit == 1 and "#76 of group default" in incident.verdict
    assert story.state() is JobState.STARTING and story.job().restarts == 1
    story.check_replay()


def test_three_tell_who_is_odd() -> None:
    found = disagreement(
        [left(0, all_reduce(76)), left(1, all_reduce(76, size=49_388)), left(2, all_reduce(76))]
    )
    assert found is not None and found.ranks == (1,) and found.certain


def in_turns(last: int, *, odd: bool) -> list[Collective]:
    """Two sizes in turns, as a job with two DDP modules makes them; the last is not over."""
    sizes = [160, 8_700]
    made = [all_reduce(n, sizes[n % 2], finished_ns=1) for n in range(last - 6, last)]
    return [*made, all_reduce(last, sizes[(last + odd) % 2])]


def test_of_two_that_differ_both_are_named_with_the_one_that_departs_from_what_both_did_before() -> None:
    found = disagreement([left(0, *in_turns(76, odd=True)), left(1, *in_turns(76, odd=False))])
    assert found is not None and found.ranks == (0, 1), "the one that continues as before may be wrong"
    assert found.sentence.endswith(
        "rank 1 continues the order of the operations before, and rank 0 departs from it"
    )


def test_nothing_is_said_of_an_order_that_does_not_repeat() -> None:
    mixed = [all_reduce(n, 100 + n, finished_ns=1) for n in range(70, 76)]
    found = disagreement([left(0, *mixed, all_reduce(76, 4)), left(1, *mixed, all_reduce(76, 8))])
    assert found is not None and "order" not in found.sentence


def test_a_peer_of_the_dead_that_stands_in_the_same_operation_agrees() -> None:
    story = Story(a=8)
    story.run(workers=2)
    story.exit(1, KILLED, steps=70, collectives=(all_reduce(75, finished_ns=1), all_reduce(76)))
    story.exit(0, ABORTED, steps=70, collectives=(all_reduce(76), all_reduce(77)))
    assert story.incident().kind == "crash" and story.incident().culprit == 1


def test_what_ended_well_on_all_ranks_is_nobody_s_fault() -> None:
    done = [left(0, all_reduce(76, finished_ns=9)), left(1, all_reduce(76, size=4, finished_ns=9))]
    assert disagreement(done) is None


def gathering(rank: int, size: int, *log: str, op: str = "all_gather") -> ExitReport:
    made = Collective(op, "default", 9, size, "float32", 100)
    return ExitReport(rank=rank, node="a", exit=ABORTED, at_ns=0, steps=70, collectives=(made,), log_tail=log)


def test_sizes_that_may_differ_count_once_the_backend_has_refused_them() -> None:
    """gloo ends the process that got too much; the rank that sent it is the one to name."""
    said = "what(): [enforce fail at pair.cc:456] Received data size doesn't match expected size. Is there …"
    found = disagreement([gathering(0, 8, said), gathering(1, 8), gathering(2, 12)])
    assert found is not None and found.ranks == (2,)
    assert disagreement([gathering(0, 8), gathering(1, 8), gathering(2, 12)]) is None, "NCCL takes them"


def test_parts_of_an_all_to_all_that_do_not_fit_name_nobody() -> None:
    """Sizes differ there by design: who got too much is ended, and any of its peers may have sent it."""
    said = "what(): [enforce fail at pair.cc:456] Received data size doesn't match expected size. Is there …"
    ends = [gathering(r, 8 + r, *[said] * (r == 2), op="all_to_all_single") for r in range(3)]
    found = disagreement(ends)
    assert found is not None and (found.kind, found.ranks) == ("desync", (0, 1, 2))
    assert "all_to_all_single #9" in found.sentence and "rank 2 on a got more" in found.sentence
    assert disagreement([gathering(r, 8 + r, op="all_to_all_single") for r in range(3)]) is None
