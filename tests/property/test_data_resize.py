"""For any data, batch, worlds and moments of resize: nothing lost, nothing twice, the same global batches."""

from __future__ import annotations

from itertools import chain, islice
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchloom.data.loader import ElasticLoader
from torchloom.data.order import Permutation
from torchloom.data.shards.cursor import Cursor, restored
from torchloom.data.shards.deal import Piece, batches, deal, left_over, part, rest, total
from torchloom.data.skipping import SkippedRun, merged

CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no failure
lines_of_shards = st.lists(st.integers(0, 40), min_size=1, max_size=12)
worlds = st.integers(1, 7)


def places(pieces: list[Piece]) -> list[tuple[int, int]]:
    return [(piece.shard, place) for piece in pieces for place in range(piece.start, piece.stop)]


def whole(lines: list[int]) -> list[Piece]:
    return [Piece(shard, 0, count) for shard, count in enumerate(lines) if count]


@given(st.integers(1, 3000), st.integers(), st.integers(0, 50), st.data())
@settings(CALM, max_examples=60)
def test_a_shuffle_is_a_bijection_and_its_parts_agree(length: int, seed: int, epoch: int, data: Any) -> None:
    order = Permutation(length, seed, epoch)
    everything = list(order)
    assert sorted(everything) == list(range(length))
    start = data.draw(st.integers(0, length))
    stop = data.draw(st.integers(start, length))
    assert order.span(start, stop) == everything[start:stop] == [order[n] for n in range(start, stop)]


@CALM
@given(lines_of_shards, worlds)
def test_a_deal_is_complete_and_level(lines: list[int], world: int) -> None:
    hands = deal(whole(lines), world)
    assert sorted(chain(*map(places, hands))) == places(whole(lines))
    loads = [total(hand) for hand in hands]
    assert max(loads) - min(loads) <= 1
    assert all(piece.size > 0 for hand in hands for piece in hand)


@CALM
@given(lines_of_shards, worlds)
def test_levelling_moves_only_what_it_must(lines: list[int], world: int) -> None:
    """What a rank keeps is the beginning of what round-robin gave it."""
    pieces = whole(lines)
    for rank, hand in enumerate(deal(pieces, world)):
        own = places(pieces[rank::world])
        kept = min(len(own), total(hand))
        assert places(hand)[:kept] == own[:kept]


@CALM
@given(lines_of_shards, worlds, st.data())
def test_any_cursors_at_any_resize(lines: list[int], world: int, data: Any) -> None:
    pieces, seen = whole(lines), []
    for _ in range(data.draw(st.integers(1, 4))):
        hands = deal(pieces, world)
        consumed = [data.draw(st.integers(0, total(hand))) for hand in hands]
        seen += [place for hand, count in zip(hands, consumed, strict=True) for place in places(hand)[:count]]
        pieces = left_over(pieces, consumed)
        assert all(piece.size > 0 for piece in pieces)
        world = data.draw(worlds)
    seen += chain(*map(places, deal(pieces, world)))
    assert sorted(seen) == places(whole(lines))


@CALM
@given(
    lines_of_shards, st.lists(st.tuples(worlds, st.integers(1, 6), st.integers(0, 8)), min_size=1, max_size=4)
)
def test_lockstep_needs_the_state_of_one_rank_only(
    lines: list[int], lives: list[tuple[int, int, int]]
) -> None:
    """Each life of the job: so many ranks, that batch, ended after so many steps; the last one finishes."""
    seen: list[tuple[int, int]] = []
    state: dict[str, Any] | None = None
    for number, (world, batch, steps) in enumerate(lives):
        cursors = []
        for rank in range(world):
            if state is None:
                cursor = Cursor(rank, world, batch=batch)
                cursor.take(whole(lines))
            else:
                cursor = restored([state], rank, world, batch, lines, lambda _: whole(lines))
            ahead = list(batches(cursor.ahead(), batch))
            taken = ahead if number == len(lives) - 1 else ahead[:steps]
            seen += chain(*(places(piece) for piece in taken))
            cursor.step += steps
            cursor.consumed = min(cursor.step * batch, cursor.loads[rank])
            cursors.append(cursor)
        state = cursors[-1].state()
    assert sorted(seen) == places(whole(lines))


@CALM
@given(
    lines_of_shards,
    st.lists(
        st.tuples(worlds, st.integers(1, 6), st.integers(0, 8), st.lists(st.integers(0, 200), max_size=3)),
        min_size=1,
        max_size=4,
    ),
)
def test_what_is_left_out_is_that_and_nothing_else(
    lines: list[int], lives: list[tuple[int, int, int, list[int]]]
) -> None:
    """Lives as above, each with ten places left out from each of some; what one gives back the next reads."""
    order = places(whole(lines))
    seen: list[tuple[int, int]] = []
    state: dict[str, Any] | None = None
    kept = set(order)
    for number, (world, batch, steps, left_out) in enumerate(lives):
        runs = merged([SkippedRun(0, start, start + 10) for start in left_out])
        skips = tuple((run.start, run.stop) for run in runs)
        out = {place for start, stop in skips for place in order[start:stop]}
        kept -= out
        cursors = []
        for rank in range(world):
            if state is None:
                cursor = Cursor(rank, world, batch=batch, skips=skips)
                cursor.take(whole(lines))
            else:
                cursor = restored([state], rank, world, batch, lines, lambda _: whole(lines), skips)
            ahead = list(batches(cursor.ahead(), batch))
            taken = list(chain(*map(places, ahead if number == len(lives) - 1 else ahead[:steps])))
            assert not out & set(taken)
            seen += taken
            cursor.step += steps
            cursor.consumed = min(cursor.step * batch, cursor.loads[rank])
            cursors.append(cursor)
        state = {**cursors[-1].state(), "skips": ",".join(map(str, runs))}
    assert len(seen) == len(set(seen)) and kept <= set(seen)


@CALM
@given(lines_of_shards, st.integers(0, 500))
def test_what_is_left_is_what_was_not_read(lines: list[int], consumed: int) -> None:
    pieces = whole(lines)
    assert places(rest(pieces, consumed)) == places(pieces)[consumed:]
    assert places(list(part(pieces, consumed, consumed + 7))) == places(pieces)[consumed : consumed + 7]


@given(st.data(), st.integers(1, 60), st.integers(4, 9), st.booleans(), st.integers(0, 3))
@settings(CALM, max_examples=40)
def test_map_style_gives_the_same_global_batches_in_every_world(
    data: Any, length: int, global_batch: int, drop_last: bool, seed: int
) -> None:
    samples = list(range(length))

    def loader(rank: int, world: int, state: Any = None) -> ElasticLoader:
        made = ElasticLoader(
            samples,
            global_batch,
            seed=seed,
            drop_last=drop_last,
            rank=rank,
            world=world,
            seed_samples=False,
            collate_fn=list,
        )
        if state is not None:
            made.load_state_dict(state)
        return made

    undisturbed = list(loader(0, 1))
    assert sorted(chain(*undisturbed)) == samples or drop_last
    seen: list[list[int]] = []
    state = None
    while len(seen) < len(undisturbed):
        world = data.draw(st.integers(1, 4))
        steps = data.draw(st.integers(1, len(undisturbed)))
        parts, states = [], []
        for rank in range(world):
            mine = loader(rank, world, state)
            parts.append([batch if mine.weight else [] for batch in islice(mine, steps)])
            states.append(mine.state_dict())
        assert all(each == states[0] for each in states)
        state = states[0]
        seen += [list(chain(*batch)) for batch in zip(*parts, strict=True)]
    assert seen == undisturbed
