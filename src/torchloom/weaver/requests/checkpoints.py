"""Asks agents about checkpoints on behalf of the API, and checks before a restore whether it can succeed.

Owns the choice of the agent to ask and of the variables that go with the question. Decides nothing: whether
a job goes back to an earlier state is the core's affair once a person has asked for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from torchloom.bus.protocol import Bus
from torchloom.errors import Conflict, LoomError, NotFound, StorageFailed, TimedOut, UsageError
from torchloom.model.checkpoints import CheckpointEntry
from torchloom.model.fleet import Fleet, Job, NodeState
from torchloom.model.messages import AskCheckpoints, CheckpointAnswer, CheckpointVerb
from torchloom.weaver.environments import Environments
from torchloom.wire import codec, subjects
from torchloom.wire.object_store import PREFIXES

LIST_WITHIN_S = 15.0
VERIFY_WITHIN_S = 600.0
PURGE_WITHIN_S = 300.0
_WITHIN_S: dict[CheckpointVerb, float] = {
    "verify": VERIFY_WITHIN_S,
    "purge": PURGE_WITHIN_S,
    "damage": PURGE_WITHIN_S,
}
LOOK_WITHIN_S = 10.0
"""How long a request to restore waits for a verification; the restore itself verifies in any case."""
_MOST_NAMED = 12


class Catalogues:
    """The catalogues of all jobs, wherever their stores are."""

    def __init__(self, bus: Bus, environments: Environments) -> None:
        self._bus = bus
        self._environments = environments

    async def ask(
        self, fleet: Fleet, job: Job, verb: CheckpointVerb, which: str = "", within_s: float | None = None
    ) -> CheckpointAnswer:
        """The agent's answer. Raises NotFound, Conflict, UsageError, StorageFailed or TimedOut."""
        known = job.checkpoints
        if known is None:
            raise NotFound(
                f"Job {job.id} has reported no checkpoints",
                hint="they come from loom.Checkpoint in its script",
            )
        env: dict[str, str] = {}
        if "://" in known.place.uri:
            env = _openers(await self._environments.get(job))
        question = AskCheckpoints(job=job.id, place=known.place, verb=verb, which=which, env=env)
        if within_s is None:
            within_s = _WITHIN_S.get(verb, LIST_WITHIN_S)
        subject = subjects.query(_node(fleet, job))
        answer = codec.decode_checkpoint_answer(
            await self._bus.request(subject, codec.encode(question), timeout_s=within_s)
        )
        match answer.problem:
            case "":
                return answer
            case "missing":
                raise NotFound(answer.why, hint=f"see `loom checkpoints {job.id}`")
            case "in-use":
                raise Conflict(answer.why)
            case "usage":
                raise UsageError(answer.why)
            case "failed":
                raise StorageFailed(answer.why)

    async def purge(self, fleet: Fleet, job: Job) -> None:
        """Remove all checkpoints of an ended job from the store its workers reported; without a report, none.

        Raises Conflict while another job works with the same ones.
        """
        known = job.checkpoints
        if known is None:
            return
        for other in fleet.jobs.values():
            same = other.checkpoints is not None and other.checkpoints.place == known.place
            if same and other.id != job.id and not other.ended:
                raise Conflict(f"The checkpoints of {job.id} are in use: {other.id} saves at the same place.")
        await self.ask(fleet, job, "purge")

    async def before(self, fleet: Fleet, job: Job, step: int) -> tuple[CheckpointEntry | None, str]:
        """The newest state that a restart could use from before a training step, pinned; or why there is
        none."""
        try:
            entries = (await self.ask(fleet, job, "list", within_s=LOOK_WITHIN_S)).entries
        except LoomError as error:
            return None, error.message
        early = [e for e in entries if e.whole and e.resumable and e.step < step]
        found = max(early, key=lambda e: (e.step, e.generation), default=None)
        if found is None:
            return None, f"there is no checkpoint from before step {step}"
        if not found.pinned:
            with contextlib.suppress(LoomError):
                await self.ask(fleet, job, "pin", found.name, LOOK_WITHIN_S)
        return found, ""

    async def find(
        self, fleet: Fleet, job: Job, step: int
    ) -> tuple[CheckpointEntry, Sequence[CheckpointEntry]]:
        """The state of a step that could be restored, and all existing ones. Raises Conflict or NotFound."""
        entries = (await self.ask(fleet, job, "list")).entries
        found = choose(entries, step)
        if found is None:
            broken = [entry for entry in entries if entry.step == step]
            why = f"cannot be used: {broken[0].why}" if broken else "does not exist"
            raise Conflict(f"The checkpoint of step {step} of {job.id} {why}", hint=_others(entries))
        return found, entries

    async def prepare_restore(self, fleet: Fleet, job: Job, step: int) -> CheckpointEntry:
        """The state that a restore of `step` would take. Raises Conflict with the available steps.

        It is pinned, because the job may save more until it stops, and its keep rules must not remove just
        this one.
        """
        found, entries = await self.find(fleet, job, step)
        with contextlib.suppress(TimedOut):  # too large to be read now: its files are there with their sizes
            answer = await self.ask(fleet, job, "verify", found.name, LOOK_WITHIN_S)
            if answer.why:
                rest = [entry for entry in entries if entry.name != found.name]
                raise Conflict(f"{found.name} of {job.id} cannot be used: {answer.why}", hint=_others(rest))
        if not found.pinned:
            with contextlib.suppress(LoomError):  # a store that cannot be written to removes nothing either
                await self.ask(fleet, job, "pin", found.name)
        return found


def choose(entries: Sequence[CheckpointEntry], step: int) -> CheckpointEntry | None:
    """Of several states of a step that on the line a restart walks, then the newest: as workers choose."""
    whole = [entry for entry in entries if entry.step == step and entry.whole]
    return max(whole, key=lambda entry: (entry.resumable, entry.generation), default=None)


def _others(entries: Sequence[CheckpointEntry]) -> str:
    steps = sorted({entry.step for entry in entries if entry.whole}, reverse=True)
    if not steps:
        return "there is no other one"
    more = f" and {len(steps) - _MOST_NAMED} earlier ones" if len(steps) > _MOST_NAMED else ""
    return "choose one of the steps " + ", ".join(map(str, steps[:_MOST_NAMED])) + more


def _openers(env: Mapping[str, str]) -> dict[str, str]:
    """Only the variables of the job's environment that are needed."""
    return {name: value for name, value in env.items() if name.startswith(PREFIXES)}


def _node(fleet: Fleet, job: Job) -> str:
    """The node that reported the store if it is ready; for a shared store, any node that held the job."""
    assert job.checkpoints is not None
    told_by = job.checkpoints.node
    near = [told_by]
    if "://" in job.checkpoints.place.uri:
        near += [*job.places, *fleet.nodes]
    ready = [node for node in near if node in fleet.nodes and fleet.nodes[node].state is NodeState.READY]
    return ready[0] if ready else told_by
