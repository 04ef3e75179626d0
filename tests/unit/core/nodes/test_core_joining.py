"""Two hosts and one name: who has it, who is refused, and when a silent host's name may be another's."""

from __future__ import annotations

import pytest
from core_story import KILLED, S, Story
from notice_story import apply_and_tell

from torchloom.core.nodes.name_owner import CLAIMS_KEPT, host_of, standing
from torchloom.core.reducer import apply
from torchloom.model.effects import Effect
from torchloom.model.events import (
    Envelope,
    Event,
    NodeGone,
    NodeJoined,
    NodeLeft,
    NodeReachable,
    NodeUnreachable,
    WorkerExited,
)
from torchloom.model.fleet import Fleet, JobState, NodeState
from torchloom.model.node import HostId, Inventory, LiveWorker
from torchloom.model.worker import WorkerRef
from torchloom.wire import codec


class Names(Story):
    """Node a is host `one` with two workers; others may come and want its name."""

    def __init__(self, workers: int = 2) -> None:
        super().__init__(c=8)
        self.come("one", "s1")
        if workers:
            self.submit(workers=workers)
            self.bring_up()
            assert {w.node for w in self.job().workers} == {"a"}

    def come(
        self,
        hostname: str,
        session: str,
        *,
        boot: str = "boot-1",
        home: str = "home-1",
        live: tuple[WorkerRef, ...] = (),
    ) -> list[Effect]:
        inventory = Inventory(
            hostname=hostname,
            address="10.0.0.1",
            boot_id=boot,
            home=home,
            max_workers=8 if hostname == "one" else 0,
            workers=tuple(LiveWorker(ref, 4000 + ref.rank) for ref in live),
        )
        return self.tell(NodeJoined(node="a", session=session, inventory=inventory))

    @property
    def session(self) -> str:
        return self.fleet.nodes["a"].session

    def silent(self, unheard_s: float | None = 3.1) -> None:
        self.tell(NodeUnreachable(node="a", silent_s=3.1, unheard_s=unheard_s))

    def say(self, session: str, event: Event) -> list[Effect]:
        seq = len(self.stream) + 1
        self.now_ns += S
        envelope = Envelope(f"said-{seq}", "agent/a", event, session=session)
        self.stream.append((codec.encode(envelope), seq, self.now_ns))
        effects = apply(self.fleet, envelope, seq, self.now_ns)
        self.effects += effects
        return effects

    def refs(self) -> tuple[WorkerRef, ...]:
        return tuple(w.ref for w in self.job().workers)


def test_a_second_host_does_not_get_the_name_and_the_first_goes_on() -> None:
    story = Names()
    assert story.come("two", "s2", boot="boot-2", home="home-2") == []
    node = story.fleet.nodes["a"]
    assert node.session == "s1" and node.inventory.hostname == "one" and node.state is NodeState.READY
    assert story.state() is JobState.RUNNING and not story.job().incidents
    found = standing(node, "s2", HostId("two", "boot-2", "home-2"), seen_s=0.4)
    assert found.name == "taken"
    assert found.why == "node name a is already taken by host one (10.0.0.1), seen 0.4 s ago"
    assert "--node" in found.hint
    gone = WorkerExited(node="a", ref=story.ref(0), exit=KILLED, at_ns=story.now_ns)
    assert story.say("s2", gone) == [] and story.state() is JobState.RUNNING, "it cannot speak for the first"
    story.say("s2", NodeLeft(node="a"))
    assert node.state is NodeState.READY
    story.say("s1", gone)
    assert story.state() is JobState.RECOVERING
    story.check_replay()


def test_an_agent_that_was_started_again_has_the_name_at_once_and_its_former_self_is_not_heard() -> None:
    story = Names()
    assert story.come("one", "s2", live=story.refs()) == []
    assert story.session == "s2" and story.state() is JobState.RUNNING
    gone = WorkerExited(node="a", ref=story.ref(0), exit=KILLED, at_ns=story.now_ns)
    assert story.say("s1", gone) == [] and story.state() is JobState.RUNNING
    story.say("s2", gone)
    assert story.state() is JobState.RECOVERING
    story.check_replay()


