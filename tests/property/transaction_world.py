"""A hostile world around the transaction: messages lost, late, doubled or out of order, any part killed.

`World.act` does one of ACTIONS, chosen and steered by a number, so that a list of pairs is a whole history
and hypothesis can shrink it. `World.calm` lets the world behave from then on. Safety is checked after every
action, from what the workers themselves did.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from transaction_checks import check_safe, check_told
from transaction_ranks import CONTROL_TIMEOUT_NS, VOTE_TIMEOUT_NS, Store, Worker

from torchloom.core.transaction import proposer
from torchloom.core.transaction.rank import Rank
from torchloom.model.transaction.messages import BETWEEN, Answer, AttemptId, Kind, Phase
from torchloom.model.transaction.operation import (
    Answered,
    Cancelled,
    Effect,
    Event,
    GenerationBegan,
    How,
    JobEnded,
    Operation,
    Outcome,
    Progressed,
    RankEnded,
    Requested,
    Send,
    Tell,
    Ticked,
)
from torchloom.model.transaction.state import Proposer, ProposerLimits, Round

MS = 1_000_000
LIMITS = ProposerLimits(control_timeout_s=CONTROL_TIMEOUT_NS / 1e9, answer_timeout_s=20.0, tries=3)
GENERATIONS = 3
DRIFT = 2
"""How many steps a rank may be ahead of the slowest: the protocol must not lean on lockstep."""
KINDS = [Kind.SET, Kind.SET, Kind.RESTORE, Kind.PAUSE, Kind.RESUME, Kind.CHECKPOINT, Kind.STOP]
Apply = Callable[[Proposer, Event, int], list[Effect]]


class World:
    """A job of a few ranks, generation after generation, and the weaver that steers it."""

    def __init__(
        self, size: int, *, rank: type[Rank] = Rank, apply: Apply = proposer.apply, paused: bool = False
    ) -> None:
        self.size = size
        self.rank_class = rank
        self.apply = apply
        self.now_ns = 1000 * MS
        self.weaver = Proposer(limits=LIMITS)
        self.stream: list[tuple[Event, int]] = []
        self.mails: list[Send] = []
        self.answers: list[Answer] = []
        self.ends: list[RankEnded] = []
        """Exits nobody has reported yet; reports of exits are never lost."""
        self.bus_away = False
        self.store = Store()
        self.workers: list[Worker] = []
        self.past: list[Worker] = []
        self.at_step: dict[AttemptId, int] = {}
        self.requested: dict[int, Operation] = {}
        self.told: dict[int, Outcome] = {}
        self.carrier: dict[int, int] = {}
        """Of changes that were carried out together: the version under which the ranks know them."""
        self.faults: dict[tuple[int, int], str] = {}
        self.job_over = False
        self.paused = paused
        """Whether the next generation begins paused, as the core wants it of a job that is."""
        self.odd_rank = -1
        """One whose script does not say at every step that it is between two."""
        self.begin_generation(1)

    # -- the weaver -----------------------------------------------------------------------------
    def tell_weaver(self, event: Event) -> None:
        """Into the stream, and through the core. What it wants sent may still be lost."""
        self.stream.append((event, self.now_ns))
        effects = self.apply(self.weaver, event, self.now_ns)
        if self.weaver.current is not None:
            carried = self.weaver.parts or [self.weaver.current]
            self.carrier |= {part.version: self.weaver.current.version for part in carried}
        for effect in effects:
            if isinstance(effect, Tell):
                outcome = effect.outcome
                assert outcome.version not in self.told, "told twice"
                assert outcome.reason and outcome.how is not How.DIVERGED, outcome
                self.told[outcome.version] = outcome
                check_told(self, outcome)
                kind = self.requested[outcome.version].kind
                if outcome.how is How.APPLIED and kind in (Kind.PAUSE, Kind.RESUME):
                    self.paused = kind is Kind.PAUSE
                if outcome.how is not How.APPLIED:  # those it was tried with may be carried out without it
                    self.carrier.pop(outcome.version, None)
            else:
                assert effect.reason
                mail = effect.mail
                if mail.phase is not Phase.PREPARE:
                    known = self.at_step.setdefault(mail.proposal.attempt, mail.at_step)
                    assert known == mail.at_step or mail.phase is Phase.WITHDRAW, "one attempt, one step"
                self.mails.append(effect)

    def replace_weaver(self, _: int) -> None:
        """Killed, and everything it had not sent yet with it. The next one replays the stream."""
        fresh = Proposer(limits=LIMITS)
        for event, now_ns in self.stream:
            self.apply(fresh, event, now_ns)
        assert fresh == self.weaver, "a replay comes to another state"
        self.weaver = fresh
        self.mails.clear()

    # -- generations ----------------------------------------------------------------------------
    def begin_generation(self, generation: int) -> None:
        self.past += self.workers
        self.store, self.begun_paused = Store(), self.paused
        self.workers = [
            Worker(
                rank,
                self.store,
                self.rank_class(generation, rank, self.size, held=self.paused),
                self.fails,
                400,
                self.skips,
            )
            for rank in range(self.size)
        ]
        self.tell_weaver(GenerationBegan(generation, self.size))

    @staticmethod
    def offset(generation: int) -> int:
        """Training step minus step: every generation goes on where the one before had saved."""
        return 4 * generation

    @property
    def generation(self) -> int:
        return self.weaver.generation

    def fails(self, attempt: AttemptId, rank: int) -> str:
        return self.faults.get((attempt.version, rank), "")

    def skips(self, rank: int, step: int) -> bool:
        if step == 1 and self.begun_paused:
            return self.generation % 2 == 1  # a real one comes to its first boundary and knows no other place
        return self.odd_rank == rank and step % 3 == 0

    def notice_ends(self) -> None:
        known = {(end.generation, end.rank) for end in self.ends}
        known |= {(self.generation, rank) for rank in self.weaver.gone}
        for worker in self.workers:
            if not worker.alive and (worker.machine.generation, worker.rank) not in known:
                self.ends.append(RankEnded(worker.machine.generation, worker.rank, worker.how, worker.read()))

    def restart_if_over(self) -> None:
        """As the core does: no new generation before every process of the old one is known to be gone."""
        if self.job_over or any(worker.alive for worker in self.workers) or self.ends:
            return
        if self.generation >= GENERATIONS or all(w.how in ("finished", "stopped") for w in self.workers):
            self.job_over = True
            self.tell_weaver(JobEnded("its workers are gone"))
        else:
            self.begin_generation(self.generation + 1)

    # -- actions --------------------------------------------------------------------------------
    def act(self, action: str, number: int) -> None:
        ACTIONS[action](self, number)
        self.notice_ends()
        check_safe(self)

    def advance(self, number: int) -> None:
        worker = self.workers[number % self.size]
        slowest = min((w.step for w in self.workers if w.alive), default=0)
        if worker.at_boundary or worker.step < slowest + DRIFT:
            worker.advance(self.now_ns)
            self.now_ns += MS // 10

    def advance_all(self, number: int) -> None:
        for rank in range(self.size):
            for _ in range(1 + number % 4):
                self.advance(rank)

    def pass_time(self, number: int) -> None:
        """Nobody oversleeps: time stops where a rank must wake."""
        ns = [MS, 50 * MS, 300 * MS, 1100 * MS][number % 4]
        ns = min(
            [ns, *(max(0, w.until_ns() - self.now_ns) for w in self.workers if w.until_ns() is not None)]
        )
        self.now_ns += ns
        for worker in self.workers:
            if worker.alive:
                worker.time_passed(ns)
                if worker.until_ns() is not None:
                    worker.advance(self.now_ns)

    def request(self, number: int) -> None:
        if len(self.requested) >= 5:
            return
        version = len(self.requested) + 1
        kind = KINDS[number % 7]
        plan = number // 7 % 5
        at_step = None if plan else max(w.step for w in self.workers) + number // 35 % 8
        two_phase = kind in (Kind.SET, *BETWEEN) and number // 280 % 2 == 1
        fault = {1: "run", 2: "undo", 3: "refuse"}.get(number // 560 % 12, "")
        if fault and two_phase:
            self.faults[version, number % self.size] = "run"
            if fault != "run":
                self.faults[version, (number + 1) % self.size] = fault
        operation = Operation(
            version,
            kind,
            {},
            two_phase,
            at_step,
            vote_timeout_s=VOTE_TIMEOUT_NS / 1e9,
            step_ns=2 * MS,
            position=self.guess(number // 11),
        )
        if at_step is not None and number // 7 % 2:
            operation = replace(operation, training_step=at_step + self.offset(self.generation))
        self.ask_for(operation)
        if number % 3 == 0:
            self.tell_weaver(Requested(operation))

    def guess(self, number: int) -> float:
        """Where somebody thinks that the ranks are: unknown, about right, or quite wrong."""
        wrong = (0, 0, 0, -12, 6)[number % 5]
        return max(0.0, max(w.step for w in self.workers) + wrong + 0.5) if number % 7 > 1 else 0.0

    def ask_for(self, operation: Operation) -> None:
        self.requested[operation.version] = operation
        self.tell_weaver(Requested(operation))

    def cancel(self, number: int) -> None:
        if self.requested:
            self.tell_weaver(Cancelled(1 + number % len(self.requested), "ann"))

    def deliver_mail(self, number: int, *, keep: bool = False) -> None:
        if self.mails and not self.bus_away:
            at = number % len(self.mails)
            sent = self.mails[at] if keep else self.mails.pop(at)
            # On purpose without looking at the generation: a late agent writes into whatever box is there.
            if sent.rank < self.size:
                self.workers[sent.rank].put(sent.mail)

    def double_mail(self, number: int) -> None:
        self.deliver_mail(number, keep=True)

    def lose_mail(self, number: int) -> None:
        if self.mails:
            self.mails.pop(number % len(self.mails))

    def read_box(self, number: int) -> None:
        if len(self.answers) < 60:
            self.answers += self.workers[number % self.size].read()

    def deliver_answer(self, number: int, *, keep: bool = False) -> None:
        if self.answers and not self.bus_away:
            at = number % len(self.answers)
            self.tell_weaver(Answered(self.answers[at] if keep else self.answers.pop(at)))

    def double_answer(self, number: int) -> None:
        self.deliver_answer(number, keep=True)

    def lose_answer(self, number: int) -> None:
        if self.answers:
            self.answers.pop(number % len(self.answers))

    def exchange(self, number: int) -> None:
        """A good moment: what is on its way arrives, for all ranks or for one."""
        only = None if number % 3 else number % self.size
        if self.bus_away:
            return
        for sent in [sent for sent in self.mails if only in (None, sent.rank)]:
            self.mails.remove(sent)
            self.workers[sent.rank].put(sent.mail)
        for worker in self.workers:
            if only in (None, worker.rank):
                for answer in worker.read():
                    self.tell_weaver(Answered(answer))

    def round(self, number: int) -> None:
        self.exchange(1)
        self.advance_all(number)
        self.exchange(1)

    def hurry(self, number: int) -> None:
        """All goes well until the weaver waits for ranks to arm, or has just confirmed."""
        goal = (Round.ARMING, Round.CONFIRMED)[number % 2]
        for _ in range(12):
            if self.bus_away or self.weaver.current is None or self.weaver.stage is goal:
                return
            self.advance_all(1)
            for worker in self.workers:
                for answer in worker.read():
                    if self.weaver.stage is not goal:
                        self.tell_weaver(Answered(answer))
            if self.weaver.stage is not goal:
                self.exchange(1)

    def tick(self, _: int) -> None:
        self.tell_weaver(Ticked())

    def progress(self, number: int) -> None:
        step, offset = self.workers[number % self.size].step, self.offset(self.generation)
        self.tell_weaver(Progressed(self.generation, step, offset=offset if number % 3 else None))

    def kill_worker(self, number: int) -> None:
        worker = self.workers[number % self.size]
        if worker.alive:
            worker.kill("killed by signal 9")

    def end_script(self, number: int) -> None:
        """A rank's script comes to its end, here or a few steps on, perhaps before the others'."""
        worker = self.workers[number % self.size]
        worker.last_step = min(worker.last_step, worker.step + number // 3 % 5)

    def report_end(self, number: int) -> None:
        if self.ends and not self.bus_away:
            self.tell_weaver(self.ends.pop(number % len(self.ends)))
        self.restart_if_over()

    def end_generation(self, _: int) -> None:
        """Once one is gone the others are ended, and it is all known."""
        if any(not worker.alive for worker in self.workers):
            for worker in self.workers:
                if worker.alive:
                    worker.kill("ended with its generation")
            self.notice_ends()
            while self.ends:
                self.tell_weaver(self.ends.pop())
            self.restart_if_over()

    def store_away(self, number: int) -> None:
        self.store.away = number % 3 == 0

    def store_moody(self, number: int) -> None:
        self.store.moods = [["refuse", "lose", ""][number // 3**k % 3] for k in range(3)]

    def make_odd(self, number: int) -> None:
        self.odd_rank = number % (self.size + 1) - 1

    def bus(self, number: int) -> None:
        self.bus_away = number % 3 == 0

    # -- peace ----------------------------------------------------------------------------------
    def calm(self) -> None:
        """From now on everything works: every operation must come to its told end."""
        self.bus_away, self.store.away, self.store.moods = False, False, []
        for _ in range(1000):
            if any(not worker.alive for worker in self.workers):
                self.end_generation(0)
            if len(self.told) == len(self.requested):
                break
            if self.weaver.current is None and all(worker.machine.held for worker in self.workers):
                self.ask_for(Operation(len(self.requested) + 1, Kind.RESUME))
            self.exchange(1)
            for rank in range(self.size):
                self.advance(rank)
                self.advance(rank)
            self.exchange(1)
            self.progress(1)
            self.pass_time(2)
            self.tick(0)
            self.notice_ends()
            check_safe(self)


ACTIONS: dict[str, Callable[[World, int], None]] = {
    "advance": World.advance,
    "advance all": World.advance_all,
    "pass time": World.pass_time,
    "request": World.request,
    "cancel": World.cancel,
    "deliver mail": World.deliver_mail,
    "double mail": World.double_mail,
    "lose mail": World.lose_mail,
    "read box": World.read_box,
    "deliver answer": World.deliver_answer,
    "double answer": World.double_answer,
    "lose answer": World.lose_answer,
    "exchange": World.exchange,
    "round": World.round,
    "hurry": World.hurry,
    "tick": World.tick,
    "progress": World.progress,
    "kill worker": World.kill_worker,
    "end script": World.end_script,
    "report end": World.report_end,
    "end generation": World.end_generation,
    "store away": World.store_away,
    "store moody": World.store_moody,
    "bus": World.bus,
    "replace weaver": World.replace_weaver,
    "make odd": World.make_odd,
}
