"""Going back to an earlier state while the training runs, in two phases.

    prepared = ckpt.prepare_roll_back("step-200.g1")    loads and compares everything, changes nothing
    prepared.apply()                                    copies it in
    prepared.keep()  or  prepared.undo()                all ranks could, or some rank could not

Owns that sequence on one rank. Rank 0 chooses for all and registers a new branch of the generation, which is
nothing until `keep` records what it resumed from; so whatever fails before leaves the line of descent as it
was. Ranks meet through the store of their process group, for a bounded time, and in no collective: a rank
that never comes makes the others fail, not hang. Votes are the caller's affair; `together` is for those who
have no better way.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchloom.checkpoint import reporting
from torchloom.checkpoint.group import Board, SaveGroup
from torchloom.checkpoint.memory.slots import KeptState, MemoryTier, held_by_all
from torchloom.checkpoint.restoring.choosing import pick
from torchloom.checkpoint.restoring.loading import from_memory, from_store
from torchloom.checkpoint.state.filling import Filling, Images
from torchloom.checkpoint.state.image import Reading, plan
from torchloom.checkpoint.state.region import anonymous
from torchloom.checkpoint.state.training_parts import State
from torchloom.checkpoint.store.generations import claim_branch, settle
from torchloom.checkpoint.store.names import Branch, CheckpointName, parse_name
from torchloom.checkpoint.store.reader import look
from torchloom.checkpoint.store.runs import begin_run
from torchloom.checkpoint.store.storage import Storage
from torchloom.errors import CheckpointError, CheckpointMissing, LoomError, UsageError

UNREADABLE = "what another rank wrote into the job's store cannot be read"
RANKS_WITHIN_S = 60.0
"""How long ranks wait for each other at the boundary where they all are."""


@dataclass(frozen=True)
class Site:
    """Where a rollback happens."""

    state: State
    storage: Storage
    job: str
    generation: int
    group: SaveGroup
    board: Board | None
    tier: MemoryTier | None
    run: str = ""


@dataclass(frozen=True)
class Goal:
    """What rank 0 chose for all."""

    name: CheckpointName
    branch: Branch
    """What is trained from there on."""
    in_memory: bool
    save: str = ""
    """Which save of that step, if it is in memory."""

    @property
    def kept(self) -> KeptState:
        return KeptState(self.name, self.save)


class Prepared:
    """A state that is loaded and compared, and the present one, kept for `undo`."""

    def __init__(
        self, site: Site, goal: Goal, wanted: Filling, present: Filling, kept: Callable[[Prepared], None]
    ) -> None:
        """`kept` is called when training resumes from there."""
        self._site, self._wanted, self._present, self._kept = site, wanted, present, kept
        self._applied = False
        self.goal = goal
        version = wanted.about.get("config_version", 0)
        self.config_version = version if isinstance(version, int) else 0
        """Of the job's config, when that state was saved."""

    @property
    def name(self) -> str:
        return str(self.goal.name)

    @property
    def step(self) -> int:
        return self.goal.name.step

    @property
    def where(self) -> str:
        return "memory" if self.goal.in_memory else "the store"

    @property
    def differs(self) -> tuple[str, ...]:
        """Where objects of the script hold something else than was saved (readback.py)."""
        return tuple(self._wanted.differs)

    def apply(self) -> None:
        """Copy it in. If this raises, `undo` brings back what was there."""
        self._applied = True
        self._wanted.run()

    def undo(self) -> None:
        """As if nothing had been. Harmless if nothing was applied."""
        if self._applied:
            self._applied = False
            self._present.run()

    def keep(self) -> None:
        """All ranks have applied it: from now on the training descends from that state."""
        assert self._applied, "nothing was applied"
        site = self._site
        if site.tier is not None:
            site.tier.line.choose(self.goal.branch, self.goal.name)
        if site.group.rank == 0:
            try:
                settle(site.storage, site.job, self.goal.branch, self.goal.name)
            except CheckpointError as error:  # the next save makes up for it (commit.py)
                reporting.say(f"the rollback to {self.name} could not be recorded yet: {error}")
        self._kept(self)
        if site.group.rank == 0:
            reporting.say(f"rolled back to the end of step {self.step}, from {self.where} ({self.name})")


