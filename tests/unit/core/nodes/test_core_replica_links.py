"""The lighthouse reports replicas that cannot reach each other: one incident, nothing restarted."""

from __future__ import annotations

from core_story import S, Story

from torchloom.core.nodes.speaking import speaks_for_another_node
from torchloom.core.policy.leave_out import is_held, seat_note
from torchloom.model.events import ReplicaLinksReported, WorkerExited
from torchloom.model.fleet import JobState
from torchloom.model.quorum import ReplicaSeat
from torchloom.model.worker import Exit

CUT = "t-r2"


def running() -> Story:
    """Three replicas, each on a node of its own; the lighthouse is on the first one's."""
    story = Story(a=1, b=1, c=1)
    for index in range(3):
        story.run(f"t-r{index}", workers=1, replica=ReplicaSeat("t", index, 3))
        story.first_step(0, f"t-r{index}")
    assert story.fleet.lighthouses["t"].node == node(story, 0)
    return story


def node(story: Story, index: int) -> str:
    return story.job(f"t-r{index}").workers[0].node


def report(story: Story, *, broken: bool = True, out: bool = True, by: int = 0, generation: int = 1) -> None:
    pair = tuple(sorted((node(story, 1), node(story, 2))))
    story.tell(
        ReplicaLinksReported(
            node=node(story, by),
            job=CUT,
            generation=generation,
            links=((pair[0], pair[1]),) if broken else (),
            out=out and broken,
            others=2,
        )
    )


def test_the_incident_names_the_link_and_closes_when_it_works_again() -> None:
    story = running()
    report(story)
    incident, job = story.incident(CUT), story.job(CUT)
    b, c = sorted((node(story, 1), node(story, 2)))
    assert incident.open and incident.kind == "link-broken" and incident.node == node(story, 2)
    assert incident.verdict == (
        f"the collectives of {CUT} on {node(story, 2)} fail: no connection between {b} and {c}, although "
        f"both reach the lighthouse on {node(story, 0)}"
    )
    assert incident.decision.startswith("left out of the quorum; the other 2 replicas train without it")
    assert is_held(job), "it makes no step, and that is no hang"
    assert seat_note(job) == f"; left out of the quorum because it cannot reach all others ({incident.id})"
    assert job.state is JobState.RUNNING and job.restarts == 0
    report(story)
    assert len(job.incidents) == 1, "said twice, it is one"
    story.now_ns += 30 * S
    report(story, broken=False)
    assert not incident.open and not is_held(job) and seat_note(job) == ""
    assert incident.resolution.startswith("all its links to the other replicas work again after 30")
    report(story, broken=False)
    assert len(job.incidents) == 1
    story.check_replay()


def test_where_all_replicas_are_needed_it_is_only_reported() -> None:
    story = running()
    report(story, out=False)
    assert "fewer than --min-replicas" in story.incident(CUT).decision
    assert not is_held(story.job(CUT)) and seat_note(story.job(CUT)) == ""


def test_only_the_lighthouses_own_node_is_believed_and_only_about_this_generation() -> None:
    story = running()
    report(story, by=1)
    report(story, generation=7)
    assert not story.job(CUT).incidents
    stranger = ReplicaLinksReported(node=node(story, 0), job="no-such-job", generation=1)
    assert speaks_for_another_node(story.fleet, stranger)


def test_a_restarted_replica_begins_in_the_quorum() -> None:
    story = running()
    report(story)
    first, worker = story.incident(CUT), story.job(CUT).workers[0]
    story.tell(
        WorkerExited(node=worker.node, ref=worker.ref, exit=Exit(None, 9, "spawner"), at_ns=story.now_ns)
    )
    assert not first.open and not is_held(story.job(CUT))
    report(story, broken=False)
    assert not first.open
