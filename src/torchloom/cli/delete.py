"""`loom delete`: forget a job that has ended."""

from __future__ import annotations

from typing import Annotated

import typer

from torchloom.cli.options import HomeOption, api


def command(job: Annotated[str, typer.Argument(help="Id of the job.")], home: HomeOption = None) -> None:
    """Forget a job that has ended. A running one must be stopped first."""
    api(home).delete(f"/jobs/{job}")
    print(f"{job} deleted")
