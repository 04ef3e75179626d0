"""What a job's owner wants done about findings, by kind and by confidence. A record, no behaviour."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Action = Literal[
    "ignore",
    "report",
    "pause",
    "rebalance",
    "leave-out",
    "restart",
    "restart-replica",
    "rollback",
    "evict",
    "promote",
    "drain",
]
"""`ignore`: no incident. `report`: an incident and nothing else. `pause`: hold all ranks at the next step
until a person resumes them. `rebalance`: the rank to blame takes fewer samples of each step, the others more;
the samples of a step and their weights stay what they were. `leave-out`: the other replicas of the torchft
job train without this one; it is tried again from time to time and taken back when it is as fast as they are.
`restart`: end the generation and begin the next
one at the newest checkpoint. `restart-replica`: only the replica of the rank to blame; where replicas share a
process group, as they do in every job today, that is a `restart`, and the decision says so. `rollback`: go
back, without a restart, to the newest checkpoint from before it, and leave out the batches to blame. `evict`:
leave the node of the rank to blame, with fewer workers if the job may shrink. `promote`: the same, to a
standby place. `drain`: as `evict`, and no job is placed on that node until a person says so."""

Level = Literal["certain", "lasting", "likely", "suspected"]
"""`certain`: nothing benign looks like this. `lasting`: not certain, but longer than the limit for acting.
`likely`: a confidence of at least 0.8. `suspected`: anything else."""


class Policy(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Rules that a job's owner set; what they do not name follows the defaults of core/policy/rules.py."""

    dry_run: bool = False
    """Only record the action that would have been taken."""
    restarts_per_hour: int = 6
    """Restarts and moves because of findings; those after a crash have the job's own budget only."""
    rollbacks_per_hour: int = 2
    pauses_per_hour: int = 12
    rebalances_per_hour: int = 6
    leave_outs_per_hour: int = 6
    """Replicas that begin to be left out; trials do not count."""
    take_back_s: float = 60.0
    """After how long a replica that is left out is tried again; twice as long after each failed trial."""
    cooldown_s: float = 30.0
    """Least time between two actions, pauses aside."""
    skip_batches: int = 3
    """Global batches that a rollback leaves out at least, the one at hand and those before it; 0: none."""
    self_fence_s: float | None = None
    """A host that has lost the control plane for this long kills this job's workers, so that they may be
    replaced elsewhere without a person's word. None: never."""
    restart_cost_s: float | None = None
    """What ending a generation costs besides the work since the last checkpoint; None: as seen in this job,
    30 s before there was one."""
    probe_links: bool = True
    """Measure the links between the ranks at a step when transfers have become slow."""
    probe_every_s: float = 600.0
    """At most once within this time."""
    rules: dict[str, dict[str, Action]] = {}
    """Kind of finding → level → action."""


class Acting(Struct, kw_only=True):
    """What a policy has decided to do once the job is saved; kept by core.policy.actions."""

    incident: str
    action: Action
    reason: str
    node: str
    """The node to leave, if the job moves."""
    generation: int
    steps: int
    step_s: float
    """Where the job is, and how long a step takes."""
    operation: str
    """The checkpoint that was asked for."""
    until_ns: int
    """Then it is done without."""


class Balance(Struct, kw_only=True):
    """Ranks that take fewer samples, because they are slower than others; kept by core.policy.rebalance."""

    incident: str
    generation: int
    world: int
    weights: dict[int, float]
    """By rank, what it takes of what another rank takes, as far as that is in force."""
    asked: dict[int, float] = {}
    """The same as it was asked for last."""
    nodes: dict[int, str]
    """Where they are: in another place a rank may be as fast as the others."""
    operation: str
    """The change of `shares` that is in force, or was asked for last."""
    before_s: float
    """How long a step took with even shares."""
    since_step: int = 0
    """The first step of the generation with these shares; 0: not in force yet."""
    changes: int = 1
    """How often the shares were corrected, the first time included."""
    measured: str = ""
    """The change after which the ranks' times were last measured."""
    back: str = ""
    """Why even shares were asked for; empty: they were not."""


class LeftOutReplica(Struct, kw_only=True):
    """A replica that the others train without, because it is slower; kept by core.policy.leave_out."""

    incident: str
    state: Literal["leaving", "out", "returning", "trial"] = "leaving"
    """`leaving` and `returning`: the lighthouse has been asked. `trial`: it takes part and is measured."""
    replicas: int
    """In the quorum, with it."""
    before_s: float
    """A step with it."""
    after_s: float = 0.0
    """A step of the others without it; 0: not measured yet."""
    quorum: int
    """The newest quorum in which it was found slow."""
    since_ns: int
    wait_s: float = 0.0
    """After how long it is tried again."""
    trials: int = 0
    back: str = ""
    """Why it is taken back for good; empty: it is tried."""

    @property
    def gain(self) -> float:
        """Samples a second without it against with it, if every replica has samples of its own."""
        return (self.replicas - 1) / self.replicas * self.before_s / self.after_s if self.after_s else 0.0
