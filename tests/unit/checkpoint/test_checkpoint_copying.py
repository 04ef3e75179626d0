"""Which states the ranks agree to have copied to their neighbours, and which they keep until then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest

from torchloom.checkpoint.group import Board, SaveGroup
from torchloom.checkpoint.memory import tier
from torchloom.checkpoint.memory.copying import CopyAgreement
from torchloom.checkpoint.memory.slots import MemoryTier


class Notes:
    """The board of all ranks, in memory."""

    def __init__(self, notes: dict[str, str], rank: int, world: int) -> None:
        self._notes, self._rank, self._world = notes, rank, world

    def note_mine(self, topic: str, number: int) -> None:
        self.post(f"{topic}/{self._rank}", str(number))

    def lowest(self, topic: str) -> int | None:
        return min(int(self._notes[f"{topic}/{rank}"]) for rank in range(self._world))

    def post(self, key: str, text: str) -> None:
        self._notes[key] = text

    def peek(self, key: str) -> str | None:
        return self._notes.get(key)


class Rank:
    """A rank on a host of its own, and what its agent does."""

    def __init__(self, notes: dict[str, str], rank: int, folder: Path, local_world: int = 1) -> None:
        folder.mkdir()
        self.rank, self.folder, self.held = rank, folder, set[int]()
        self.part = CopyAgreement(SaveGroup(rank, 2, 0, local_world, True), folder)
        self.part.connect(cast(Board, Notes(notes, rank, 2)), "s", "origin")
        tier.neighbour(folder).touch()

    def look(self, sealed_by_all: int) -> set[int] | None:
        return self.part.protected(sealed_by_all, self.held.__contains__)

    def asked(self) -> dict[str, str]:
        found: dict[str, str] = json.loads(tier.wanted(self.folder, self.rank).read_text())
        return found

    def copied(self, save: str, done: bool = True) -> None:
        tier.copied(self.folder, self.rank).write_text(json.dumps({"save": save, "done": done}))


@pytest.fixture
def ranks(tmp_path: Path) -> list[Rank]:
    notes: dict[str, str] = {}
    return [Rank(notes, rank, tmp_path / str(rank)) for rank in range(2)]


def seal(ranks: list[Rank], *events: int) -> None:
    for rank in ranks:
        rank.held.update(events)


def test_all_ranks_copy_the_same_states_one_after_the_other(ranks: list[Rank]) -> None:
    seal(ranks, 1, 2)
    assert [rank.look(1) for rank in ranks] == [{1}, {1}]
    assert [rank.asked() for rank in ranks] == [{"save": "s.1", "keep": "origin"}] * 2
    ranks[0].copied("s.1")
    assert [rank.look(2) for rank in ranks] == [{1}, {1}], "rank 1's copy is not there yet"
    ranks[1].copied("s.1")
    assert ranks[1].look(2) == {1}
    seal(ranks, 3)
    assert [rank.look(3) for rank in ranks] == [{1, 3}] * 2, "what was copied by all stays until the next is"
    assert [rank.asked() for rank in ranks] == [{"save": "s.3", "keep": "s.1"}] * 2


@pytest.mark.parametrize("why", ["refused", "skipped", "no neighbour"])
def test_a_copy_that_one_rank_could_not_make_replaces_nothing(ranks: list[Rank], why: str) -> None:
    seal(ranks, 1)
    for rank in ranks:
        rank.look(1)
        rank.copied("s.1")
        rank.look(1)
    seal(ranks, 2)
    if why == "skipped":
        ranks[1].held.discard(2)
    for rank in ranks:
        rank.look(2)
    ranks[0].copied("s.2")
    if why == "refused":
        ranks[1].copied("s.2", done=False)
    if why == "no neighbour":
        tier.neighbour(ranks[1].folder).unlink()
    seal(ranks, 3)
    assert ranks[1].look(3) == (None if why == "no neighbour" else {1, 2})
    assert ranks[0].look(3) == {1, 3}
    assert ranks[0].asked() == {"save": "s.3", "keep": "s.1"}


def test_a_neighbour_that_never_answers_holds_up_nobody(
    ranks: list[Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    seal(ranks, 1, 2)
    for rank in ranks:
        rank.look(1)
    for sealed in range(2, 20):
        seal(ranks, sealed)
        assert [rank.look(sealed) for rank in ranks] == [{1}, {1}], "one slot, and no wait"
    monkeypatch.setattr("torchloom.checkpoint.memory.copying._GIVE_UP_S", -1.0)
    assert ranks[1].look(19) == {1}
    assert ranks[0].look(19) == {19}, "it is given up, and the next is tried"


def test_a_job_on_one_node_copies_nothing(tmp_path: Path) -> None:
    alone = Rank({}, 0, tmp_path / "0", local_world=2)
    alone.held.add(1)
    assert alone.look(1) is None and not tier.wanted(alone.folder, 0).exists()


def test_slots_that_copies_depend_on_are_not_overwritten(tmp_path: Path) -> None:
    kept = MemoryTier(tmp_path, 0, 2)
    for slot, event in ((0, 1), (1, 2)):
        kept.sealed(slot, event)
    assert kept.choose(2, {1})[0] == 2 and 0 not in kept.choose(2, {1})
    kept.sealed(2, 3)
    assert kept.choose(3, {1, 2}) == [], "the state is skipped; nobody waits"
    assert kept.choose(3, {2}) == [0]
    assert kept.choose(3, None) == [0, 1]
