"""Options that several verbs share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from torchloom.cli.client import Api
    from torchloom.home import Home

HomeOption = Annotated[
    Path | None,
    typer.Option("--home", help="Directory of torchloom's state (LOOM_HOME).", show_default=False),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


def chosen_home(home: Path | None) -> Home:
    """--home, LOOM_HOME or ~/.torchloom. Later look-ups in this process and its children see the same one."""
    from torchloom.home import Home

    if home is not None:
        os.environ["LOOM_HOME"] = str(home.expanduser().absolute())
    return Home.default()


def api(home: Path | None) -> Api:
    """A client of the stack of this home, or of LOOM_ADDRESS."""
    from torchloom.cli.client import Api, Endpoint

    return Api(Endpoint.find(chosen_home(home)))
