"""The shell around the detectors: what it hears, when it looks, whom it asks, and what it appends."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from core_story import Story
from detect_windows import PACE, missing, waiting
from msgspec.structs import replace

from torchloom import boottime
from torchloom.bus.memory import MemoryBus, MemoryHub
from torchloom.bus.protocol import Message
from torchloom.core.detect.board import WindowBoard
from torchloom.core.detect.judge import Memory
from torchloom.core.detect.window_blocks import Packing
from torchloom.model.events import FindingEnded, FindingMade, WitnessAnswered
from torchloom.model.findings import RankEvidence
from torchloom.model.flight import Dump, DumpEntry
from torchloom.model.job import HangLimits
from torchloom.model.messages import AskDumps, AskEvidence, DumpsAnswer, EvidenceAnswer, RankDump
from torchloom.model.windows import RankWindow, RefWindow, StepTimes, WindowBatch, WindowBlock
from torchloom.weaver.detection import lateness
from torchloom.weaver.detection import loop as module
from torchloom.weaver.detection.lateness import Lateness
from torchloom.weaver.detection.limits import limits_of
from torchloom.weaver.detection.loop import Detection
from torchloom.weaver.detection.watched_job import WatchedJob
from torchloom.wire import codec, subjects


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Often, and with all the time that a machine may need that stands still now and then."""
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.005)
    monkeypatch.setattr(module, "EVIDENCE_WITHIN_S", 600.0)
    monkeypatch.setattr(module, "FRESH_S", 600.0)


class Scene:
    """A job of two ranks on one node, its windows, and what is said of it."""

    def __init__(self, hub: MemoryHub) -> None:
        self.story = Story(a=8)
        self.story.run(workers=2)
        self.bus, self.agent = MemoryBus(hub), MemoryBus(hub)
        self.said: list[FindingMade | FindingEnded | WitnessAnswered] = []
        self.asked: list[AskEvidence] = []
        self.recorders: list[AskDumps] = []
        self.dumps: tuple[RankDump, ...] = ()
        self.leads = True
        self.packing = Packing()
        self.watch = Detection(self.bus, lambda: self.story.fleet, lambda: self.leads, self._say)

    async def _say(self, event: FindingMade | FindingEnded | WitnessAnswered) -> None:
        self.said.append(event)
        self.story.tell(event)

    async def answer(self) -> None:
        """The agent gives evidence."""

        async def receive(message: Message) -> None:
            query = codec.decode_query(message.data)
            if isinstance(query, AskDumps):
                self.recorders.append(query)
                await self.agent.respond(message, codec.encode(DumpsAnswer(self.dumps)))
                return
            assert isinstance(query, AskEvidence)
            self.asked.append(query)
            ranks = tuple(
                RankEvidence(rank=ref.rank, node="a", location="save() at train.py:9" if ref.rank else "")
                for ref in query.refs
            )
            await self.agent.respond(message, codec.encode(EvidenceAnswer(ranks)))

        await self.agent.subscribe(subjects.query("a"), receive)

    async def hear(self, *windows: RankWindow, sent_ns: int = 0, **change: Any) -> None:
        found = tuple(
            RefWindow(replace(self.story.ref(w.rank), **change), replace(w, node="a")) for w in windows
        )
        odd, blocks = self.packing.pack(found)
        batch = WindowBatch(node="a", session="s1", sent_ns=sent_ns, windows=odd, blocks=blocks)
        await self.watch.hear(Message(subjects.windows("a"), codec.encode(batch)))


def play(scenario: Callable[[Scene], Any]) -> Scene:
    async def run() -> Scene:
        scene = Scene(MemoryHub())
        looking = asyncio.create_task(scene.watch.run())
        try:
            async with asyncio.timeout(
                60
            ):  # only against a hang: a shared machine may stand still for a while
                await scenario(scene)
        finally:
            looking.cancel()
        return scene

    return asyncio.run(run())


HANG = (waiting(0, size=2), missing(1, size=2))
STOPPED = (waiting(0, size=2), missing(1, size=2, state="T"))


