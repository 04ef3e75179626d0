"""Several generations of one job against a hostile store: what a reader finds is always whole and in line.

Writers are frozen (get no turn), go on, are killed; requests are refused, lost, late, doubled, torn; files
rot. After every single request an independent reader looks.
"""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass, field

import pytest
from hostile_store import FATES, Program, Server
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchloom.checkpoint.store.catalogue import sweep
from torchloom.checkpoint.store.commit import PartWriter, Target, commit, gather
from torchloom.checkpoint.store.generations import begin, claim_branch, read_generations, settle
from torchloom.checkpoint.store.manifest import Facts, Manifest
from torchloom.checkpoint.store.names import Branch, CheckpointName
from torchloom.checkpoint.store.reader import find
from torchloom.checkpoint.store.runs import begin_run, number_in_store
from torchloom.checkpoint.store.storage import Storage
from torchloom.checkpoint.store.verify import load
from torchloom.errors import CheckpointDamaged, CheckpointError, CheckpointFenced, StorageFailed

JOB = "job"
WORLD = 2
SAVES = 6
EXAMPLES = int(os.environ.get("LOOM_TEST_EXAMPLES", "150"))
Path = list[CheckpointName]
"""The states that led to a state, itself last: what training passed through, saved or not."""


def load_newest(storage: Storage, generation: int | None) -> tuple[Manifest, Path] | None:
    """As a job does: search, load every file, and search on if one is damaged."""
    skip: set[str] = set()
    while (manifest := find(storage, JOB, generation, skip=skip).found) is not None:
        try:
            files = [(entry.rank, json.loads(load(storage, manifest, entry))) for entry in manifest.files]
        except CheckpointDamaged:
            skip.add(str(manifest.name))
            continue
        assert sorted(rank for rank, _ in files) == list(range(WORLD))
        assert all(content["rank"] == rank for rank, content in files), "files of two ranks were mixed"
        paths = [[CheckpointName(*name) for name in content["path"]] for _, content in files]
        assert all(path == paths[0] and path[-1] == manifest.name for path in paths), "files of two states"
        return manifest, paths[0]
    return None