@pytest.mark.parametrize("unheard_s", [70.0, None])
def test_a_host_that_was_rebooted_has_its_name_as_soon_as_its_former_self_is_silent(
    unheard_s: float | None,
) -> None:
    story = Names()
    story.come("one", "s2", boot="boot-2")  # when nobody has noticed yet
    assert story.session == "s1" and story.state() is JobState.RUNNING
    story.now_ns += (
        60 * S
    )  # as when there was no weaver meanwhile, and the one that came never heard the node
    story.silent(unheard_s)
    story.come("one", "s2", boot="boot-2")
    assert story.session == "s2" and story.fleet.nodes["a"].reason == "its host was rebooted"
    living = [w.ref for w in story.job().workers if w.alive]
    assert all(ref.generation == 2 for ref in living), "those of before are proven dead"
    story.check_replay()


@pytest.mark.parametrize("hostname", ["one", "two"])
def test_a_host_that_was_there_beside_the_first_is_not_its_reboot(hostname: str) -> None:
    """A clone that is started again and again must not get the name when the first is cut off for a while."""
    story = Names()
    story.come(hostname, "s2", boot="boot-2", home="home-1")
    story.now_ns += 60 * S
    story.silent()
    story.come(hostname, "s3", boot="boot-2", home="home-1")
    assert story.session == "s1" and story.state() is JobState.RUNNING
    found = standing(story.fleet.nodes["a"], "s3", HostId(hostname, "boot-2", "home-1"))
    assert "its workers may still run there" in found.why and "loom node gone a" in found.hint
    story.tell(NodeReachable(node="a"))
    assert story.fleet.nodes["a"].state is NodeState.READY and story.state() is JobState.RUNNING
    story.silent()
    story.tell(NodeGone(node="a", by="ann"))
    story.come(hostname, "s4", boot="boot-2", home="home-1")
    assert story.session == "s4", "a person has said that the first is gone"
    story.check_replay()


@pytest.mark.parametrize(
    ("hostname", "boot", "home", "rebooted"),
    [
        ("one", "boot-2", "home-1", True),
        ("one", "boot-2", "home-2", True),  # its home did not survive the reboot
        ("new", "boot-2", "home-1", True),  # its name is given by the network
        ("new", "boot-2", "home-2", False),
        ("one", "boot-1", "home-2", False),  # another installation: what the first one started may go on
    ],
)
def test_whose_workers_are_proven_dead_by_a_join(hostname: str, boot: str, home: str, rebooted: bool) -> None:
    for workers in (2, 0):
        story = Names(workers)
        story.silent()
        story.come(hostname, "s2", boot=boot, home=home)
        assert (story.session == "s2") is (rebooted or not workers)
        if workers:
            assert (story.state() is JobState.RUNNING) is not rebooted
        story = Names(workers)
        story.tell(NodeLeft(node="a"))  # stopped, and its workers go on
        story.come(hostname, "s2", boot=boot, home=home)
        assert (story.session == "s2") is (rebooted or not workers)


def test_agents_of_before_there_were_installations_join_as_ever() -> None:
    story = Names()
    story.come("two", "s2", boot="boot-2", home="")
    assert story.session == "s2"


def test_a_refused_host_is_told_of_and_claims_are_bounded() -> None:
    story = Names()
    for number in range(40):
        story.come("two", f"t{number}", boot=f"boot-{number + 2}", home="home-2")
    assert len(story.fleet.nodes["a"].claims) == CLAIMS_KEPT
    inventory = Inventory(hostname="two", address="x", boot_id="b", home="h", max_workers=1)
    event = NodeJoined(node="a", session="x", inventory=inventory)
    notice = apply_and_tell(story.fleet, Envelope("x", "agent/a", event), 999, story.now_ns)
    assert notice is not None and notice.kind == "node-refused" and "did not get the name a" in notice.text
    left = Envelope("y", "agent/a", NodeLeft(node="a"), session="x")
    assert apply_and_tell(story.fleet, left, 1000, story.now_ns) is None
    assert standing(Fleet().nodes.get("a"), "s", host_of(inventory)).name == "free"
