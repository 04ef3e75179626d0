"""Steering at the boundary: reads mail, drives this rank's side of the transaction, does what it says.

Owns the worker's shell around core/transaction/rank.py: the mailbox, the store, the answers in the black box,
the phases while it waits, and the end of a worker that could differ from the others. What a change changes
is config.py's, saving and going back are checkpoints.py's. docs/steering.md has the rules.

With nothing pending a step pays for one comparison with `due`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import assert_never

from torchloom.core.transaction.packing import MailReader, join_answers, pack_answer, pack_answers
from torchloom.core.transaction.rank import Rank
from torchloom.core.transaction.rank_actions import (
    CompareSet,
    EndWorker,
    Hold,
    Look,
    Pass,
    Run,
    StopScript,
    Undo,
    Wait,
)
from torchloom.model.transaction.messages import Answer, AttemptId, Changed, Kind, Phase, Proposal, Said
from torchloom.probe.observe.phases import Phases
from torchloom.probe.steering.changes import Changes
from torchloom.probe.steering.registers import Registers, StoreSilent
from torchloom.probe.steering.stopping import Lost, ScriptsHandler, StopAtBoundary, nap
from torchloom.wire.blackbox import (
    ANSWERS,
    MAIL,
    MAILBOX_AT,
    PROGRESS_AT,
    Header,
    Mailbox,
    Progress,
    View,
    WorkerPhase,
)

_VERSION = MAILBOX_AT // 8 + Mailbox.VERSION
_STEP_NS = PROGRESS_AT // 8 + Progress.STEP_NS
LOOK_NS = 200_000_000
"""How long one look for news may take before the mailbox counts again."""
LEAVE_NS = 2_000_000_000
"""How long the end of a script waits for the store."""
SHORT_S, LONG_S = 0.001, 0.005
PAUSED_SHORT_S, PAUSED_LONG_S = 0.005, 0.02


class BoundaryControl:
    """The steering of one worker."""

    def __init__(self, view: View, phases: Phases, changes: Changes, registers: Registers) -> None:
        self._view = view
        self._words = view.words
        self._phases = phases
        self._changes = changes
        self._registers = registers
        self._rank: Rank | None = None
        self._mail_read = 0
        self._mails = MailReader()
        self._answers = Answers(view)
        self._said: tuple[Answer, ...] = ()
        """What is written there."""
        self._left = False
        self._handler = ScriptsHandler()
        self._ending = False
        """A framework's trainer was asked to end its loop."""
        self.anchor: Callable[[], str] = str
        """Names the optimizer whose steps are counted."""
        self.begins_paused = False
        """Every rank of this generation has reached its first boundary."""
        self.standing: Callable[[], None] = _nothing
        """Called when this rank is about to pause: it reports nothing else until it resumes."""
        self.enter_between: Callable[[int], None] = self.between
        """The same as `between`, guarded by the creator of this object."""
        self.due = 0
        """Completed steps from which on `boundary` must be called, mail or not."""
        self.waited_ns = 0
        """Total time spent at boundaries, for those who measure steps."""

    @property
    def is_armed(self) -> bool:
        """Whether an error here must end the worker: passing a boundary could make it differ from others."""
        return self._rank is not None and self._rank.is_armed

    def ends_itself(self, completed: int) -> bool:
        """Whether a framework's trainer, or the script's handler of SIGTERM, ends the loop in its own way."""
        return self._changes.checkpoints.ends_itself(completed) or self._handler.ask()

    # -- the two places -------------------------------------------------------------------------
    def boundary(self, completed: int) -> None:
        """At the boundary before step `completed` + 1. May end the script."""
        began_ns = time.monotonic_ns()
        try:
            self._changes.at_boundary(completed)
            self._talk(completed, between=False)
        finally:
            self.waited_ns += time.monotonic_ns() - began_ns
        if self._changes.is_over(completed):
            raise StopAtBoundary
        self._plan(completed)
        if self._ending:
            self.due = completed + 1  # a trainer that does not end by itself is ended there

    def hold(self) -> None:
        """Called at a boundary: all ranks of the job pause at this one."""
        if self._rank is None:
            self.begins_paused = True
        else:
            self._rank.held = True

    def between(self, completed: int) -> None:
        """After step `completed`, before anything of the next one. Called by loom.Checkpoint."""
        self.due = 0
        began_ns = time.monotonic_ns()
        try:
            self._talk(completed, between=True)
        finally:
            self.waited_ns += time.monotonic_ns() - began_ns

    def leave(self) -> None:
        """The script ends: no rank should wait for this one."""
        if self._rank is None or self._left:
            return
        self._left = True
        self._rank.leave()
        give_up_ns = time.monotonic_ns() + LEAVE_NS
        while not isinstance(do := self._rank.next(time.monotonic_ns()), Pass | EndWorker):
            assert isinstance(do, CompareSet), do
            self._ask(self._rank, CompareSet(do.key, do.value, min(do.until_ns, give_up_ns)))
        self._publish(self._rank)

    def _plan(self, completed: int) -> None:
        """When to look again; and a word to the checkpoint, if the place between the steps matters."""
        due = self._changes.next_boundary(completed)
        if self._rank is not None:
            step = self._rank.due_step
            if step is not None:
                due = min(due, max(step - 1, completed + 1))
            place = self._rank.between_step
            if place is not None and place <= completed + 2:
                self._changes.checkpoints.at_end(lambda: self.enter_between(completed + 1))
            elif place is not None:
                # The place comes before the boundary of its step: the boundary one step earlier leads there.
                due = min(due, place - 2)
        self.due = due

    # -- the conversation -----------------------------------------------------------------------
    def _talk(self, completed: int, *, between: bool) -> None:
        rank = self._rank
        if rank is None and self._words[_VERSION] == self._mail_read and not self.begins_paused:
            return
        if rank is None:
            header = self._view.header
            rank = self._rank = Rank(
                header(Header.GENERATION),
                header(Header.RANK),
                max(1, header(Header.WORLD_SIZE)),
                held=self.begins_paused,
            )
        rank.anchor = self.anchor()
        rank.offset = self._changes.offset
        rank.arrive(completed + 1, self._words[_STEP_NS], between=between)
        before = self._phases.now
        sleep_s = 0.0
        try:
            while True:
                if self._words[_VERSION] != self._mail_read:
                    self._read_mail(rank, completed)
                    sleep_s = 0.0
                do = rank.next(time.monotonic_ns())
                self._publish(rank)
                match do:
                    case Pass():
                        return
                    case CompareSet():
                        self._show(WorkerPhase.CONTROL_WAIT)
                        self._ask(rank, do)
                    case Look():
                        self._show(WorkerPhase.CONTROL_WAIT)
                        self._look(rank, do)
                    case Wait():
                        self._show(WorkerPhase.CONTROL_WAIT)
                        sleep_s = self._wait(rank, do, sleep_s)
                    case Run(proposal=proposal):
                        self._run(rank, proposal, completed)
                    case Undo(proposal=proposal):
                        rank.undone(self._changes.undo(proposal.attempt))
                    case Hold():
                        self._show(WorkerPhase.PAUSED)
                        if not sleep_s:
                            self.standing()
                        self._changes.checkpoints.report()
                        sleep_s = self._sleep(sleep_s, PAUSED_SHORT_S, PAUSED_LONG_S)
                    case StopScript(signal=name):
                        self._stop(completed, name)
                        return
                    case EndWorker(why=why):
                        raise Lost(why)
                    case _:
                        assert_never(do)
                self._publish(rank)
        finally:
            if self._phases.now != before:
                self._phases.set(before, time.monotonic_ns())

    def _stop(self, completed: int, name: str) -> None:
        """By the signal that somebody named, if the script handles it; else in the way of its trainer, of its
        handler of SIGTERM, or at this boundary."""
        if name and self._handler.ask(name):
            return
        if self._changes.checkpoints.ends_itself(completed):
            self._ending = True
        elif not self._handler.ask():
            raise StopAtBoundary

    def _read_mail(self, rank: Rank, completed: int) -> None:
        version = self._words[_VERSION]
        data = self._view.read_blob(MAIL)
        if data is None:
            return  # being written right now
        try:
            mails = self._mails.read(data)
        except ValueError:  # mail is state: if it is unreadable, the older state is seen a while longer
            mails = ()
        self._mail_read = version
        for mail in mails:
            asks = mail.phase in (Phase.PREPARE, Phase.ARM) and mail.proposal.attempt not in rank.answers
            problem = self._changes.problem(mail.proposal, completed, held=rank.held) if asks else ""
            rank.receive(mail, problem)

    def _run(self, rank: Rank, proposal: Proposal, completed: int) -> None:
        if proposal.kind is Kind.PROBE:
            self._show(WorkerPhase.CONTROL_WAIT)
        trouble, changed = self._changes.run(proposal, completed, held=rank.held)
        rank.offset = self._changes.offset
        rank.ran(trouble, changed)

    def _publish(self, rank: Rank) -> None:
        """An answer that is not in the black box when the worker dies is lost."""
        if tuple(rank.answers.values()) == self._said:
            return  # most often: to pack them each time would cost more than all the rest of a change
        for name, answer in list(rank.answers.items()):
            if answer.said is Said.APPLIED and self._changes.settled(name):
                # Only now has the training rolled back: report the step at which it resumes.
                rank.offset = self._changes.offset
                rank.answers[name] = replace(answer, offset=rank.offset)
        self._said = tuple(rank.answers.values())
        self._answers.write(self._said)

    # -- the store ------------------------------------------------------------------------------
    def _ask(self, rank: Rank, do: CompareSet) -> None:
        try:
            rank.store_said(do.key, self._registers.compare_set(do.key, do.value, do.until_ns))
        except StoreSilent as error:
            rank.store_failed(str(error), time.monotonic_ns())
            nap(SHORT_S)

    def _look(self, rank: Rank, do: Look) -> None:
        try:
            rank.saw(self._registers.look(do.keys, do.until_ns))
        except StoreSilent as error:
            rank.store_failed(str(error), time.monotonic_ns())
            nap(SHORT_S)

    def _wait(self, rank: Rank, do: Wait, sleep_s: float) -> float:
        """Check once for news; ignore errors of the store."""
        if do.keys and not self._registers.is_stuck:
            try:
                rank.saw(self._registers.look(do.keys, min(do.until_ns, time.monotonic_ns() + LOOK_NS)))
            except StoreSilent:
                pass
        if isinstance(rank.next(time.monotonic_ns()), Wait):
            return self._sleep(sleep_s, SHORT_S, LONG_S)
        return 0.0

    def _sleep(self, last_s: float, shortest_s: float, longest_s: float) -> float:
        seconds = min(longest_s, max(shortest_s, last_s * 1.5))
        nap(seconds)
        return seconds

    def _show(self, phase: WorkerPhase) -> None:
        if self._phases.now != int(phase):
            self._phases.set(int(phase), time.monotonic_ns())


