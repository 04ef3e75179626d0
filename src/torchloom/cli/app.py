"""The verbs with a typer command each. Imports only the one that was typed; all of them for `loom --help`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Annotated, Any

import typer

from torchloom import __version__
from torchloom.cli.main import PLAIN

VERBS = (
    *("up", "down", "run", "submit", "ps", "status", "logs", "stop", "delete"),
    *("devices", "nodes", "incidents", "incident", "demo", "weaver", "agent"),
)
"""In the order of `loom --help`."""


def root(version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False) -> None:
    """Watch and steer distributed PyTorch training while it runs."""
    if version:
        typer.echo(f"torchloom {__version__}")
        raise typer.Exit(0)


def run_typer(argv: list[str]) -> int:
    """Do what the command line says; the exit code. LoomErrors pass through."""
    app = typer.Typer(
        name="loom",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(root)
    for name in [argv[0]] if argv and argv[0] in VERBS else VERBS:
        if name in PLAIN:
            # Only for the list in `loom --help`: these verbs are found before typer is asked.
            app.command(name, help=PLAIN[name])(lambda: None)
        else:
            app.command(name)(_interruptible(import_module(f"torchloom.cli.{name}").command))
    try:
        app(argv, prog_name="loom")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


def _interruptible(command: Callable[..., Any]) -> Callable[..., Any]:
    """Ctrl-C is 130, not typer's 1."""

    @functools.wraps(command)
    def call(*args: Any, **options: Any) -> Any:
        try:
            return command(*args, **options)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None

    return call
