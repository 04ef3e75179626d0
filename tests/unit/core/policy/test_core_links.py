"""Slow transfers make the ranks measure their links, rarely; what they tell becomes verdict and matrix."""

from __future__ import annotations

from itertools import permutations

import pytest
from core_story import S
from steering_story import SteeringStory

from torchloom.model.events import FindingEnded, FindingMade
from torchloom.model.findings import Finding
from torchloom.model.policy import Policy
from torchloom.model.transaction.messages import Changed, Kind, Said

MS = 1_000_000
RANKS = (0, 1, 2, 3)


def slow_transfers(generation: int = 1) -> FindingMade:
    finding = Finding(
        kind="communication-slow", ranks=(), sentence="transfers take longer", confidence=0.8, ask=RANKS
    )
    return FindingMade(job="j", generation=generation, finding=finding, steps=200)


def running(workers: int = 4, **more: object) -> SteeringStory:
    story = SteeringStory(a=8)
    story.run(workers=workers, **more)
    story.step()
    story.now_ns += 60 * S
    return story


def measured(
    slow_sender: int | None = None, ranks: tuple[int, ...] = RANKS
) -> dict[int, tuple[Changed, ...]]:
    """What every rank tells: a megabyte takes 1 ms, from the slow one 100 ms."""
    return {
        a: tuple((f"{a}>{b}", MS // 10, (100 if a == slow_sender else 1) * MS) for b in ranks if b != a)
        for a in ranks
    }


def carry(story: SteeringStory, told: dict[int, tuple[Changed, ...]]) -> None:
    for said in (Said.PREPARED, Said.ARMED):
        story.answer(said, tuple(told))
    for rank, changed in told.items():
        story.answer(Said.APPLIED, (rank,), changed=changed)


def probes(story: SteeringStory) -> list[str]:
    return [r.state for r in story.job().operations.values() if r.kind is Kind.PROBE]


def test_slow_transfers_are_probed_and_the_incident_learns_whose_fault_it_is() -> None:
    story = running()
    story.tell(slow_transfers())
    incident = story.incident()
    assert incident.kind == "communication-slow" and "are probed at the next step" in incident.decision
    carry(story, measured(slow_sender=2))
    assert probes(story) == ["applied"]
    assert incident.open and (incident.kind, incident.culprit) == ("sender-slow", 2)
    assert incident.verdict.startswith("rank 2 on node a sends slowly: a megabyte takes 0.1 s there")
    assert incident.links is not None and len(incident.links.delays) == len(list(permutations(RANKS, 2)))
    assert incident.links == story.job().links and incident.links.verdict == incident.verdict
    (record,) = story.job().operations.values()
    assert record.changed == () and record.differing == {} and incident.verdict in record.reason
    story.tell(slow_transfers())
    assert incident.kind == "sender-slow", "what is known better stays"
    story.tell(FindingEnded(job="j", generation=1, key="communication-slow", lasted_s=30.0))
    assert not incident.open and not story.job().findings
    story.check_replay()


def test_where_nothing_stands_out_the_matrix_is_kept_all_the_same() -> None:
    story = running()
    story.tell(slow_transfers())
    carry(story, measured())
    incident = story.incident()
    assert incident.kind == "communication-slow" and incident.open
    assert incident.links is not None and "is unusual" in incident.links.verdict
    story.check_replay()


def test_a_probe_on_suspicion_is_rare() -> None:
    story = running()
    story.tell(slow_transfers())
    story.tell(slow_transfers())
    assert len(probes(story)) == 1, "one is under way"
    carry(story, measured())
    for later_s, count in ((30, 1), (601, 2)):
        story.tell(FindingEnded(job="j", generation=1, key="communication-slow", lasted_s=30.0))
        story.now_ns += later_s * S
        story.tell(slow_transfers())
        assert len(probes(story)) == count, f"{later_s} s later: {story.incident().decision}"


@pytest.mark.parametrize("policy", [Policy(probe_links=False), Policy(dry_run=True)])
def test_a_policy_can_turn_it_off(policy: Policy) -> None:
    story = running(policy=policy)
    story.tell(slow_transfers())
    assert probes(story) == [] and "not probed" in story.incident().decision


def test_what_a_person_measures_is_told_once_and_leaves_nothing_open() -> None:
    story = running()
    story.ask(kind=Kind.PROBE)
    carry(story, measured(slow_sender=1))
    incident = story.incident()
    assert (incident.kind, incident.culprit, incident.open) == ("sender-slow", 1, False)
    assert incident.resolution.startswith("as measured once")
    assert not story.job().findings and story.job().links is not None
    story.now_ns += 10 * S
    story.tell(slow_transfers())
    assert incident.open and incident.kind == "communication-slow", "it came back, so it is found out anew"
    assert len(probes(story)) == 2
    story.check_replay()


def test_two_ranks_cannot_tell_the_link_from_its_ends() -> None:
    story = running(workers=2)
    story.ask(kind=Kind.PROBE)
    carry(story, measured(slow_sender=0, ranks=(0, 1)))
    assert "may be the link or either end" in story.incident().verdict
    assert "probed" not in story.incident().decision, "it was, just now"


def test_a_probe_that_cannot_be_made_is_told_in_the_incident() -> None:
    story = running()
    story.tell(slow_transfers())
    story.answer(Said.REFUSED, RANKS, why="no links here")
    assert probes(story) == ["not applied"] and "no links here" in story.incident().decision
    assert story.job().links is None


def test_ranks_that_measured_nothing_say_why() -> None:
    story = running()
    story.ask(kind=Kind.PROBE)
    carry(story, {rank: ((f"{rank}>", None, "OSError: no address"),) for rank in RANKS})
    links = story.job().links
    assert links is not None and links.silent[3] == "OSError: no address" and links.delays == ()
    assert "could be measured" in links.verdict and not story.job().incidents
