"""A board that lasts gives what windows put side by side for one look give: same findings, same memory.

Every class of fault and benign noise of the simulator, with what a lossy bus does to windows: some are lost,
some carry all steps again, and steps are missing in some.
"""

import dataclasses
import random
from collections.abc import Mapping, Sequence
from typing import get_args

import pytest
from msgspec import msgpack
from msgspec.structs import replace

from torchloom.chaos.scenario import FaultKind, Parallelism, faults, healthy
from torchloom.chaos.simulator import Simulation
from torchloom.chaos.wide_job import WideJob, windows
from torchloom.core.detect import wide
from torchloom.core.detect.board import WindowBoard
from torchloom.core.detect.judge import AllLimits, Memory, judge
from torchloom.core.detect.kept_steps import STEPS_KEPT
from torchloom.core.detect.members import Members
from torchloom.core.detect.wide_board import WideBoard
from torchloom.core.detect.window_blocks import Packing
from torchloom.model.windows import DeviceFacts, RankWindow, RefWindow, WindowBatch, WindowBlock
from torchloom.model.worker import WorkerRef

LOOKS = 60
HOST = 4
_decode = msgpack.Decoder(WindowBatch).decode
_window = msgpack.Decoder(RankWindow).decode


class Both:
    """Boards that last, and the windows as a weaver without one would join them. To one board windows are
    sent as they are; to a plain one and one of arrays in blocks, as agents of hosts with four ranks do it."""

    def __init__(self, ranks: int, chance: random.Random) -> None:
        self.kept, self.chance = dict[int, RankWindow](), chance
        self.boards = WindowBoard(ranks), WindowBoard(ranks), WideBoard(ranks)
        self.agents = [Packing() for _ in range(-(-ranks // HOST))]
        self.memories = [Memory()] * 4
        self.in_blocks = 0

    def hear(self, windows: Sequence[RankWindow], lost: float = 0.0) -> None:
        """One look of all agents. A message that is lost is lost for all; so is a window of which some board
        does not know the skeleton."""
        for host, agent in enumerate(self.agents):
            here = [self._as_sent(w, self.kept.get(w.rank)) for w in windows if w.rank // HOST == host]
            refs = tuple(RefWindow(WorkerRef("job", w.rank, 1, 1), w) for w in here)
            odd, blocks = agent.pack(refs)
            if self.chance.random() < lost and all(w.rank in self.kept for w in here):
                continue
            data = msgpack.encode(WindowBatch(node="n", session="s", windows=odd, blocks=blocks))
            sent = {w.rank: w for w in here}
            for one in odd:
                for board in self.boards:
                    board.put(_decode(data).windows[odd.index(one)].window)
                self._join(one.window)
            for place in range(len(blocks)):
                self._take([_decode(data).blocks[place] for _ in self.boards], sent)

    def _take(self, blocks: Sequence[WindowBlock], sent: Mapping[int, RankWindow]) -> None:
        whole, plain, arrays = self.boards
        ranks, some = blocks[0].ranks, None
        if self.kept.keys() >= set(ranks) and self.chance.random() < 0.1:
            some = sorted(self.chance.sample(range(len(ranks)), self.chance.randint(1, len(ranks))))
        read = plain.take(blocks[1], some)
        assert read == arrays.take(blocks[2], some)
        for row in read:
            window = sent[blocks[0].ranks[row]]
            whole.put(_window(msgpack.encode(window)))
            self._join(window)
            self.in_blocks += 1

    def _join(self, sent: RankWindow) -> None:
        before = self.kept.get(sent.rank)
        if before is not None:
            steps = sent.steps
            if not steps:
                steps = before.steps
            else:
                old = (s for s in before.steps if s.step < steps[0].step)
                steps = (*old, *steps)[-STEPS_KEPT:]
            new = {(h.step, h.part) for h in sent.hashes}
            hashes = [h for h in before.hashes if (h.step, h.part) not in new]
            joined = sorted([*hashes, *sent.hashes], key=lambda h: (h.step, h.part))[-64:]
            sent = replace(sent, steps=steps, hashes=tuple(joined))
        self.kept[sent.rank] = sent

    def _as_sent(self, window: RankWindow, before: RankWindow | None) -> RankWindow:
        if before is None or self.chance.random() < 0.1:
            return window
        known = before.steps[-1].step if before.steps else 0
        fresh = tuple(s for s in window.steps if s.step > known)
        if len(fresh) > 2 and self.chance.random() < 0.05:
            fresh = fresh[:1] + fresh[2:]
        return replace(window, steps=fresh)

    def look(self) -> int:
        side_by_side = [self.kept[rank] for rank in sorted(self.kept)]
        if self.chance.random() < 0.1:
            # As bytes, because NaN is not equal to itself.
            told = [[replace(w, steps=tuple(w.steps)) for w in board] for board in self.boards]
            assert len({msgpack.encode(windows) for windows in told}) == 1
            alone = [[_alone(w) for w in board.sketches(board.ranks)] for board in self.boards]
            assert alone == [[_alone(w) for w in board] for board in self.boards]
        expected_memory, expected = judge(side_by_side, self.memories[0], AllLimits())
        memories = [expected_memory]
        for board, memory in zip(self.boards, self.memories[1:], strict=True):
            now, found = judge(board, memory, AllLimits())
            assert found == expected
            assert now == expected_memory
            msgpack.encode([now, found])  # plain numbers, none of NumPy's
            memories.append(now)
        self.memories = memories
        return len(expected)


def _alone(window: RankWindow) -> bytes:
    """What a sketch of it has: nothing of its groups and collectives, and no steps, values or hashes."""
    return msgpack.encode(
        replace(
            window, groups=(), collectives=(), steps=(), values={}, hashes=(), peaks={}, pairs=(), quorum=None
        )
    )


@pytest.mark.parametrize("kind", get_args(FaultKind))
def test_a_board_that_lasts_judges_as_windows_side_by_side(kind: FaultKind) -> None:
    chance = random.Random(f"board {kind}")
    shape = Parallelism(dp=6, pp=2 if chance.random() < 0.7 else 1, tp=1, gpus=chance.random() < 0.5)
    fault = faults(kind, shape, chance)
    fault = dataclasses.replace(fault, step=fault.step and 30 + chance.randrange(4))
    sim = Simulation(shape, chance.randrange(1 << 20), fault, healthy(chance, shape, LOOKS, pauses=1))
    both = Both(len(sim.ranks), chance)
    found = 0
    for look in range(1, LOOKS + 1):
        sim.run_until(float(look))
        both.hear(sim.windows(), lost=0.05)
        found += both.look()
    assert both.in_blocks > LOOKS
    assert found or kind in ("slow-link", "slow-nic", "never-starts"), "the fault was never seen"


@pytest.mark.parametrize("seed", range(6))
def test_the_same_over_arrays(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide, "ARRAYS_FROM", 40)
    chance = random.Random(seed)
    job = WideJob(
        ranks=64,
        seed=seed,
        steps=STEPS_KEPT,
        slow=(0.0, 0.1, 0.4)[seed % 3],
        hung=(0.0, 0.5)[seed // 3],
        hung_s=70.0,
        throttled=0.5,
    )
    both = Both(job.ranks, chance)
    steps = [window.steps for window in windows(replace(job, steps=60 + STEPS_KEPT))]
    for first in range(1, 60, 3):
        seen = zip(windows(job, first), steps, strict=True)
        both.hear([replace(w, steps=all_[first - 1 : first - 1 + STEPS_KEPT]) for w, all_ in seen], lost=0.05)
        both.look()
    assert both.in_blocks > job.ranks


@pytest.mark.parametrize("board", [WindowBoard, WideBoard])
def test_members_follow_when_ranks_of_a_group_and_its_timeout_change(board: type[WindowBoard]) -> None:
    """What is worked out of a group once must not outlive it: a group of the same name is made anew."""
    job = windows(WideJob(ranks=4, seed=1))
    name = job[0].groups[0].name
    made = board(4)
    for window in job:
        made.put(window)
    assert list(Members(made, name)) == [0, 1, 2, 3]
    turned = [
        replace(w, groups=(replace(w.groups[0], rank=3 - w.rank, timeout_s=7.0), *w.groups[1:])) for w in job
    ]
    for window in turned:
        made.put(window)
    now = Members(made, name)
    assert [now[member][0].rank for member in range(4)] == [3, 2, 1, 0]
    assert now.timeout_s == 7.0


def test_the_sketch_of_a_rank_with_a_device_has_what_its_device_does() -> None:
    job = [
        replace(w, accelerator=DeviceFacts("busy", 3, "", 5, 0.25)) for w in windows(WideJob(ranks=4, seed=1))
    ]
    board, agent = WideBoard(4), Packing()
    for _ in range(2):
        _, blocks = agent.pack([RefWindow(WorkerRef("job", w.rank, 1, 1), w) for w in job])
        for block in blocks:
            board.take(block)
    assert [w.accelerator for w in board.sketches(range(4))] == [w.accelerator for w in job]
