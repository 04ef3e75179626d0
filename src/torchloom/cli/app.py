"""The verbs that are typer commands. Imports only the verb that was typed; all of them for `loom --help`."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, get_args, get_origin

import typer

from torchloom import __version__
from torchloom.cli.declared import Parameter
from torchloom.cli.main import PLAIN
from torchloom.cli.options import CONTEXT, HOME, with_place
from torchloom.cli.verbs import LOCAL_VERBS, VERBS, module_of


def as_typer(declared: Parameter) -> Any:
    """What a verb declared, as typer wants it."""
    make: Any = typer.Option if declared.is_option else typer.Argument
    return make(*declared.names, **declared.said)


def for_typer(verb: Any, local_only: bool) -> Any:
    """A verb with all its options, --home and --context too, declared to typer."""
    return declared_to_typer(with_place(verb, local_only))


def declared_to_typer(command: Any) -> Any:
    signature = inspect.signature(command, eval_str=True)
    command.__signature__ = signature.replace(
        parameters=[p.replace(annotation=_for_typer(p.annotation)) for p in signature.parameters.values()]
    )
    return command


def _for_typer(annotation: Any) -> Any:
    if get_origin(annotation) is not Annotated:
        return annotation
    kind, *more = get_args(annotation)
    return Annotated[(kind, *(as_typer(one) if isinstance(one, Parameter) else one for one in more))]


def root(
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
    context: Annotated[str | None, as_typer(CONTEXT)] = None,
    home: Annotated[Path | None, as_typer(HOME)] = None,
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
            app.command(name, epilog=examples(module))(for_typer(module.command, name in LOCAL_VERBS))
        else:
            kind = _OrShow if getattr(module, "DEFAULT", "") == "show" else typer.core.TyperGroup
            group = typer.Typer(cls=kind, no_args_is_help=True, help=module.HELP, epilog=examples(module))
            for part, command in parts.items():
                group.command(part, epilog=examples(module))(for_typer(command, name in LOCAL_VERBS))
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
