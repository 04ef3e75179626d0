"""Lists the checkpoints that a framework's own trainer saved (Hugging Face, Lightning, accelerate).

Their files are the user's: they are listed and can be resumed from, but torchloom has no checksums of them
and neither pins nor deletes them. The trainer's own limit (`save_total_limit`, `save_top_k`) decides what is
kept.
"""

from __future__ import annotations

from pathlib import Path

from torchloom.checkpoint.store import trainer_index
from torchloom.checkpoint.store.trainer_index import TrainerCheckpoint
from torchloom.model.checkpoints import CheckpointEntry
from torchloom.model.messages import AskCheckpoints, CheckpointAnswer

MOST_ENTRIES = 500


def answer(ask: AskCheckpoints) -> CheckpointAnswer:
    """The answer to one verb; a refusal says who owns the files."""
    found = trainer_index.read(Path(ask.place.index))
    framework = ask.place.framework
    entries = tuple(_entry(one, one is found[-1]) for one in reversed(found))
    if ask.which:
        entries = tuple(one for one in entries if one.name == ask.which)
    match ask.verb:
        case "list":
            pass
        case "verify":  # what exists with all its files is all that can be known
            if not entries:
                return CheckpointAnswer(problem="missing", why=f"{ask.job} has no checkpoint {ask.which}")
        case "purge":
            return CheckpointAnswer()
        case "pin" | "unpin" | "delete" | "damage":
            why = f"{framework} owns this checkpoint, so torchloom does not {ask.verb} it"
            return CheckpointAnswer(problem="usage", why=why)
    return CheckpointAnswer(entries=entries[:MOST_ENTRIES], left_out=max(0, len(entries) - MOST_ENTRIES))


def _entry(one: TrainerCheckpoint, newest: bool) -> CheckpointEntry:
    return CheckpointEntry(
        name=one.name,
        step=one.step,
        generation=one.generation,
        where=one.path,
        whole=True,
        newest=newest,
        created_ns=int(one.at_s * 1e9),
        size=one.size,
        world=one.world,
        epoch=one.epoch,
        metrics=dict(one.metrics),
    )
