"""The verbs that are typer commands. Imports only the verb that was typed; all of them for `loom --help`."""

from __future__ import annotations

from types import ModuleType
from typing import Annotated, Any

import typer

from torchloom import __version__
from torchloom.cli.main import PLAIN
from torchloom.cli.options import ContextOption, HomeOption, with_place
from torchloom.cli.verbs import VERBS, module_of

LOCAL_VERBS = frozenset(
    {"up", "down", "demo", "doctor", "context", "completion", "analyze", "cluster", "join", "ca"}
)
"""Verbs that act on this host only and take no --context."""


def root(
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
    context: ContextOption = None,
    home: HomeOption = None,
) -> None:
    """Watch and steer distributed PyTorch training while it runs.

    Every verb that shows something takes --json; `loom VERB --help` has examples.
    """
    if version:
        typer.echo(f"torchloom {__version__}")
        raise typer.Exit(0)


class _InOrder(typer.core.TyperGroup):
    """Lists verbs in our order; typer's own puts groups last."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(self.commands, key=VERBS.index)


class _OrShow(typer.core.TyperGroup):
    """A group whose `show` may be left out: `loom device GPU-1` is `loom device show GPU-1`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands and not args[0].startswith("-"):
            args = ["show", *args]
        return super().resolve_command(ctx, args)


def build(verbs: tuple[str, ...]) -> typer.Typer:
    """An application with these verbs."""
    app = typer.Typer(
        name="loom",
        cls=_InOrder,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )
    app.callback(invoke_without_command=True)(root)
    for name in verbs:
        if name in PLAIN:
            # Only for the list in `loom --help`: main.py finds these verbs before typer runs.
            app.command(name, help=PLAIN[name])(_found_before)
            continue
        module = module_of(name)
        parts = getattr(module, "SUBVERBS", None)
        if parts is None:
            app.command(name, epilog=examples(module))(with_place(module.command, name in LOCAL_VERBS))
        else:
            kind = _OrShow if getattr(module, "DEFAULT", "") == "show" else typer.core.TyperGroup
            group = typer.Typer(cls=kind, no_args_is_help=True, help=module.HELP, epilog=examples(module))
            for part, command in parts.items():
                group.command(part, epilog=examples(module))(with_place(command, name in LOCAL_VERBS))
            app.add_typer(group, name=name)
    return app


def examples(module: ModuleType) -> str:
    """The module's EXAMPLES, as the last section of its help; \\b keeps each on its own line."""
    width = max(len(line) for line, _ in module.EXAMPLES)
    rows = (f"  {line:<{width}}  {said}" for line, said in module.EXAMPLES)
    return "\b\nExamples:\n" + "\n".join(rows)


def run_typer(argv: list[str]) -> int:
    """Run the command line and return the exit code. LoomErrors pass through."""
    app = build((argv[0],) if argv and argv[0] in VERBS else VERBS)
    try:
        app(argv, prog_name="loom")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


def _found_before() -> None:
    """Placeholder for a verb that parses its own options."""
