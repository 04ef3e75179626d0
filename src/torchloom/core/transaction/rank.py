"""The rank's side of a transaction: what to answer, what to ask the store, when to apply, when to continue.

A pull machine, because the worker has no thread to spare: at a boundary its shell feeds what it knows
(`arrive`, `receive`) and then does what `next` says, feeding each result back, until that is Pass. Time is an
argument; results of the store and of the user's code come back as calls. It neither reads the mailbox nor
touches the store, an optimizer or a clock. An attempt that is armed here is decided in the store before the
boundary of its step is passed, or the worker ends.

A paused rank decides at its present place about what comes next there or at the other place of a step; the
decision moves all ranks on to that place, and there they pause again.
"""

from __future__ import annotations

from collections.abc import Mapping

from torchloom.core.transaction import rank_actions
from torchloom.core.transaction.attempt import (
    ABORT,
    COMMIT,
    KEEP,
    NEVER_BETWEEN,
    UNDO,
    Attempt,
    Stage,
    decision_key,
    settlement_key,
    to_propose,
    to_settle,
    vote,
    vote_key,
    why_settled,
)
from torchloom.model.transaction.messages import Answer, AttemptId, Changed, Kind, Mail, Phase, Said

ATTEMPTS_KEPT = 8
WHY_CHARS = 4000
"""How much of a traceback an answer holds; the answers share one blob of the black box."""
STORE_TIMEOUT_NS = 10_000_000_000
"""How long the job's store (not the control plane) may fail before a rank that needs its answer ends."""
HEARD_NS = 1_000_000_000
"""A store that answered within this time is not probed first."""