async def keep(scene: Scene, windows: tuple[RankWindow, ...], looks: int = 20) -> None:
    for _ in range(looks):
        await scene.hear(*windows)
        await asyncio.sleep(0.006)


async def keep_until_said(scene: Scene, windows: tuple[RankWindow, ...], count: int) -> None:
    while len(scene.said) < count:
        await keep(scene, windows, 1)


def test_a_look_that_took_long_is_followed_by_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[float] = []
    took_s, judge = 0.02, module.judge

    def slow(*args: Any, **kwargs: Any) -> Any:
        began.append(time.monotonic())
        time.sleep(took_s)  # as of thousands of ranks
        return judge(*args, **kwargs)

    monkeypatch.setattr(module, "judge", slow)

    async def scenario(scene: Scene) -> None:
        while len(began) < 4:
            await keep(scene, (waiting(0, size=2), waiting(1, size=2)), 1)

    play(scenario)
    rests = [after - before for before, after in pairwise(began)]
    assert min(rests) >= module.REST_AFTER_LOOK * took_s, "the loop that judges also holds the lease"


def test_evidence_ends_the_rest_after_a_look() -> None:
    job = WatchedJob(1, Memory(), WindowBoard(2), array("d", [0.0, 0.0]), fresh={0, 1})
    job.looked_s, job.took_s = 100.0, 0.5
    assert not job.is_due(2, 101.9, every_s=0.5, rest=4.0) and job.is_due(2, 102.0, every_s=0.5, rest=4.0)
    job.urgent = True
    assert job.is_due(2, 100.6, every_s=0.5, rest=4.0)


def recorded(rank: int, seq: int) -> RankDump:
    """A dump of two seconds after the rank enqueued its newest all_reduce, which is not over."""
    entry = DumpEntry(backend="nccl", op="all_reduce", group="0", seq=seq, created_ns=10**9, state="started")
    before = DumpEntry(
        backend="nccl", op="all_reduce", group="0", seq=1, created_ns=5 * 10**8, state="completed", over=True
    )
    entries = (before, entry) if seq > 1 else (before,)
    dump = Dump(rank=rank, entries=entries, groups={"0": (0, 1)})
    return RankDump(rank=rank, dump=dump, written_ns=3 * 10**9)


@pytest.mark.parametrize(
    ("seqs", "agrees", "says"),
    [
        ((2, 1), True, "torch's Flight Recorder agrees"),
        (
            (1, 2),
            False,
            "torch's Flight Recorder says otherwise: rank 0 has not entered all_reduce #2 of group 0",
        ),
        ((1, 1), False, "torch's Flight Recorder does not confirm it"),
    ],
)
def test_the_flight_recorder_is_asked_once_about_a_hang_and_its_word_is_kept(
    seqs: tuple[int, int], agrees: bool, says: str
) -> None:
    """The detector blames rank 1."""

    async def scenario(scene: Scene) -> None:
        scene.dumps = tuple(recorded(rank, seq) for rank, seq in enumerate(seqs))
        await scene.answer()
        await keep_until_said(scene, STOPPED, 2)
        await keep(scene, STOPPED)

    scene = play(scenario)
    assert len(scene.recorders) == 1
    assert [type(e).__name__ for e in scene.said] == ["FindingMade", "WitnessAnswered"]
    incident = next(iter(scene.story.fleet.incidents.values()))
    assert incident.witness is not None and incident.witness.agrees is agrees
    assert incident.finding is not None and says in incident.verdict.removeprefix(incident.finding.sentence)
    assert len(incident.witness.lines) == 2


def test_recorders_that_cannot_be_asked_are_not_mentioned() -> None:
    async def scenario(scene: Scene) -> None:
        scene.dumps = tuple(RankDump(rank=rank, why="its backend listens to no pipe") for rank in (0, 1))
        await scene.answer()
        await keep_until_said(scene, STOPPED, 1)
        while not scene.recorders:
            await keep(scene, STOPPED, 1)
        await keep(scene, STOPPED)

    scene = play(scenario)
    assert [type(e).__name__ for e in scene.said] == ["FindingMade"]
    assert next(iter(scene.story.fleet.incidents.values())).witness is None


