"""Options that several verbs share, and those that every verb takes."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from torchloom.cli.declared import EndVerb, argument, option
from torchloom.cli.main import drop_stdout

if TYPE_CHECKING:
    from torchloom.client import Client

HOME = option("--home", metavar="DIR", help="Directory of torchloom's state (LOOM_HOME).", show_default=False)
HomeOption = Annotated[Path | None, HOME]
CONTEXT = option(
    "--context",
    metavar="NAME",
    help="Cluster to talk to, see `loom context` (LOOM_CONTEXT).",
    show_default=False,
)
ContextOption = Annotated[str | None, CONTEXT]
JsonOption = Annotated[bool, option("--json", help="Print JSON and nothing else.")]
WatchOption = Annotated[bool, option("--watch", "-w", help="Redraw whenever something changes.")]


def _job_ids(given: list[str]) -> list[str]:
    """Reports a malformed id as a usage error before any request is sent."""
    from torchloom.model.ids import check_token

    return [check_token(job, "job id") for job in given]


def _job_id(given: str | None) -> str | None:
    return None if given is None else _job_ids([given])[0]


JobArgument = Annotated[str, argument(metavar="JOB", help="Id of the job, see `loom ps`.", callback=_job_id)]
AnyJobArgument = Annotated[str | None, argument(metavar="JOB", help="Show only this job.", callback=_job_id)]
JobsArgument = Annotated[
    list[str], argument(metavar="JOB", help="Ids of jobs, see `loom ps`.", callback=_job_ids)
]
LabelOption = Annotated[
    list[str] | None,
    option("--label", "-l", metavar="KEY[=VALUE]", help="Only jobs with this label; repeatable."),
]


def with_place(command: Callable[..., Any], local_only: bool = False) -> Callable[..., Any]:
    """The verb with --home and --context added to its own options; Ctrl-C is 130, not typer's 1."""

    @functools.wraps(command)
    def call(*args: Any, home: Path | None = None, context: str | None = None, **options: Any) -> Any:
        use_place(home, context, local_only)
        try:
            result = command(*args, **options)
            sys.stdout.flush()
            return result
        except KeyboardInterrupt:
            raise EndVerb(130) from None
        except BrokenPipeError:
            # Typer would exit with 1, but a closed pipe (`loom ps | head -1`) is not a failure.
            drop_stdout()
            raise EndVerb(0) from None

    own = inspect.signature(command, eval_str=True)
    added = {"home": HomeOption} if local_only else {"context": ContextOption, "home": HomeOption}
    parameters = [
        *own.parameters.values(),
        *(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
            for name, option in added.items()
        ),
    ]
    call.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return call


def use_place(home: str | Path | None, context: str | None, local_only: bool = False) -> None:
    """Set home and context for this process and its children, through the environment."""
    from torchloom.cli.access.contexts import choose

    if home is not None:
        os.environ["LOOM_HOME"] = str(Path(home).expanduser().absolute())
    if not local_only:
        choose(context, home_given=home is not None)


def api() -> Client:
    """A client of the chosen cluster."""
    from torchloom.client import Client, Endpoint

    return Client(Endpoint.find())
