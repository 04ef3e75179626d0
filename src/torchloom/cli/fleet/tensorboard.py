"""`loom tensorboard`: a job's numbers as TensorBoard event files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from torchloom.cli.declared import argument, option
from torchloom.cli.options import JobArgument, api

EXAMPLES = (
    ("loom tensorboard train-3f9a runs/train-3f9a", "then: tensorboard --logdir runs"),
    ("loom tensorboard train-3f9a runs/live --follow", "until the job has ended"),
)
LOOK_EVERY_S = 5.0
POINTS = 2000


def command(
    job: JobArgument,
    directory: Annotated[Path, argument(help="Directory of the event file; made if needed.")],
    follow: Annotated[bool, option("--follow", "-f", help="Continue until the job has ended.")] = False,
) -> None:
    """Write what the job logged, its settings, speed and step times as TensorBoard scalars."""
    import time

    from torchloom.export.events_file import EventsFile
    from torchloom.export.tensorboard import Scalars

    client = api()
    ended = client.summary(job)["ended"]
    file = EventsFile(directory, time.time())
    scalars = Scalars(file)
    try:
        last_s: float | None = None
        while True:
            done = ended or not follow
            scalars.write(client.series(job, points=POINTS, last_s=last_s), final=done)
            if done:
                break
            last_s = 600.0  # what is older was written
            time.sleep(LOOK_EVERY_S)
            ended = client.summary(job)["ended"]
    finally:
        file.close()
    print(f"{file.path}: {scalars.count} values")