def test_a_stopped_rank_is_said_once_with_its_evidence_and_acted_on() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.answer()
        stopped = tuple(replace(w, steps_done=30) for w in STOPPED)
        await keep_until_said(scene, stopped, 1)
        await keep(scene, stopped)

    scene = play(scenario)
    (said,) = scene.said
    assert isinstance(said, FindingMade) and said.finding.certain and said.steps == 30
    assert {e.rank for e in said.evidence} == {0, 1} and "in save() at train.py:9" in said.finding.sentence
    assert scene.asked[0].suspects == (1,) and scene.asked[0].stacks == (0,)
    assert scene.story.incident().evidence and scene.story.state() == "recovering"


@pytest.mark.parametrize("again_s", [0.0, 1000.0])
def test_a_new_verdict_comes_with_what_those_who_wait_do_now(
    monkeypatch: pytest.MonkeyPatch, again_s: float
) -> None:
    monkeypatch.setattr(module, "ASK_AGAIN_S", again_s)

    async def scenario(scene: Scene) -> None:
        await scene.answer()
        watched = scene.watch._watched(scene.story.job())
        watched.memory = replace(watched.memory, pace=PACE)
        await keep_until_said(scene, tuple(replace(w, steps_done=30) for w in HANG), 1)
        assert scene.story.state() == "running"
        await keep_until_said(scene, tuple(replace(w, steps_done=30) for w in STOPPED), 2)

    scene = play(scenario)
    first, second = scene.said
    assert isinstance(first, FindingMade) and isinstance(second, FindingMade)
    assert {e.rank for e in first.evidence} == {0, 1} and second.finding.certain
    everybody = [query for query in scene.asked if len(query.refs) == 2]
    if again_s:
        assert len(everybody) == len(scene.asked) == 1, "what is known is new enough"
    else:
        assert {e.rank for e in second.evidence} == {0, 1}
        assert len(everybody) == 2 and everybody[1].stacks == (0,), "once for each verdict"


def test_an_agent_that_does_not_answer_holds_up_nothing_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVIDENCE_WITHIN_S", 0.05)

    async def scenario(scene: Scene) -> None:
        await keep_until_said(scene, STOPPED, 1)

    (said,) = play(scenario).said
    assert isinstance(said, FindingMade) and said.evidence == ()


def test_what_ends_by_itself_is_said_to_be_over() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.answer()
        late = tuple(replace(w, steps_done=30) for w in HANG)
        scene.watch._watched(scene.story.job()).memory = replace(
            scene.watch._watched(scene.story.job()).memory,
            pace=module.Pace(steps=500, recent_s=(0.3,) * 100),
        )
        await keep_until_said(scene, late, 1)
        calm = (waiting(0, size=2, for_s=0.1), missing(1, size=2, for_s=0.1))
        await keep_until_said(scene, calm, 2)
        await keep(scene, calm, 5)

    scene = play(scenario)
    assert [type(e).__name__ for e in scene.said] == ["FindingMade", "FindingEnded"]
    assert not scene.story.incident().open and scene.story.state() == "running"


