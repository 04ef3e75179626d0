"""Bodies of the routes that steer a job: its config, changes of it, and operations to follow. No behaviour.

Addresses are written as people write them: `lr`, `lr@1`, `optimizer1.lr`, `dropout`. A *training step* is the
script's own number, a *step* counts from 1 in every generation.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from torchloom.api.schemas.bodies import Strict

Address = Annotated[str, Field(min_length=1, max_length=128)]
Why = Annotated[str, Field(max_length=1000, pattern=r"^[^\x00]*$")]
TrainingStep = Annotated[int, Field(ge=1, le=2**53)]
Mode = Literal["hold", "scale"]
Choice = Literal["keep", "revert"]
OperationState = Literal["waiting", "preparing", "arming", "confirmed", "applied", "not applied", "diverged"]


class ChangeRequest(Strict):
    """New values for settings of a job: all of them, on all ranks, at one step, or none.

    A value is a number, true or false, a text, a list, an object or null, as the setting's type says; a text
    is read as on a command line, so `"1e-4"` is a number for `lr`. `{"own": true}` releases a held
    setting: the script's own value applies again.
    """

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "examples": [
                {"values": {"lr": 1e-4, "betas": [0.9, 0.95]}, "why": "the loss is flat"},
                {"values": {"lr": 0.5}, "mode": "scale", "at_step": 2000},
                {"values": {"dropout": 0.1}, "dry_run": True},
            ]
        },
    )

    values: dict[Address, Any] = Field(min_length=1, max_length=64)
    at_step: TrainingStep | None = None
    """The first training step that uses them; if it is missing, as soon as all ranks can."""
    mode: Mode = "hold"
    """`hold`: the value stays, whatever a schedule in the script does. `scale`: the script's own value times
    this, so that its schedule keeps its shape."""
    why: Why = ""
    """For the history."""
    dry_run: bool = False
    """Only say what would change."""


class RevertRequest(Strict):
    version: int | None = Field(default=None, ge=0, le=2**53)
    """Return to the settings of this version, 0 for the original ones; if missing, undo the last change."""
    why: Why = ""
    dry_run: bool = False


class ReasonRequest(Strict):
    why: Why = ""
    """For the history."""


class DifferenceView(BaseModel):
    """One place that a change sets."""

    address: str
    before: Any
    after: Any


class ChangePlanView(BaseModel):
    job: str
    operation: str
    """The operation to follow; empty after a dry run."""
    dry_run: bool
    differences: list[DifferenceView]
    """Every place that is set, with its present value. The ranks report the exact old values when it ends."""
    at_step: int | None
    notes: list[str]
    """Warnings for the person who asked."""


class OperationAccepted(BaseModel):
    job: str
    operation: str


class OperationView(BaseModel):
    """One requested change and its outcome. Every operation ends with a recorded outcome."""

    id: str
    job: str
    number: int
    """Counts all operations of the job."""
    version: int
    """The version of the settings that it made; 0: none (yet)."""
    kind: Literal["set", "pause", "resume", "stop", "checkpoint", "restore", "probe"]
    state: OperationState
    ended: bool
    reason: str
    """Its progress, or how it ended, in a sentence."""
    values: dict[str, Any]
    by: str
    why: str
    asked_at_ns: int
    ended_at_ns: int
    generation: int
    at_step: int | None
    """The first step of that generation which uses it."""
    training_step: int | None
    """The same in the script's own count, if that is known."""
    attempts: int
    changed: list[DifferenceView]
    """Values before and after, as the ranks reported them; where they differ, those of the lowest rank."""
    differing: dict[str, list[DifferenceView]]
    """By rank, only where a rank reported other values."""
    trouble: dict[str, str]
    """By rank why it failed, undid the change or left."""
    raised: list[int]
    """Ranks whose own code failed: their `trouble` is a traceback. The others repeat what a rank reported."""
    unheard: list[int]
    """Ranks that have not reported. They do the same as the others; only their report is missing."""
    reverts: int | None
    """The version that this went back to."""
    saved: str
    """Of a requested checkpoint: its name, once it is complete in the store. It is written while training
    continues, after all ranks have taken it (`applied`)."""
    unsaved: str
    """Why the checkpoint will not be saved, if known."""


class PlaceView(BaseModel):
    """One place of a setting, such as a param group of an optimizer."""

    address: str
    value: Any
    mode: Mode | None
    """How a change controls a param group; null: the script's own value is in force."""
    own: Any
    """The value that the script itself would use, where a change controls it."""
    version: int | None
    """The change that set it last; null: none did."""


class SettingView(BaseModel):
    """A setting as it is declared, and its value in every place it has."""

    name: str
    type: str
    allowed: str
    """The allowed values, in words."""
    optional: bool
    """Null is a value of it."""
    minimum: float | None
    maximum: float | None
    below: float | None
    """As maximum, but itself not allowed."""
    choices: list[str]
    count: int
    """How many numbers, if it takes a fixed count of them."""
    description: str
    places: list[PlaceView]


class EntryView(BaseModel):
    """A version of the config."""

    version: int
    step: int
    """The first training step that uses it."""
    values: dict[str, Any]
    before: dict[str, Any]
    """The value of every place before that."""
    by: str
    why: str
    at_ns: int
    in_force: bool
    """False: it is scheduled for a later step."""
    superseded_by: int | None
    """The newer version because of which it has no effect; null: none."""


class ConfigView(BaseModel):
    job: str
    version: int
    """Version in force now; 0: nothing was ever changed."""
    paused: bool
    known: bool
    """Whether the workers have reported their settings yet."""
    optimizers: list[str]
    """Names of the optimizers' classes: `optimizer1.lr` is the learning rate of the second."""
    settings: list[SettingView]
    schedule: list[EntryView]
    """By step: also what is still to come, and what comes again after a restart from an earlier state."""
    operations: list[OperationView]
    """Operations in progress."""


class HistoryView(BaseModel):
    """A requested change of the config: who, when, why, and its outcome."""

    version: int
    """Counts the changes that took effect, from 1; 0: it was not applied (yet)."""
    operation: str
    """Empty when the operation is too old to be kept."""
    state: OperationState
    reason: str
    step: int | None
    """The first training step that used it."""
    values: dict[str, Any]
    changed: list[DifferenceView]
    by: str
    why: str
    at_ns: int
    reverts: int | None
    in_force: bool
    """Whether it is part of the schedule; one that was rolled back is not."""
    superseded_by: int | None
    """The newer version, for the same step or an earlier one, because of which it has no effect any more;
    null: none."""