@dataclass
class World:
    server: Server = field(default_factory=Server)
    programs: list[Program] = field(default_factory=list)
    generations: int = 0
    saves: dict[int, int] = field(default_factory=dict)
    """Generation → how often it tries to save; else SAVES."""
    starts: dict[Branch, Path] = field(default_factory=dict)
    """Branch → what led to the state it resumed from."""
    acknowledged: set[CheckpointName] = field(default_factory=set)
    """Saves that succeeded while no newer generation had begun."""
    rotten: set[str] = field(default_factory=set)
    unchangeable: dict[str, bytes] = field(default_factory=dict)

    def start_writer(self) -> None:
        generation = self.generations
        self.generations += 1
        rolls = generation % 2 == 0
        self.programs.append(Program(self.server, lambda storage: self.train(storage, generation, rolls)))

    def start_sweeper(self) -> None:
        def body(storage: Storage) -> None:
            try:
                sweep(storage, JOB, now_s=1e9, grace_s=0.0)
            except StorageFailed:
                pass

        self.programs.append(Program(self.server, body))

    def begin(self, storage: Storage, generation: int) -> None:
        begin(storage, JOB, generation)

    def target(self, name: CheckpointName, attempt: int) -> Target:
        return Target(JOB, name, WORLD, attempt)

    def train(self, storage: Storage, generation: int, rolls: bool = False) -> None:
        """One life of the job, as `loom.Checkpoint` leads it; with `rolls`, rolled back live on the way."""
        try:
            self.begin(storage, generation)
            found = load_newest(storage, generation)
            path = found[1] if found else []
            self.starts[Branch(generation)] = list(path)
            settle(storage, JOB, generation, path[-1] if path else None)
        except CheckpointError:
            return  # the job is restarted as the next generation
        parent = str(path[-1]) if path else ""
        again, branch = False, 0
        for attempt in range(self.saves.get(generation, SAVES)):
            if rolls and attempt in (3, 4):
                try:
                    branch, path = self.roll_back(storage, generation, branch, path)
                except CheckpointFenced:
                    return
                parent, again = str(path[-1]) if path else "", False
            if not again:
                path = [*path, CheckpointName(generation, (path[-1].step if path else 0) + 10, branch)]
            again = False
            try:
                parent = self.save(storage, path, parent, attempt)
            except CheckpointFenced:
                return
            except CheckpointError:
                again = attempt % 2 == 0  # either try the same step once more, or train on

    def roll_back(self, storage: Storage, generation: int, branch: int, path: Path) -> tuple[int, Path]:
        """(branch, path) after a live rollback to a state that could be loaded, if there was one."""
        for length in range(len(path) - 1, 0, -1):
            try:
                found = find(storage, JOB, step=path[length - 1].step).found
                if found is None or found.name != path[length - 1]:
                    continue
                for entry in found.files:
                    load(storage, found, entry)
                begun = claim_branch(storage, JOB, generation)
            except CheckpointFenced:
                raise
            except CheckpointError:
                continue
            self.starts[begun] = path[:length]
            try:
                settle(storage, JOB, begun, found.name)
            except CheckpointError:
                pass  # the next save makes up for it
            return begun.number, path[:length]
        return branch, path

    def save(self, storage: Storage, path: Path, parent: str, attempt: int) -> str:
        target = self.target(path[-1], attempt)
        for rank in range(WORLD):
            writer = PartWriter(storage, target, rank)
            writer.add("state", [json.dumps({"rank": rank, "path": path}).encode()])
            writer.finish()
        commit(storage, target, gather(storage, target), Facts(parent=parent), now_s=0.0)
        if read_generations(self.server, JOB).newest == path[-1].generation:
            self.acknowledged.add(path[-1])
        return str(path[-1])

    def rot(self, number: int) -> None:
        """Damage a file, in size or only in content."""
        files = sorted(k for k in self.server.objects if k.endswith(".state"))
        if files:
            key = files[number % len(files)]
            data = self.server.objects[key]
            self.server.objects[key] = data[:-1] if number % 2 else bytes(len(data))
            self.rotten.add(key.split("/")[1])

    def act(self, action: str, number: int) -> None:
        if action == "writer":
            if self.generations < 6:
                self.start_writer()
        elif action == "sweeper":
            self.start_sweeper()
        elif action == "arrive":
            self.server.arrive(number)
        elif action == "rot":
            self.rot(number)
        else:
            alive = [program for program in self.programs if program.alive]
            if alive:
                alive[number % len(alive)].take_turn(action)
        self.check()

    def check(self) -> None:
        for key, data in self.server.objects.items():
            if key.endswith(("manifest.json", ".from")):
                assert self.unchangeable.setdefault(key, data) == data, f"{key} was changed"
        assert set(self.unchangeable) <= set(self.server.objects), "a record disappeared"
        found = load_newest(self.server, None)
        chosen = read_generations(self.server, JOB).chosen
        head = max((g for g in chosen if chosen.get(g, "torn") != "torn"), default=None)
        own = {name.step for name in self.acknowledged if name.on == head} - {
            name.step for name in self.acknowledged if str(name) in self.rotten
        }
        if found is None:
            assert not own
            return
        name, path = found[0].name, found[1]
        assert head is not None
        if name.on != head:
            assert name in self.starts[head], "a state that the newest generation did not build on was chosen"
            assert not own, "an acknowledged save of the newest generation was passed over"
            origin = chosen[head]
            assert origin == name or str(origin) in self.rotten
        else:
            assert name.step >= max(own, default=0), "an acknowledged save was passed over"
            assert path[: len(self.starts[head])] == self.starts[head]

    def calm(self) -> None:
        """The store is well again: the next generation resumes from what was there, and saves."""
        for program in self.programs:
            program.take_turn("killed")
        while self.server.on_their_way:
            self.server.arrive(0)
            self.check()
        before = load_newest(self.server, None)
        generation = self.generations
        self.train(self.server, generation)
        after = load_newest(self.server, None)
        assert after is not None and after[0].name.generation == generation
        assert self.starts[Branch(generation)] == (before[1] if before else [])
        assert len(after[1]) == len(self.starts[Branch(generation)]) + SAVES
        sweep(self.server, JOB, now_s=1e9, grace_s=0.0)
        assert load_newest(self.server, None) == after