def together(group: SaveGroup, prepare: Callable[[], Prepared]) -> Prepared:
    """Roll back on all ranks or on none, agreeing by collective operations. Raises CheckpointError."""
    prepared, problem = None, ""
    try:
        prepared = prepare()
    except LoomError as error:
        problem = str(error)
    try:
        if not any(group.gather(problem)) and prepared is not None:
            prepared.apply()
    except LoomError as error:
        problem = str(error)
    problems = [text for text in group.gather(problem) if text]
    if problems or prepared is None:
        if prepared is not None:
            prepared.undo()
        raise CheckpointError(f"the training was not rolled back: {problems[0]}")
    prepared.keep()
    return prepared


def prepare(site: Site, which: int | str, key: str, kept: Callable[[Prepared], None]) -> Prepared:
    """Load a state on this rank. Raises LoomError, with nothing changed."""
    if site.group.world > 1 and site.board is None:
        raise UsageError("a rollback needs a process group, because ranks must agree on it")
    try:
        present = _present(site.state)
        goal = _agree(site, which, key)
        wanted = Filling(site.state, _load(site, goal))
        wanted.plan()
    except OSError as error:
        raise CheckpointError(f"there is no memory to roll back with ({error.strerror})") from error
    return Prepared(site, goal, wanted, present, kept)


def _present(state: State) -> Filling:
    image = plan(state.snapshot())
    region = anonymous(image.size)
    image.copy_into(region)
    reading = Reading(region, image.size)
    return Filling(state, Images(reading, None, same_world=True, everyone=lambda: iter(())))


def _agree(site: Site, which: int | str, key: str) -> Goal:
    """Rank 0's choice. Every rank reports what it has in memory, because only what all ranks have counts."""
    offered = list(site.tier.offers()) if site.tier is not None else []
    if site.board is None:
        return _choose(site, which, [offered])
    ranks = [f"rollback/{key}/offer/{rank}" for rank in range(site.group.world)]
    answer = f"rollback/{key}/goal"
    site.board.post(ranks[site.group.rank], json.dumps([(str(name), save) for name, save in offered]))
    if site.group.rank != 0:
        return _read_goal(site.board.read_within([answer], 2 * RANKS_WITHIN_S)[0])
    try:
        offers = [_read_offers(text) for text in site.board.read_within(ranks, RANKS_WITHIN_S)]
        goal = _choose(site, which, offers)
    except CheckpointError as error:
        site.board.post(answer, json.dumps({"problem": str(error)}))
        raise
    told = {"name": str(goal.name), "branch": goal.branch.number, "in_memory": goal.in_memory}
    site.board.post(answer, json.dumps(told | {"generation": goal.branch.generation, "save": goal.save}))
    return goal


def _read_offers(text: str) -> list[KeptState]:
    offers = []
    for offer in _read_list(_read_json(text)):
        name, save = _read_list(offer, 2)
        parsed = parse_name(name) if isinstance(name, str) else None
        if parsed is None or not isinstance(save, str):
            raise CheckpointError(UNREADABLE)
        offers.append(KeptState(parsed, save))
    return offers


def _read_goal(text: str) -> Goal:
    told = _read_json(text)
    if not isinstance(told, dict):
        raise CheckpointError(UNREADABLE)
    if "problem" in told:
        raise CheckpointError(str(told["problem"]))
    name = parse_name(str(told.get("name")))
    generation, branch, save = told.get("generation"), told.get("branch"), told.get("save")
    if name is None or not isinstance(generation, int) or not isinstance(branch, int):
        raise CheckpointError(UNREADABLE)
    if not isinstance(save, str):
        raise CheckpointError(UNREADABLE)
    return Goal(name, Branch(generation, branch), told.get("in_memory") is True, save)


def _read_list(found: Any, length: int | None = None) -> list[Any]:
    if not isinstance(found, list) or (length is not None and len(found) != length):
        raise CheckpointError(UNREADABLE)
    return found


def _read_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(UNREADABLE) from error


def _choose(site: Site, which: int | str, offers: list[list[KeptState]]) -> Goal:
    common = held_by_all(offers)
    choice = pick(look(site.storage, site.job), site.generation, common.keys(), which)
    if choice.name is None:
        raise CheckpointMissing("; ".join(why for _, why in choice.rejected))
    if site.run:
        begin_run(site.storage, site.job, site.run, site.generation)
    branch = claim_branch(site.storage, site.job, site.generation)
    if choice.manifest is not None:
        return Goal(choice.name, branch, in_memory=False)
    return Goal(choice.name, branch, in_memory=True, save=common[choice.name].save)


def _load(site: Site, goal: Goal) -> Images:
    if goal.in_memory:
        assert site.tier is not None
        return from_memory(site.tier.offers().get(goal.kept))
    manifest = look(site.storage, site.job).judge(goal.name)
    return from_store(site.storage, manifest, site.group.rank, site.group.world)