@pytest.mark.parametrize("trouble", ["one window only", "old", "blind", "follower", "another incarnation"])
def test_without_a_fresh_window_of_every_rank_nothing_is_said(
    trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if trouble == "old":
        monkeypatch.setattr(module, "FRESH_S", -1.0)

    async def scenario(scene: Scene) -> None:
        await scene.answer()
        if trouble == "blind":
            scene.story.job().workers[1].blind = "no shared memory"
        scene.leads = trouble != "follower"
        change = {"incarnation": 99} if trouble == "another incarnation" else {}
        for _ in range(20):
            await scene.hear(*(STOPPED[:1] if trouble == "one window only" else STOPPED), **change)
            await asyncio.sleep(0.006)

    scene = play(scenario)
    assert scene.said == [] and scene.asked == []


def test_what_waited_in_a_buffer_is_not_news_when_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host was cut off for a while, and what it had sent meanwhile comes at once."""
    monkeypatch.setattr(lateness, "AGREE_AFTER_NS", 10**18)  # however long this machine stands still

    async def scenario(scene: Scene) -> None:
        await scene.answer()
        host_ns = 10**15  # its clock began at another time
        calm = tuple(replace(w, steps_done=30) for w in (waiting(0, size=2, for_s=0.1), waiting(1, size=2)))
        await scene.hear(*calm, sent_ns=boottime.now_ns() + host_ns)
        while scene.watch._jobs["j"].fresh:
            await asyncio.sleep(0.001)
        for ago_s in range(1500, 900, -10):
            await scene.hear(*STOPPED, sent_ns=boottime.now_ns() + host_ns - ago_s * 10**9)
            assert scene.watch._jobs["j"].fresh == set() and scene.watch.windows("j") == []
            await asyncio.sleep(0.006)
        assert scene.said == [] and scene.asked == []
        while not scene.said:  # it is still so
            await scene.hear(*STOPPED, sent_ns=boottime.now_ns() + host_ns)
            await asyncio.sleep(0.006)

    scene = play(scenario)
    assert len(scene.said) == 1


def test_how_late_a_message_is_can_be_told_whatever_the_clocks_show() -> None:
    late_of, second = Lateness().of, 10**9
    assert late_of("a", "s1", 0, 7 * second) == 0.0, "an agent that does not stamp"
    assert late_of("a", "s1", 900 * second, 7 * second) == 0.0
    assert late_of("a", "s1", 901 * second, 20 * second) == pytest.approx(12, abs=0.01)
    assert late_of("a", "s1", 914 * second, 21 * second) == 0.0
    assert late_of("b", "s9", 1 * second, 21 * second) == 0.0, "each node has its own"
    assert late_of("a", "s2", 3 * second, 22 * second) == 0.0, "another agent, maybe after a reboot"
    late = [late_of("a", "s2", (3 + n) * second, (122 + n) * second) for n in range(60)]
    assert late[0] > 99 and late[20] > 99 and late[-1] < 0.1, "it was frozen with its clock"


def test_a_node_cannot_speak_for_the_ranks_of_another() -> None:
    async def scenario(scene: Scene) -> None:
        batch = WindowBatch(node="b", session="s", windows=(RefWindow(scene.story.ref(1), STOPPED[1]),))
        await scene.watch.hear(Message(subjects.windows("b"), codec.encode(batch)))
        await scene.watch.hear(Message(subjects.windows("c"), codec.encode(batch)))
        await scene.watch.hear(Message(subjects.windows("a"), b"nonsense"))
        assert scene.watch._jobs == {}

    play(scenario)


def test_a_block_is_taken_only_where_rank_incarnation_and_skeleton_are_known() -> None:
    async def scenario(scene: Scene) -> None:
        await scene.hear(*HANG, incarnation=7)
        assert scene.watch._jobs == {}, "of another incarnation"
        refs = tuple(RefWindow(scene.story.ref(w.rank), replace(w, node="a")) for w in HANG)
        (first,), _, (third,) = [scene.packing.pack(refs)[1] for _ in range(3)]
        # What a rank is in for longer than a look becomes a part of what stays.
        assert first.sent and not third.sent, "what has not changed is not sent again"

        async def send(block: WindowBlock) -> list[int]:
            batch = WindowBatch(node="a", session="s1", blocks=(block,))
            await scene.watch.hear(Message(subjects.windows("a"), codec.encode(batch)))
            return [w.rank for w in scene.watch.windows(scene.story.job().id)]

        assert await send(replace(third, narrow=b"123")) == [], "it does not fit together"
        assert await send(third) == [], "its skeletons were lost"
        assert await send(replace(first, incarnations=(1, 9))) == [0]
        assert await send(first) == [0, 1]

    play(scenario)


def test_a_mistake_in_a_detector_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def broken(*_: object, **__: object) -> Any:
        calls.append(1)
        raise ZeroDivisionError

    monkeypatch.setattr(module, "judge", broken)

    async def scenario(scene: Scene) -> None:
        while len(calls) < 3:
            await keep(scene, STOPPED, 1)

    assert play(scenario).said == []


def test_steps_of_several_windows_are_joined() -> None:
    def with_steps(*steps: int) -> RankWindow:
        return replace(HANG[0], steps=tuple(StepTimes(s, 10, 0, 0) for s in steps))

    board = WindowBoard(1)
    board.put(with_steps(*range(1, 31)))
    board.put(with_steps())
    assert [s.step for s in board[0].steps] == [*range(1, 31)]
    board.put(with_steps(30, 31, 33, 34))
    assert [s.step for s in board[0].steps][-6:] == [28, 29, 30, 31, 33, 34]
    assert len(board[0].steps) == 32 and board.gaps == {0}
    board.put(with_steps(*range(4, 36)))
    assert [s.step for s in board[0].steps] == [*range(4, 36)] and not board.gaps, "all were sent again"
    board.put(with_steps(1, 2), anew=True)
    assert [s.step for s in board[0].steps] == [1, 2]


def test_whoever_takes_over_knows_how_fast_a_job_is_and_how_long_its_pauses_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SAVE_EVERY_S", 0.0)
    pace = module.Pace(steps=500, recent_s=(0.3,) * 600, pauses_s={"save() at train.py:9": 40.0})

    async def scenario(scene: Scene) -> None:
        watched = scene.watch._watched(scene.story.job())
        watched.memory = replace(watched.memory, pace=pace)
        while await scene.bus.get_object("baselines") is None:
            await asyncio.sleep(0.005)
        heir = Detection(scene.bus, lambda: scene.story.fleet, lambda: True, scene._say)
        heir._watched(scene.story.job())
        await heir._remember()
        learned = heir._jobs["j"].memory.pace
        assert learned.steps == 500 and learned.pauses_s == pace.pauses_s and len(learned.recent_s) == 128
        scene.story.job().generation += 1
        later = Detection(scene.bus, lambda: scene.story.fleet, lambda: True, scene._say)
        await later._remember()
        assert later._jobs["j"].memory.pace.steps == 0 and later._jobs["j"].memory.pace.pauses_s
        scene.story.job().generation -= 1
        await scene.bus.put_object("baselines", b"nonsense")
        anew = Detection(scene.bus, lambda: scene.story.fleet, lambda: True, scene._say)
        await anew._remember()
        assert anew._jobs == {}

    play(scenario)


def test_limits_that_the_owner_set() -> None:
    assert limits_of(HangLimits()).hang.hang_act_s == 600
    silence = limits_of(HangLimits(heartbeat_timeout_s=5.0)).hang
    assert (silence.hang_floor_s, silence.hang_cap_s, silence.hang_act_s) == (5.0, 5.0, 600)
    assert limits_of(HangLimits(heartbeat_timeout_s=5.0, hang_report_s=7.0)).hang.hang_cap_s == 7.0
    hang = limits_of(HangLimits(hang_report_s=7.0, hang_act_s=30.0)).hang
    assert (hang.hang_floor_s, hang.hang_cap_s, hang.hang_act_s, hang.start_act_s) == (7.0, 7.0, 30.0, 30.0)


def test_nobody_waits_for_the_next_round_when_all_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of every rank are looked at when the last one comes, and evidence is told when it comes."""
    monkeypatch.setattr(module, "LOOK_EVERY_S", 1000.0)

    async def scenario(scene: Scene) -> None:
        await scene.answer()
        await scene.hear(*(replace(w, steps_done=30) for w in STOPPED))
        while not scene.said:
            await asyncio.sleep(0.001)

    scene = play(scenario)
    (said,) = scene.said
    assert isinstance(said, FindingMade) and "in save() at train.py:9" in said.finding.sentence

    async def half(scene: Scene) -> None:
        await scene.answer()
        await scene.hear(replace(STOPPED[0], steps_done=30))
        await asyncio.sleep(0.1)

    assert play(half).said == []