class Rank:
    """One rank in one generation."""

    def __init__(
        self, generation: int, rank: int, world: int, *, anchor: str = "", held: bool = False
    ) -> None:
        """`held`: the job is paused, so that every rank of this generation begins so."""
        self.generation = generation
        self.rank = rank
        self.world = world
        self.anchor = anchor
        self.step = 0
        self.between = False
        """At the place between the steps, before the boundary of `step`; else at the boundary."""
        self.step_ns = 0
        self.offset: int | None = None
        """Training step minus step, if the script reports its own; for the answers."""
        self.held = held
        self.stopped, self._signal = False, ""
        self.broken = ""
        self.answers: dict[AttemptId, Answer] = {}
        """The newest answer per attempt, for the shell to publish whenever it changed."""
        self._attempts: dict[AttemptId, Attempt] = {}
        self._newest_forgotten = AttemptId(generation, 0, 0)
        self._leaving = False
        self._waited_until_ns = 0
        """The limit of waiting for mail at this boundary, however many attempts are due here."""
        self._asked_ns = self._heard_ns = -HEARD_NS

    # -- what happens ---------------------------------------------------------------------------
    def arrive(self, step: int, step_ns: int = 0, *, between: bool = False) -> None:
        """The boundary before `step` is reached; or, in `between`, the place where the step before it is over
        and nothing of this one has begun."""
        self.step, self.step_ns, self.between, self._waited_until_ns = step, step_ns, between, 0

    def receive(self, mail: Mail, problem: str = "") -> None:
        """Mail was read at the boundary; reading it again changes nothing.

        `problem` is why this rank could not carry the proposal out; it counts in the first mail only.
        """
        proposal = mail.proposal
        if not self._concerns_us(proposal.attempt):
            return
        attempt = self._attempts.get(proposal.attempt)
        if attempt is None:
            attempt = self._attempts[proposal.attempt] = Attempt(proposal)
            self._forget_old()
        match mail.phase:
            case Phase.PREPARE | Phase.ARM if attempt.stage is Stage.NEW:
                attempt.at_step = mail.at_step if mail.phase is Phase.ARM else 0
                if problem:
                    self._close(attempt, Said.REFUSED, problem)
                elif self.world == 1:
                    self._prepared(attempt)
                else:
                    attempt.enter(Stage.ASKED)
            case Phase.ARM if attempt.stage is Stage.PREPARED:
                attempt.at_step = mail.at_step
                self._arm(attempt)
            case Phase.CONFIRM if attempt.stage in (Stage.ARMED, Stage.WAITING):
                attempt.confirmed = True
            case Phase.WITHDRAW if attempt.stage < Stage.DECIDING:
                if mail.unconfirmed or attempt.stage < Stage.ARMED:
                    self._close(attempt, Said.NOT_APPLIED, "it was withdrawn")
                else:
                    attempt.withdrawn = True
            case _:
                pass  # doubled or late: the answer already given holds

    def leave(self) -> None:
        """The script ends before its next boundary. What is armed is aborted, unless decided already."""
        self._leaving = True
        self.held = False
        for attempt in self._attempts.values():
            if attempt.stage < Stage.ARMED:
                self._close(attempt, Said.LEFT, "the script ended")

    def store_said(self, key: str, value: str) -> None:
        """The value that `compare_set` brought back: the first writer's."""
        self._heard_ns = self._asked_ns
        attempt = self._busy()
        if attempt is None:
            return
        if attempt.stage is Stage.DECIDING and key == attempt.store_key:
            self._decided(attempt, value)
        elif attempt.stage is Stage.VOTING and key == vote_key(attempt.proposal.attempt, self.rank):
            attempt.votes[self.rank] = value
            attempt.enter(Stage.COUNTING)
        elif attempt.stage is Stage.SETTLING and key == attempt.store_key:
            self._settled(attempt, value)

    def store_failed(self, why: str, now_ns: int) -> None:
        """The store did not answer. It is asked again, but not forever."""
        attempt = self._busy()
        if attempt is not None and self._leaving:
            self._close(attempt, Said.LEFT, f"the script ended, and the job's store does not answer: {why}")
            return
        if attempt is None or not attempt.until_ns or now_ns < attempt.until_ns:
            return
        if attempt.stage is Stage.ASKED:
            self._close(attempt, Said.REFUSED, f"the job's store does not answer: {why}")
        elif attempt.stage in (Stage.DECIDING, Stage.VOTING, Stage.SETTLING):
            self._break(attempt, f"the job's store does not say what the ranks decided: {why}")

    def saw(self, found: Mapping[str, str]) -> None:
        """What `Look` or `Wait` found in the store: values of those keys that have one."""
        attempt = self._busy()
        if attempt is None:
            return
        name = attempt.proposal.attempt
        if attempt.stage is Stage.ASKED:
            self._heard_ns = self._asked_ns
            self._prepared(attempt)
        elif attempt.stage is Stage.WAITING and decision_key(name) in found:
            self._decided(attempt, found[decision_key(name)])
        elif attempt.stage is Stage.COUNTING:
            for rank in range(self.world):
                if vote_key(name, rank) in found:
                    attempt.votes[rank] = found[vote_key(name, rank)]
            if settlement_key(name) in found:
                attempt.why = why_settled(attempt.votes, self.world)
                self._settled(attempt, found[settlement_key(name)])

    def ran(self, trouble: str = "", changed: tuple[Changed, ...] = ()) -> None:
        """The proposal was applied on this rank; `trouble` (a traceback) if it could not be."""
        attempt = self._busy()
        if attempt is None or attempt.stage is not Stage.RUNNING:
            return
        attempt.trouble, attempt.changed = trouble, changed
        if attempt.proposal.two_phase:
            attempt.enter(Stage.VOTING)
        elif trouble:
            self._break(attempt, f"the others apply the change and this rank cannot: {trouble}")
        else:
            self._close(attempt, Said.APPLIED)

    def undone(self, trouble: str = "") -> None:
        """The old values are back; `trouble` if they are not."""
        attempt = self._busy()
        if attempt is None or attempt.stage is not Stage.UNDOING:
            return
        if trouble:
            attempt.trouble = trouble
            self._break(attempt, f"the change could not be undone: {trouble}")
        else:
            self._close(attempt, Said.UNDONE, attempt.trouble or attempt.why)

    # -- what the shell may ask -----------------------------------------------------------------
    @property
    def is_armed(self) -> bool:
        """Whether passing a boundary without asking this machine could make this rank differ from others."""
        return bool(self.broken or self.held or self.stopped or self._armed())

    @property
    def due_step(self) -> int | None:
        """The first step at whose place this machine must be asked, mail or not; None: none is known."""
        asked = any(attempt.stage is Stage.ASKED for attempt in self._attempts.values())
        if asked or self.held or self.stopped or self.broken:
            return 0
        return min((attempt.at_step for attempt in self._armed()), default=None)

    @property
    def between_step(self) -> int | None:
        """The first step before which the place between the steps matters; None: nowhere."""
        return min((attempt.at_step for attempt in self._armed() if attempt.is_between), default=None)

    def _armed(self) -> list[Attempt]:
        return [a for a in self._attempts.values() if Stage.ARMED <= a.stage < Stage.CLOSED]

    # -- what to do -----------------------------------------------------------------------------
    def next(self, now_ns: int) -> rank_actions.Do:
        """The next thing this rank must do at this boundary (or, after `leave`, before it goes)."""
        while not self.broken:
            if self.stopped and not self._leaving:
                return rank_actions.StopScript(self._signal)
            attempt = self._busy()
            if attempt is None:
                return rank_actions.Hold() if self.held and not self._on_its_way() else rank_actions.Pass()
            if (do := self._go_on(attempt, now_ns)) is not None:
                return do
        return rank_actions.EndWorker(self.broken)

    def _busy(self) -> Attempt | None:
        """The attempt to work on: the oldest that is due here, else one whose PREPARE is to be answered."""
        if self.broken:
            return None
        by_age = sorted(self._armed(), key=lambda attempt: attempt.proposal.attempt)
        due = next((attempt for attempt in by_age if self._is_due(attempt)), None)
        return due or next((a for a in self._attempts.values() if a.stage is Stage.ASKED), None)

    def _place(self, attempt: Attempt) -> int:
        """The step whose place for this attempt comes next. At a boundary the place between is past."""
        return self.step + (attempt.is_between and not self.between)

    def _is_due(self, attempt: Attempt) -> bool:
        if self._leaving:
            return True
        if self.held and attempt.stage < Stage.RUNNING:
            return True  # also what is for a later step, where a paused rank does not come
        not_yet = self.between and not attempt.is_between
        return attempt.at_step <= self.step - not_yet

    def _on_its_way(self) -> bool:
        """Whether the ranks have decided on something that is done at the next place and not here."""
        return any(attempt.stage >= Stage.RUNNING for attempt in self._armed())

    def _go_on(self, attempt: Attempt, now_ns: int) -> rank_actions.Do | None:
        """One move of the attempt; None when it changed its stage and must be looked at again."""
        if self._leaving:
            return self._go_away(attempt, now_ns)
        proposal, name = attempt.proposal, attempt.proposal.attempt
        match attempt.stage:
            case Stage.ASKED if now_ns < self._heard_ns + HEARD_NS:
                self._prepared(attempt)
            case Stage.ASKED:
                self._asked_ns = now_ns
                until_ns = attempt.until(now_ns, proposal.control_timeout_ns)
                return rank_actions.Look((decision_key(name),), until_ns)
            case Stage.ARMED:
                attempt.enter(Stage.WAITING)
            case Stage.WAITING:
                until_ns = attempt.until(now_ns, proposal.control_timeout_ns)
                if not self.held:  # a paused rank loses nothing by waiting
                    until_ns = self._waited_until_ns = self._waited_until_ns or until_ns
                attempt.proposing = to_propose(
                    confirmed=attempt.confirmed,
                    withdrawn=attempt.withdrawn or attempt.at_step != self._place(attempt),
                    superseded=name != max(self._attempts),
                    timed_out=now_ns >= until_ns,
                )
                if not attempt.proposing:
                    return rank_actions.Wait(until_ns, () if self.world == 1 else (decision_key(name),))
                attempt.enter(Stage.DECIDING)
            case Stage.DECIDING:
                return self._ask(attempt, attempt.store_key, attempt.proposing, now_ns)
            case Stage.RUNNING if attempt.is_between and not self.between:
                self.ran(NEVER_BETWEEN)  # decided while paused, and the script went past the place
            case Stage.RUNNING:
                attempt.has_run = True
                return rank_actions.Run(proposal)
            case Stage.VOTING:
                return self._ask(attempt, vote_key(name, self.rank), vote(attempt.trouble), now_ns)
            case Stage.COUNTING:
                until_ns = attempt.until(now_ns, proposal.vote_timeout_ns)
                timed_out = now_ns >= until_ns
                attempt.proposing, attempt.why = to_settle(attempt.votes, self.world, timed_out=timed_out)
                if not attempt.proposing:
                    votes = (vote_key(name, rank) for rank in range(self.world))
                    return rank_actions.Wait(until_ns, (settlement_key(name), *votes))
                attempt.enter(Stage.SETTLING)
            case Stage.SETTLING:
                return self._ask(attempt, attempt.store_key, attempt.proposing, now_ns)
            case Stage.UNDOING:
                return rank_actions.Undo(proposal)
            case _:
                raise AssertionError(f"nothing is to be done for an attempt that is {attempt.stage.name}")
        return None

    def _go_away(self, attempt: Attempt, now_ns: int) -> rank_actions.Do | None:
        """Leave without being waited for: a later rank finds ABORT, unless it is decided already."""
        if self.world == 1:
            self._close(attempt, Said.LEFT, "the script ended")
            return None
        if attempt.stage is not Stage.DECIDING:
            attempt.proposing = ABORT
            attempt.enter(Stage.DECIDING)
        return self._ask(attempt, attempt.store_key, attempt.proposing, now_ns)

    def _ask(self, attempt: Attempt, key: str, value: str, now_ns: int) -> rank_actions.Do | None:
        """Propose a value in the store. A world of one has no store and needs no agreement."""
        until_ns, self._asked_ns = attempt.until(now_ns, STORE_TIMEOUT_NS), now_ns
        if self.world > 1:
            return rank_actions.CompareSet(key, value, until_ns)
        self.store_said(key, value)
        return None

    # -- what follows ---------------------------------------------------------------------------
    def _prepared(self, attempt: Attempt) -> None:
        attempt.enter(Stage.PREPARED)
        if attempt.at_step:  # the proposal already named the step
            self._arm(attempt)
        else:
            self._answer(attempt, Said.PREPARED)

    def _arm(self, attempt: Attempt) -> None:
        alone = self.world == 1 or self.held
        if late := attempt.too_late(self._place(attempt), self.offset or 0, alone):
            self._close(attempt, Said.TOO_LATE, late)
        else:
            attempt.enter(Stage.ARMED)
            self._answer(attempt, Said.ARMED)

    def _decided(self, attempt: Attempt, value: str) -> None:
        if self._leaving:
            self._close(attempt, Said.LEFT, "the script ended")
        elif value == ABORT:
            late = "not every rank learned in time that all were ready"
            self._close(attempt, Said.NOT_APPLIED, "it was withdrawn" if attempt.withdrawn else late)
        elif value != COMMIT:
            self._break(attempt, f"the job's store holds {value!r} instead of a decision")
        elif attempt.at_step < self._place(attempt):
            self._break(attempt, f"the others applied it at step {attempt.at_step}, which is past here")
        elif attempt.proposal.kind in (Kind.PAUSE, Kind.RESUME, Kind.STOP):
            self.held, self.stopped = (attempt.proposal.kind is kind for kind in (Kind.PAUSE, Kind.STOP))
            self._signal = str(attempt.proposal.values.get("signal", ""))
            self._close(attempt, Said.APPLIED)
        else:
            attempt.enter(Stage.RUNNING)

    def _settled(self, attempt: Attempt, value: str) -> None:
        if value == KEEP and not attempt.trouble:
            self._close(attempt, Said.APPLIED)
        elif value == UNDO and not attempt.has_run:
            self._close(attempt, Said.UNDONE, attempt.trouble or attempt.why)
        elif value == UNDO:
            attempt.enter(Stage.UNDOING)
        else:
            self._break(attempt, f"the job's store holds {value!r}, which does not fit what this rank did")

    def _break(self, attempt: Attempt, why: str) -> None:
        self._close(attempt, Said.BROKEN, why)
        self.broken = why

    def _close(self, attempt: Attempt, said: Said, why: str = "") -> None:
        attempt.enter(Stage.CLOSED)
        self._answer(attempt, said, why)

    def _answer(self, attempt: Attempt, said: Said, why: str = "") -> None:
        name = attempt.proposal.attempt
        self.answers[name] = Answer(
            attempt=name,
            rank=self.rank,
            said=said,
            step=self._place(attempt),
            held=self.held,
            step_ns=self.step_ns,
            anchor=self.anchor,
            why=why[-WHY_CHARS:],
            raised=bool(attempt.trouble) and said in (Said.UNDONE, Said.BROKEN),
            changed=attempt.changed if said is Said.APPLIED else (),
            offset=self.offset,
        )

    # -- memory ---------------------------------------------------------------------------------
    def _concerns_us(self, name: AttemptId) -> bool:
        if name.generation != self.generation:
            return False
        return name in self._attempts or name > self._newest_forgotten

    def _forget_old(self) -> None:
        """Keep the newest few; one that is armed and undecided is kept however old it is."""
        for name in sorted(self._attempts)[:-ATTEMPTS_KEPT]:
            if self._attempts[name].stage in (Stage.NEW, Stage.ASKED, Stage.PREPARED, Stage.CLOSED):
                del self._attempts[name]
                self.answers.pop(name, None)
                self._newest_forgotten = max(self._newest_forgotten, name)