@dataclass
class Rivals(World):
    """Two submissions of one name, whose lives begin in any order: each counts its own from 1."""

    lives: dict[str, int] = field(default_factory=lambda: {"a": 0, "b": 0})
    owners: dict[int, str] = field(default_factory=dict)
    """Number → the run that was let in under it."""
    in_force: str = ""
    """The run that was let in last."""

    def start_run(self, run: str) -> None:
        if self.lives[run] < 5:
            self.lives[run] += 1
            life = self.lives[run]
            self.programs.append(Program(self.server, lambda storage: self.live(storage, run, life)))

    def live(self, storage: Storage, run: str, life: int) -> None:
        fenced = {self.owners[n] for n in self.owners} - {self.in_force}  # when it starts
        try:
            number = number_in_store(storage, JOB, run, life).number_of(life)
            begin_run(storage, JOB, run, number)
        except CheckpointError:
            return
        assert run not in fenced, f"run {run} was let in as {number} after {self.in_force} took over"
        assert self.owners.setdefault(number, run) == run, f"{number} is given to both runs"
        if number >= max(self.owners):
            self.in_force = run
        self.generations = max(self.generations, number + 1)
        self.train(storage, number)

    def begin(self, storage: Storage, generation: int) -> None:
        begin_run(storage, JOB, self.owners.setdefault(generation, "b"), generation)

    def target(self, name: CheckpointName, attempt: int) -> Target:
        return Target(JOB, name, WORLD, attempt, self.owners[name.generation])

    def act(self, action: str, number: int) -> None:
        if action == "writer":
            self.start_run("ab"[number % 2])
            self.check()
        else:
            super().act(action, number)


ACTIONS = ["ok"] * 40 + [fate for fate in FATES if fate != "ok"] + ["writer", "writer", "arrive", "arrive"]
ACTIONS += ["sweeper", "rot"]


def live_through(history: list[tuple[str, int]]) -> None:
    world = World()
    world.start_writer()
    try:
        for action, number in history:
            world.act(action, number)
        world.calm()
    finally:
        for program in world.programs:
            program.take_turn("killed")


@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 2310)), max_size=150))
@settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
def test_what_a_reader_finds_is_whole_and_in_line(history: list[tuple[str, int]]) -> None:
    live_through(history)


@pytest.mark.parametrize("seed", range(40))
def test_long_seeded_histories(seed: int) -> None:
    """Hypothesis likes short histories; long ones let frozen generations come back after several others."""
    chance = random.Random(seed)
    live_through([(chance.choice(ACTIONS), chance.randrange(2310)) for _ in range(400)])


def test_a_generation_belongs_to_one_run_and_a_fenced_run_never_returns() -> None:
    let_in = {"a": 0, "b": 0}
    for seed in range(80):
        chance = random.Random(seed)
        world = Rivals()
        world.start_run("a")
        try:
            for _ in range(300):
                world.act(chance.choice(ACTIONS), chance.randrange(2310))
        finally:
            for program in world.programs:
                program.take_turn("killed")
        for run in world.owners.values():
            let_in[run] += 1
    assert min(let_in.values()) > 40, f"hardly any life was let in: {let_in}"


@pytest.mark.parametrize("saves", [0, 1, 6])
def test_a_writer_frozen_at_any_place_changes_nothing_when_it_goes_on(saves: int) -> None:
    """Every request before which generation 0 can be frozen while generation 1 lives its whole life."""
    late = 0
    for place in range(100):
        world = World(saves={1: saves})
        world.start_writer()
        for _ in range(place):
            world.act("ok", 0)
        if not world.programs[0].alive:
            break
        world.start_writer()
        while world.programs[1].alive:
            world.programs[1].take_turn("ok")
            world.check()
        settled, manifests = load_newest(world.server, None), len(world.unchangeable)
        while world.programs[0].alive:
            world.programs[0].take_turn("ok")
            world.check()
        late += len(world.unchangeable) > manifests
        assert load_newest(world.server, None) == settled
        world.calm()
    assert late >= SAVES, "no late commit was tried"
