"""The memory tier: sealed or nothing, and never the newest common state overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from torchloom.checkpoint.memory import slots, tier
from torchloom.checkpoint.memory.slots import KeptState, MemoryTier, SlotFile, held_by_all
from torchloom.checkpoint.state.image import plan
from torchloom.checkpoint.store.names import CheckpointName


def fill(file: SlotFile, value: float, name: CheckpointName, world: int = 1, save: str = "a.1") -> None:
    image = plan({"x": torch.full((1000,), value)})
    image.copy_into(file.prepare(image.size))
    file.seal(name, world, save)


def test_a_sealed_slot_is_read_by_the_next_process(tmp_path: Path) -> None:
    fill(SlotFile(tmp_path / "own-0.0"), 1.0, CheckpointName(1, 10))
    sealed = slots.read(tmp_path / "own-0.0")
    assert sealed is not None and sealed.name == CheckpointName(1, 10)


def test_a_slot_that_is_being_overwritten_is_nothing(tmp_path: Path) -> None:
    file = SlotFile(tmp_path / "own-0.0")
    fill(file, 1.0, CheckpointName(1, 10))
    file.prepare(5000)
    assert slots.read(tmp_path / "own-0.0") is None


def test_a_slot_cut_short_or_of_another_kind_is_nothing(tmp_path: Path) -> None:
    path = tmp_path / "own-0.0"
    fill(SlotFile(path), 1.0, CheckpointName(1, 10))
    whole = path.read_bytes()
    for damaged in (whole[:5000], b"", b"x" * 10_000, whole[:20] + b"!" + whole[21:]):
        path.write_bytes(damaged)
        assert slots.read(path) is None


def test_only_states_of_the_same_world_are_offered(tmp_path: Path) -> None:
    fill(SlotFile(tmp_path / "own-0.0"), 1.0, CheckpointName(1, 10), world=2)
    assert list(MemoryTier(tmp_path, 0, 2).offers()) == [KeptState(CheckpointName(1, 10), "a.1")]
    assert MemoryTier(tmp_path, 0, 3).offers() == {}
    assert MemoryTier(tmp_path, 1, 2).offers() == {}


def gather(folder: Path, world: int, save: str = "a.1") -> None:
    for rank in range(world):
        fill(SlotFile(tier.gathered(folder, rank)), float(rank), CheckpointName(1, 10), world, save)


@pytest.mark.parametrize(("rank", "world", "of"), [(0, 1, 0), (1, 2, 1), (4, 5, 1), (2, 3, 2)])
def test_a_state_that_another_number_of_ranks_saved_is_offered_if_all_of_it_is_here(
    tmp_path: Path, rank: int, world: int, of: int
) -> None:
    gather(tmp_path, 3)
    (offer,) = MemoryTier(tmp_path, rank, world).offers().values()
    assert offer.own.path == tier.gathered(tmp_path, of)
    assert len(offer.everyone) == (3 if world != 3 else 0), "the same number needs no other image"
    tier.gathered(tmp_path, 2).unlink()
    assert MemoryTier(tmp_path, rank, world).offers() == {}


def test_images_of_two_states_are_no_gathered_state(tmp_path: Path) -> None:
    gather(tmp_path, 3)
    fill(SlotFile(tier.gathered(tmp_path, 1)), 1.0, CheckpointName(1, 12), 3, "a.2")
    assert MemoryTier(tmp_path, 0, 2).offers() == {}
    gather(tmp_path, 3)
    fill(SlotFile(tier.gathered(tmp_path, "shared")), 1.0, CheckpointName(1, 12), 3, "a.2")
    (offer,) = MemoryTier(tmp_path, 0, 2).offers().values()
    assert offer.shared is None


def test_a_gathered_state_is_given_up_once_by_the_rank_that_keeps_what_is_shared(tmp_path: Path) -> None:
    gather(tmp_path, 2)
    MemoryTier(tmp_path, 1, 3, keeps_line=False).drop_gathered()
    assert len(tier.all_gathered(tmp_path)) == 2
    MemoryTier(tmp_path, 0, 3).drop_gathered()
    assert not tier.all_gathered(tmp_path)


def test_two_saves_of_one_step_are_two_states_and_the_later_counts(tmp_path: Path) -> None:
    name = CheckpointName(1, 10)
    for slot, save in ((2, "a.1"), (0, "a.2"), (1, "b.1")):
        fill(SlotFile(tmp_path / f"own-0.{slot}"), 1.0, name, save=save)
        fill(SlotFile(tmp_path / f"shared.{slot}"), 1.0, name, save="a.2")
    offers = MemoryTier(tmp_path, 0, 1).offers()
    assert [kept.save for kept in offers] == ["a.1", "a.2", "b.1"], "in the order of sealing"
    assert [offer.shared is not None for offer in offers.values()] == [False, True, False]
    mine, other = list(offers), [KeptState(name, "a.2"), KeptState(name, "a.1")]
    assert held_by_all([mine]) == {name: KeptState(name, "b.1")}
    assert held_by_all([mine, other]) == {name: KeptState(name, "a.2")}
    assert held_by_all([mine, other, other[1:]]) == {name: KeptState(name, "a.1")}
    assert held_by_all([mine, [KeptState(name, "c.1")]]) == {}


def test_the_newest_state_sealed_by_all_is_never_overwritten(tmp_path: Path) -> None:
    kept = MemoryTier(tmp_path, 0, 2)
    first = kept.choose(0)[0]
    kept.sealed(first, event=1)
    second = kept.choose(1)[0]
    assert second != first
    kept.sealed(second, event=2)
    # A slow rank has sealed only event 1: neither that one nor the newest is given up.
    third = kept.choose(1)[0]
    assert third not in (first, second)
    kept.sealed(third, event=3)
    assert kept.choose(1)[0] == third, "rather the newest than the one that all have"
    assert kept.choose(3)[0] == first


def test_a_slot_on_its_way_to_disk_is_left_alone_and_a_third_is_made(tmp_path: Path) -> None:
    kept = MemoryTier(tmp_path, 0, 1)
    one = kept.choose(0)[0]
    kept.sealed(one, 1)
    kept.begin_write(one)
    two = kept.choose(1)[0]
    kept.sealed(two, 2)
    three = kept.choose(2)[0]
    assert three not in (one, two)
    kept.begin_write(None)
    assert kept.choose(2)[0] == one


def test_what_was_restored_is_held_until_a_newer_one_is_sealed(tmp_path: Path) -> None:
    fill(SlotFile(tmp_path / "own-0.0"), 1.0, CheckpointName(1, 10))
    kept = MemoryTier(tmp_path, 0, 1)
    kept.hold(KeptState(CheckpointName(1, 10), "a.1"))
    assert kept.choose(0)[0] == 1


def test_a_tier_that_does_not_fit_says_so(tmp_path: Path) -> None:
    assert "MiB" in MemoryTier(tmp_path / "m", 0, 1).room_for(own=1 << 50, shared=0, local_world=1)
    assert MemoryTier(tmp_path / "m", 0, 1).room_for(own=1 << 10, shared=0, local_world=1) == ""


def test_releasing_removes_the_tier_and_nothing_else(tmp_path: Path) -> None:
    folder = tier.directory(tmp_path, "job")
    folder.mkdir()
    fill(SlotFile(tier.file(folder, tier.own(0), 0)), 1.0, CheckpointName(1, 1))
    assert dict(tier.found_in(tmp_path)) == {"job": folder} and tier.size(folder) > 0
    tier.release(folder)
    assert not folder.exists()
    folder.mkdir()
    (folder / "somebody-elses").write_text("x")
    tier.release(folder)
    assert (folder / "somebody-elses").exists()
