"""The kinds of findings, in one table: what each means and what follows from it everywhere else.

A new kind is a word in `FindingKind` and a row in `TRAITS`; policy, reporting and detection read the row.
"""

from __future__ import annotations

from typing import Literal, cast

from msgspec import Struct

from torchloom.model.policy import Action

FindingKind = Literal[
    "crash",
    "node-lost",
    "hang",
    "communication-hang",
    "desync",
    "ordering-deadlock",
    "no-progress",
    "compute-slow",
    "data-slow",
    "host-contention",
    "communication-slow",
    "link-slow",
    "sender-slow",
    "receiver-slow",
    "data-imbalance",
    "global-slowdown",
    "replica-slow",
    "not-a-number",
    "spike",
    "divergence",
    "collective-failed",
]


class Traits(Struct, frozen=True, kw_only=True):
    """What is true of every finding of one kind."""

    meaning: str
    from_events: bool = False
    """The reducer knows it from events of the stream; a policy has no say in it."""
    stuck: bool = False
    """The job makes no step. A job is stuck in one way at a time, so all these kinds are one fault."""
    numeric: bool = False
    """The values are wrong, not the speed: reported at once, and going back may help."""
    link: bool = False
    """Transfers between ranks are slow. All these kinds are one fault; the delay matrix says whose."""
    needs_probe: bool = False
    """Only pairwise probes of the links can show which rank is to blame."""
    whole_job: bool = False
    """Seen against what was usual before, and not against other ranks."""
    blames_nobody: bool = False
    """No rank and no node is to blame, so ending the generation changes nothing."""
    by_replica: bool = False
    """A replica of a torchft job is to blame, as a whole: the others can train without it."""
    blames_batches: bool = False
    """A rollback leaves out the batches that may have done it."""
    may_move: bool = True
    """Another node may help."""
    by_sample: bool = False
    """A rank that takes fewer samples makes up for it."""
    momentary: bool = False
    """Over as soon as it is reported."""
    event: bool = False
    """It happened, and does not last: reported when it is found."""
    in_later_states: bool = False
    """Every state that is saved after it has it too."""
    default: Action = "report"
    """What is done without a rule of the job's policy, once a finding may be acted on."""


TRAITS: dict[FindingKind, Traits] = {
    "crash": Traits(meaning="a worker's process ended with a failure", from_events=True),
    "node-lost": Traits(meaning="a node with workers is not reachable", from_events=True),
    "hang": Traits(
        meaning="peers wait for a rank that is not in a collective", stuck=True, default="restart"
    ),
    "communication-hang": Traits(
        meaning="all ranks entered a collective and none has left it", stuck=True, default="restart"
    ),
    "desync": Traits(meaning="ranks called different collectives", stuck=True, default="restart"),
    "ordering-deadlock": Traits(
        meaning="ranks wait for each other in a circle", stuck=True, default="restart"
    ),
    "no-progress": Traits(meaning="a rank makes no first step", stuck=True, default="restart"),
    "compute-slow": Traits(
        meaning="a rank's computation takes longer than that of its peers", by_sample=True
    ),
    "data-slow": Traits(meaning="a rank waits longer for data than its peers"),
    "host-contention": Traits(meaning="a rank's host gives it too little CPU", by_sample=True),
    "communication-slow": Traits(
        meaning="transfers take longer than before", link=True, needs_probe=True, whole_job=True
    ),
    "link-slow": Traits(meaning="one link between two ranks is slow", link=True),
    "sender-slow": Traits(meaning="a rank is slow to send to everybody", link=True),
    "receiver-slow": Traits(meaning="a rank is slow to receive from everybody", link=True),
    "data-imbalance": Traits(meaning="ranks get different amounts of work", blames_nobody=True),
    "global-slowdown": Traits(meaning="all ranks are slower than before", whole_job=True, blames_nobody=True),
    "replica-slow": Traits(meaning="the other replicas of a torchft job wait for this one", by_replica=True),
    "not-a-number": Traits(
        meaning="values are NaN or infinite",
        numeric=True,
        blames_batches=True,
        may_move=False,
        in_later_states=True,
    ),
    "spike": Traits(
        meaning="one value is far off its curve",
        numeric=True,
        blames_batches=True,
        may_move=False,
        momentary=True,
    ),
    "divergence": Traits(meaning="replicas that should be equal are not", numeric=True, in_later_states=True),
    "collective-failed": Traits(
        meaning="a collective ended with an error, and the job continues",
        event=True,
        momentary=True,
        blames_nobody=True,
        may_move=False,
    ),
}


def traits(kind: str) -> Traits:
    return TRAITS[cast(FindingKind, kind)]
