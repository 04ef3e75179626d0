"""Stories of a job with a policy: it steps, is slow, is saved, and its ranks answer."""

from __future__ import annotations

from core_story import S, Story
from finding_story import hang, made

from torchloom.core.transaction.packing import pack_answers
from torchloom.model.checkpoints import CheckpointPlace, SavedCheckpoint
from torchloom.model.events import CheckpointSaved, CheckpointStoreOpened, RanksAnswered
from torchloom.model.findings import Finding
from torchloom.model.fleet import JobState
from torchloom.model.policy import Action, Policy
from torchloom.model.transaction.messages import Answer, Said

STRAGGLER = hang(
    kind="compute-slow", ranks=(1,), node="b", sentence="rank 1 is slow", confidence=0.9, lasting_s=0.0,
    waiting=(), inputs={"cost": 0.5},
)  # fmt: skip


def nan(step: int = 50) -> Finding:
    return hang(kind="not-a-number", ranks=(), sentence="loss is not a number", certain=True,
                certainty="it is not a number", inputs={"step": step})  # fmt: skip


def stepping(policy: Policy, *, nodes: dict[str, int] | None = None, **more: object) -> Story:
    """A job that has made steps on all ranks; `nodes` says how many workers each may hold."""
    story = Story(**(nodes or {"a": 8}))
    count = len(nodes) if nodes else 1
    story.run(workers=2 // min(2, count), nodes=min(2, count), policy=policy, **more)
    for rank in range(len(story.job().workers)):
        story.first_step(rank)
    story.now_ns += 60 * S
    return story


def answer(story: Story, said: Said, **more: object) -> None:
    """All ranks answer the operation under way alike."""
    attempt = story.job().control.attempt_id
    for worker in story.job().workers:
        told = Answer(attempt, worker.ref.rank, said, 60, **more)  # type: ignore[arg-type]
        told_by = RanksAnswered(
            node=worker.node, job="j", generation=1, answers=pack_answers([told]).decode()
        )
        story.tell(told_by)


def slow(story: Story, after_s: float = 0.01) -> None:
    story.tell(made(STRAGGLER, step_s=0.1), after_s=after_s)


def saved(story: Story, step: int = 50) -> None:
    """A checkpoint was stored just now: a restart would cost nothing but itself."""
    ref, place = story.ref(0), CheckpointPlace("/ckpt", "j")
    story.tell(CheckpointStoreOpened(node="a", ref=ref, place=place))
    state = SavedCheckpoint(name=f"step-{step}.g1", step=step, at_ns=story.now_ns)
    story.tell(CheckpointSaved(node="a", ref=ref, saved=state))


def eager(action: Action, cooldown_s: float = 30.0) -> Policy:
    rules = {"compute-slow": {"likely": action}, "hang": {"certain": action}}
    return Policy(rules=rules, restart_cost_s=0.0, cooldown_s=cooldown_s)


def bring_to_act(story: Story) -> None:
    slow(story)
    story.now_ns += 10 * S
    saved(story)
    slow(story)
    save_first(story)


def save_first(story: Story) -> None:
    """What the policy asked for is stored, if it asked."""
    if story.job().acting is None:
        return
    assert story.state() is JobState.RUNNING, "it trains on meanwhile"
    for said in (Said.PREPARED, Said.ARMED):
        answer(story, said)
    answer(story, Said.APPLIED, offset=61 - story.job().control.at_step)
    saved(story, 60)
