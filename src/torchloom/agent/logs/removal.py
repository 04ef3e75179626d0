"""Carries out RemoveJobFiles: the logs of a deleted job go from this host. Decides nothing about jobs."""

from __future__ import annotations

import asyncio
import shutil
import uuid
from pathlib import Path

from torchloom.agent.host import Host
from torchloom.errors import LoomError
from torchloom.model.effects import RemoveJobFiles
from torchloom.model.events import EffectDone
from torchloom.model.ids import check_token


async def remove_job_files(host: Host, effect: RemoveJobFiles) -> EffectDone:
    """Remove the job's directory; one that a newer job of the same name uses stays."""
    check_token(effect.job, "job name")  # it becomes part of a path
    newer = [ref for ref in (*host.workers, *host.starting) if ref.job == effect.job]
    if not any(ref.generation > effect.generation for ref in newer):
        # Moved away in one step first: a worker of the same name that starts meanwhile gets a new directory.
        doomed = _move_away(host.home.jobs_dir / effect.job)
        if doomed is not None:
            await asyncio.to_thread(shutil.rmtree, doomed, ignore_errors=True)
    return EffectDone(node=host.node, effect=effect.id)


def _move_away(path: Path) -> Path | None:
    doomed = path.with_name(f".removed-{uuid.uuid4().hex}")
    try:
        return path.rename(doomed)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LoomError(f"{path} cannot be removed ({error.strerror}).") from error
