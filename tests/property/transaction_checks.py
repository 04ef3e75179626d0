"""What must hold of the hostile world of transaction_world.py, by what the workers themselves did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transaction_ranks import Worker

from torchloom.model.transaction.messages import AttemptId
from torchloom.model.transaction.operation import How, Outcome
from torchloom.model.transaction.state import Round

if TYPE_CHECKING:
    from transaction_world import World


def _of_generation(world: World, generation: int) -> list[Worker]:
    return [w for w in [*world.past, *world.workers] if w.machine.generation == generation]


def check_safe(world: World) -> None:
    """For every attempt: of the ranks done with it or past its step, all apply it there or none."""
    for attempt, at_step in world.at_step.items():
        verdicts = set()
        kind = world.requested[attempt.version].kind
        for worker in _of_generation(world, attempt.generation):
            past = worker.has_passed(kind, at_step)
            if past and not (worker.step == at_step and not worker.alive):
                verdicts.add(attempt in worker.in_force)
            elif attempt in worker.resolved:
                verdicts.add(worker.resolved[attempt])
            assert worker.in_force.get(attempt, at_step) == at_step, f"{attempt} at another step"
        assert len(verdicts) < 2, f"{attempt} at step {at_step}: some ranks apply it and some do not"
    for worker in world.workers:
        versions = [attempt.version for attempt in worker.in_force]
        assert len(versions) == len(set(versions)), "one change was applied twice"
        strange = [a for a in worker.in_force if a.generation != worker.machine.generation]
        assert not strange, "a change of another generation was applied"


def check_told(world: World, outcome: Outcome) -> None:
    """What is told agrees with what the workers did, then and for ever (see check_end)."""
    workers = _of_generation(world, outcome.generation)
    version = world.carrier.get(outcome.version, outcome.version)
    applied = [w for w in workers if any(w.resolved.get(a) for a in _of(w, version))]
    if outcome.how is How.APPLIED:
        assert applied, "told as applied, and no rank did"
        wanted = world.requested[outcome.version].training_step
        assert wanted in (None, outcome.at_step + world.offset(outcome.generation)), "at another step"
        assert all(outcome.at_step in (w.in_force[a] for a in _of(w, version)) for w in applied)
    else:
        # One that died right then may have; nobody who lives, and nobody whose box says so, has.
        assert not [w for w in applied if w.alive], "told as not applied, and a rank did"


def check_end(world: World) -> None:
    missing = set(world.requested) - set(world.told)
    assert not missing, f"{missing} never came to an end: {world.weaver.reason}, {world.weaver.queue}"
    assert world.weaver.stage is Round.IDLE
    check_safe(world)
    for outcome in world.told.values():
        check_told(world, outcome)


def _of(worker: Worker, version: int) -> list[AttemptId]:
    return [attempt for attempt in worker.in_force if attempt.version == version]
