"""The text of a batch script for Slurm. Pure; submits nothing.

One allocation is one small cluster: bus and control service beside the batch script on its first node, one
agent per node started by srun. Before the time limit Slurm signals the script (`--signal`), which saves the
job and has it requeued; the next run has the same Slurm id, so the job finds its checkpoints by its name.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from torchloom.errors import UsageError

MARGIN_S = 15
"""Between the end of waiting for a save and the time limit."""


@dataclass(frozen=True)
class Batch:
    """What is asked of Slurm and of `loom run`."""

    name: str
    nodes: int
    slots: int
    """Workers per node."""
    directives: Sequence[str]
    """Further options of sbatch."""
    save_s: int
    requeue: bool
    survives: bool
    """The job can continue on fewer nodes, or has spare ones: Slurm need not end it with a node."""
    run: Sequence[str]
    """Arguments of `loom run`, the script and its own."""
    python: str
    directory: str


def script(batch: Batch) -> str:
    """The whole script."""
    directives = [
        f"--job-name={batch.name}",
        f"--nodes={batch.nodes}",
        "--ntasks-per-node=1",
        "--requeue" if batch.requeue else "--no-requeue",
        "--open-mode=append",
        f"--signal=B:USR1@{batch.save_s}",
        quoted(f"--chdir={batch.directory}"),
        *(["--no-kill"] if batch.survives else []),
        *batch.directives,
    ]
    for one in directives:
        if not one.isprintable():
            raise UsageError(f"{one!r} cannot be asked of Slurm: it would be more than one line")
    no_kill = "--no-kill " if batch.survives else ""
    return f"""#!/bin/bash
{chr(10).join(f"#SBATCH {one}" for one in directives)}
# Written by `loom sbatch`. One agent per node; bus and control service run beside this script.
set -u
python={shlex.quote(batch.python)}
job={shlex.quote(batch.name)}-$SLURM_JOB_ID
# Files of this run that only this node needs, and the secrets of the agents, which every node must see.
export LOOM_HOME="${{TMPDIR:-/tmp}}/torchloom-$SLURM_JOB_ID.${{SLURM_RESTART_COUNT:-0}}"
shared="${{LOOM_SHARED:-$HOME/.torchloom}}/slurm/$SLURM_JOB_ID.${{SLURM_RESTART_COUNT:-0}}"

"$python" -m torchloom.cli.places.allocation serve --shared "$shared" &
control=$!
LOOM_ADDRESS=$("$python" -m torchloom.cli.places.allocation wait --shared "$shared" --while $control) \\
  || exit 1
export LOOM_ADDRESS

srun {no_kill}--kill-on-bad-exit=0 --wait=0 --ntasks-per-node=1 \\
  "$python" -m torchloom.cli.places.allocation agent --shared "$shared" --slots {batch.slots} &
agents=$!

# The job must not take itself for a task of Slurm: torchloom numbers its ranks.
(
  for name in $(compgen -e SLURM; compgen -e PMI); do unset "$name"; done
  exec "$python" -m torchloom.cli run --queue --env-all --name "$job" \\
    {shlex.join(batch.run)}
) &
run=$!

save() {{
  trap '' USR1 TERM
  # A job that was cancelled must not come back: Slurm would requeue even a finished one.
  [ "$(squeue -h -j "$SLURM_JOB_ID" -o %T)" = RUNNING ] || return
  echo "torchloom: the allocation ends soon: saving $job" >&2
  timeout {max(batch.save_s - MARGIN_S, 10)} "$python" -m torchloom.cli checkpoint "$job" --why "$1" >&2
{_requeue(batch.requeue)}
}}
trap 'save "the time limit of Slurm job $SLURM_JOB_ID is near"' USR1
trap 'save "Slurm job $SLURM_JOB_ID was asked to end"' TERM

while kill -0 $run 2>/dev/null; do wait $run; status=$?; done
# To the agents only: srun itself would kill them at once.
scancel --signal=TERM "$SLURM_JOB_ID" 2>/dev/null; wait $agents
kill $control 2>/dev/null; wait $control
rm -rf "$shared"
[ $status -eq 0 ] && rm -rf "$LOOM_HOME"
exit $status
"""


def quoted(option: str) -> str:
    """An option as it stands in a line `#SBATCH`, where sbatch reads quotes as a shell does."""
    name, equals, value = option.partition("=")
    return f"{name}={shlex.quote(value)}" if equals else option


def epilog(python: str) -> str:
    """For `Epilog` in slurm.conf. It ends with 0 whatever happens: Slurm drains a node whose epilog fails."""
    return f"""#!/bin/bash
# Written by `loom sbatch --epilog`. Slurm kills agents that outlive their step; this removes what they left
# in shared memory (black boxes, states in memory) once no process uses it.
PATH=$PATH:/usr/sbin:/sbin
runuser -u "$SLURM_JOB_USER" -- {shlex.quote(python)} -P -m torchloom.cli.places.allocation sweep
exit 0
"""


def _requeue(requeue: bool) -> str:
    if requeue:
        return '  scontrol requeue "$SLURM_JOB_ID"'
    return '  "$python" -m torchloom.cli stop "$job" >&2'