def _nothing() -> None:
    """Nobody wants to know."""


class Answers:
    """The blob of one worker. Of several answers mostly one is new: the others are not packed again."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._packed: dict[AttemptId, tuple[Answer, bytes]] = {}
        self._written = b""

    def write(self, answers: Sequence[Answer]) -> None:
        """Write them if they differ from what is there."""
        self._packed = {answer.attempt: (answer, self._pack(answer)) for answer in answers}
        data = join_answers(packed for _, packed in self._packed.values())
        if len(data) > ANSWERS.capacity:
            data = _fitting(sorted(answers, key=lambda answer: answer.attempt))
        if data != self._written:
            self._view.write_blob(ANSWERS, data)
            self._written = data

    def _pack(self, answer: Answer) -> bytes:
        known = self._packed.get(answer.attempt)
        return known[1] if known is not None and known[0] is answer else pack_answer(answer)


def _fitting(answers: list[Answer]) -> bytes:
    """Drop details of old answers first, then shorten the newest, then drop old answers."""
    if not answers:
        return pack_answers(())
    *old, newest = answers
    old = [replace(answer, changed=()) for answer in old]
    for short in (newest, replace(newest, changed=_in_short(newest.changed))):
        data = pack_answers([*old, short])
        if len(data) <= ANSWERS.capacity:
            return data
    newest = replace(newest, changed=())
    while old and len(data := pack_answers([*old, newest])) > ANSWERS.capacity:
        old = old[1:]
    return data if old else pack_answers([newest])


def _in_short(changed: tuple[Changed, ...]) -> tuple[Changed, ...]:
    """One line for all places of a name that went from one value to one other."""
    short: dict[str, Changed] = {}
    for address, before, after in changed:
        name = address.partition(".")[2].partition("@")[0] or address
        short.setdefault(f"{name} {before} {after}", (name, before, after))
    return tuple(short.values())
