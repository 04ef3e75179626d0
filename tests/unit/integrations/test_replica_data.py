"""The position in the data of several replicas that lose steps, die, heal and join, with real loaders."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from torchloom.data import ElasticLoader, live
from torchloom.integrations.replica_data import ReplicaData

LENGTH, BATCH = 200, 12


class Player:
    """A replica with its loader. `live` knows one loader per process, so it is switched for each call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self.loader = ElasticLoader(list(range(LENGTH)), BATCH, seed=5, rank=0, world=1)
        self.loader.follows_replicas = True
        self.data = ReplicaData({})
        self.step = 0
        self.batches: Iterator[Any] = self._endless()

    def _endless(self) -> Iterator[Any]:
        while True:
            yield from self.loader

    def call(self, what: str, *args: Any, **named: Any) -> Any:
        self._patch.setattr(live, "training_loader", lambda: self.loader)
        return getattr(self.data, what)(*args, **named)

    def take(self) -> list[int]:
        next(self.batches)
        return self.loader.indices()


def round_of(players: list[Player], *, synchronous: bool, fails: bool = False) -> list[int]:
    """One step of these replicas; the samples that were committed. Those behind heal from the first."""
    newest = max(player.step for player in players)
    if synchronous:
        for player in players:
            player.call("asks")
    source = next(player for player in players if player.step == newest)
    taken: dict[int, list[int]] = {}
    for seat, player in enumerate(players):
        if not synchronous:
            taken[seat] = player.take()
            player.call("asks")
        player.call("quorum", seat, len(players))
    state = source.call("state")
    for player in players:
        if synchronous and player.step < newest:
            player.call("load", state)
        if synchronous:
            player.call("begins")
    for seat, player in enumerate(players):
        if synchronous:
            taken[seat] = player.take()
        elif player.step < newest:
            taken[seat] = []  # it takes part with zeros
            player.call("load", state)
    for player in players:
        player.step = newest if fails else newest + 1
        player.call("ends", not fails)
    return [] if fails else [index for some in taken.values() for index in some]


def test_with_a_synchronous_quorum_every_sample_is_part_of_exactly_one_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for seed in range(6):
        chance = random.Random(seed)
        players = [Player(monkeypatch) for _ in range(3)]
        committed: list[int] = []
        while len(committed) < 2 * LENGTH:
            match chance.choice(("step", "step", "fails", "dies")):
                case "step":
                    committed += round_of(players, synchronous=True)
                case "fails":
                    round_of(players, synchronous=True, fails=True)
                case _:  # one is missing for a while and begins anew
                    lost = chance.randrange(3)
                    rest = [player for at, player in enumerate(players) if at != lost]
                    for _ in range(chance.randint(0, 3)):
                        committed += round_of(rest, synchronous=True)
                    players[lost] = Player(monkeypatch)
                    committed += round_of(players, synchronous=True)
        for epoch in range(2):
            seen = Counter(committed[epoch * LENGTH : (epoch + 1) * LENGTH])
            assert set(seen.values()) == {1} and len(seen) == LENGTH, seed


def test_with_an_asynchronous_quorum_nothing_is_repeated_and_one_that_joins_finds_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    players = [Player(monkeypatch), Player(monkeypatch)]
    for player, rank in zip(players, range(2), strict=True):
        player.loader.set_world(rank, 2)
    committed: list[int] = []
    for _ in range(3):
        committed += round_of(players, synchronous=False)
    assert sorted(Counter(committed).values()) == [1] * 3 * BATCH
    committed += round_of(players[:1], synchronous=False)  # its share of this step was that of two replicas
    committed += round_of(players[:1], synchronous=False)
    assert len(committed) == 3 * BATCH + BATCH // 2 + BATCH
    players[1] = Player(monkeypatch)
    committed += round_of(players, synchronous=False)  # the new one heals, the other still took a whole batch
    committed += round_of(players, synchronous=False)
    assert max(Counter(committed).values()) == 1
    assert len(committed) == 3 * BATCH + BATCH // 2 + 3 * BATCH
    positions = {player.loader.position for player in players}
    assert positions == {7 * BATCH}


def test_a_batch_of_a_step_that_was_not_committed_is_used_by_the_next_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (player,) = players = [Player(monkeypatch)]
    first = round_of(players, synchronous=False)
    round_of(players, synchronous=False, fails=True)
    failed = player.loader.position
    again = round_of(players, synchronous=False)
    assert failed == BATCH and player.loader.position == 2 * BATCH
    assert not set(first) & set(again)


def test_one_that_was_restored_from_a_checkpoint_passes_its_position_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All replicas were killed; one has a newer checkpoint than the other, and no commit has been made."""
    players = [Player(monkeypatch), Player(monkeypatch)]
    for player, step in zip(players, (5, 3), strict=True):
        saved = player.loader.state_dict() | {"position": step * BATCH}
        player.loader.load_state_dict(saved)
        player.step = step
    committed = round_of(players, synchronous=True)
    assert len(set(committed)) == BATCH
    assert [player.loader.position for player in players] == [6 * BATCH] * 2


def test_rounds_of_local_sgd_keep_their_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    player = Player(monkeypatch)
    player.call("asks")
    for _ in range(3):
        player.take()
    player.call("ends", False, rounds=True)
    assert player.loader.position == 3 * BATCH


def test_a_script_without_such_a_loader_pays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "training_loader", lambda: None)
    data = ReplicaData({})
    data.asks()
    data.begins()
    data.ends(True)
    data.load({"kind": "map"})
    assert data.state() == {}
