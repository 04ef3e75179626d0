"""Incidents: what went wrong, what was decided about it, how it ended; records and their sentences.

Code that writes an incident fills in records; no code writes or parses a sentence. `Incident.verdict`,
`decision` and `resolution` put the records into words, here and nowhere else.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from msgspec import Struct, field

from torchloom.model.device_faults import Xid
from torchloom.model.findings import Finding, RankEvidence
from torchloom.model.flight import FlightWitness
from torchloom.model.links import LinkMatrix
from torchloom.model.policy import Action
from torchloom.model.windows import Collective
from torchloom.model.worker import DeviceUse, EndRecord, Exit


class ExitReport(Struct, frozen=True, kw_only=True):
    """One exit as an incident keeps it."""

    rank: int
    node: str
    exit: Exit
    at_ns: int
    steps: int
    training_step: int | None = None
    ran_s: float = 0.0
    """Since it was started, with its imports."""
    first_step_at_ns: int = 0
    """0: none was seen."""
    end: EndRecord | None = None
    activity: str = ""
    log_tail: tuple[str, ...] = ()
    devices: tuple[DeviceUse, ...] = ()
    after_stop: bool = False
    """We stopped it, so it cannot be the culprit."""
    secondary: bool = False
    collectives: tuple[Collective, ...] = ()
    """Unfinished ones, and the newest."""
    xids: tuple[Xid, ...] = ()
    """What the driver reported about its device shortly before its end."""


class Timeline(Struct, kw_only=True):
    """When each phase of a recovery was reached; 0 means not (yet). Wall-clock nanoseconds."""

    fault_ns: int = 0
    first_sign_ns: int = 0
    """When peers began to wait, or the first sign that a detector saw."""
    detected_ns: int = 0
    decided_ns: int = 0
    stopped_ns: int = 0
    spawned_ns: int = 0
    restored_ns: int = 0
    first_step_ns: int = 0


class Verdict(Struct, frozen=True, kw_only=True):
    """What went wrong, in clauses; `sentence` puts them together."""

    cause: str = ""
    exit_rank: int | None = None
    """The rank whose exit is the cause, if an exit is."""
    repeats: str = ""
    """How often it occurred, and within what time, if more than once."""
    device: str = ""
    """What is known of the health of its device, if that may be why."""
    before: str = ""
    """What was noticed before the cause."""
    then: str = ""
    """Its consequence."""
    silence: str = ""
    """An unreachable node that may be related."""
    others: str = ""
    """Who else ended."""
    hint: str = ""
    """What to do about it, if that is known."""

    @property
    def sentence(self) -> str:
        text = self.cause + (f" ({self.repeats})" if self.repeats else "")
        text += f": {self.device}" if self.device else ""
        text += f"; before that, {self.before}" if self.before else ""
        text += f"; then {self.then}" if self.then else ""
        text += f"; {self.silence}" if self.silence else ""
        text += f"; {self.others}" if self.others else ""
        return text + (f"; {self.hint}" if self.hint else "")


class DecisionOutcome(StrEnum):
    """How far a decision got."""

    REPORTED = "reported"
    """Nothing is to be done about it."""
    DRY_RUN = "dry-run"
    """The policy only records what it would have done."""
    REFUSED = "refused"
    """It was wanted and cannot be done, or must not be."""
    PENDING = "pending"
    """It will be done: at the next step, or when the job is saved."""
    DONE = "done"


Decided = Action | Literal["fail", "wait", "continue", "restore"]
"""A policy's action, or what the core does by itself: `fail`: the job ends, its restart budget is used up.
`wait`: start again when the checkpoint store answers. `continue`: training continues. `restore`: a person
wants an earlier state."""

DONE: dict[Decided, str] = {
    "pause": "paused",
    "rebalance": "rebalanced",
    "leave-out": "left out of the quorum",
    "restart": "restarted",
    "restart-replica": "restarted",
    "rollback": "rolled back",
    "evict": "moved away",
    "promote": "moved to its standby",
    "drain": "moved away, and the node drained",
}
_WHEN: dict[Decided, str] = {
    "rollback": "",
    "pause": " at the next step",
    "rebalance": " at the next step",
    "leave-out": " from the next step on",
}
_SAVED_FIRST = " as soon as it is saved"

LinkProbing = Literal["asked", "refused", "failed"]


class Decision(Struct, frozen=True, kw_only=True):
    """The action for an incident, its progress, and its reason."""

    action: Decided
    outcome: DecisionOutcome
    reason: str
    way_back: bool = False
    """Later states have the fault too; a person may go back to before it."""
    links: LinkProbing | None = None
    """The outcome of measuring the links between the ranks, if that was wanted."""
    links_reason: str = ""

    def sentence(self, job: str) -> str:
        return f"{self._main(job)}{self._back(job)}{self._probing()}"

    def _main(self, job: str) -> str:
        match self.outcome:
            case DecisionOutcome.REFUSED:
                return f"not {DONE[self.action]}: {self.reason}"
            case DecisionOutcome.DRY_RUN:
                return f"dry run, would be {DONE[self.action]}: {self.reason}"
            case DecisionOutcome.PENDING:
                text = f"to be {DONE[self.action]}{_WHEN.get(self.action, _SAVED_FIRST)}: {self.reason}"
                return f"{text}; `loom resume {job}` lets it continue" if self.action == "pause" else text
            case DecisionOutcome.DONE if self.action == "pause":
                return f"paused: {self.reason}"
            case _:
                return self.reason

    def _back(self, job: str) -> str:
        if not self.way_back:
            return ""
        return f"; to go back to before it: `loom checkpoints {job}`, `loom restore {job} --step …`"

    def _probing(self) -> str:
        match self.links:
            case "asked":
                return "; its links are probed at the next step"
            case "refused":
                return f"; its links are not probed: {self.links_reason}"
            case "failed":
                return f"; its links could not be probed: {self.links_reason}"
            case None:
                return ""


class EndedBy(StrEnum):
    ITSELF = "itself"
    ROLLBACK = "rollback"
    GENERATION = "generation"
    """Its generation ended for another reason."""
    JOB = "job"
    """Its job ended."""


class Ending(Struct, frozen=True):
    """How an incident ended without a recovery."""

    by: EndedBy
    how: str


class Incident(Struct, kw_only=True):
    """Something went wrong: what, where, why, what was done, how long it took."""

    id: str
    job: str
    generation: int
    kind: str
    judged: Verdict = Verdict()
    culprit: int | None = None
    exits: list[ExitReport] = field(default_factory=list)
    """The culprit's first, then in order of arrival."""
    more_exits: int = 0
    """Of workers that we ended, once it is over: so many more than are in `exits`."""
    decided: Decision | None = None
    timeline: Timeline = field(default_factory=Timeline)
    lost_steps: int | None = None
    """Steps of work that are repeated or lost; None when that is not known."""
    open: bool = True
    finding: Finding | None = None
    """What a detector said last, if one did."""
    times: int = 1
    """How often it occurred: one that recurs soon is the same incident."""
    evidence: tuple[RankEvidence, ...] = ()
    """By rank; of the newest incidents only."""
    ending: Ending | None = None
    ended_ns: int = 0
    goodput_before: float | None = None
    goodput_after: float | None = None
    """Of the job, when it began and when it was over."""
    node: str = ""
    """The node it is about, if it is about one."""
    links: LinkMatrix | None = None
    """The link measurement that it triggered; of the newest incidents only."""
    witness: FlightWitness | None = None
    """What torch's Flight Recorder said about a hang, if it could be asked."""

    @property
    def verdict(self) -> str:
        said = self.judged.sentence
        return f"{said}; {self.witness.clause}" if self.witness is not None else said

    @property
    def decision(self) -> str:
        return self.decided.sentence(self.job) if self.decided is not None else ""

    @property
    def resolution(self) -> str:
        return self.ending.how if self.ending is not None else ""
