"""Candidates for the next word of a command line: verbs, options, ids. For shells and `loom shell`.

Reads the verbs' own declarations, so that no option is missing, and asks the running service for ids.
It never waits long and fails silently: without candidates there is simply no completion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torchloom.cli.main import PLAIN
from torchloom.cli.shell.candidates import ASKED, Candidate
from torchloom.cli.verbs import VERBS, module_of
from torchloom.errors import LoomError

ASK_WITHIN_S = 1.5


@dataclass(frozen=True)
class Option:
    names: tuple[str, ...]
    takes_value: bool
    help: str
    about: str
    """Name of the parameter, which determines its values."""


@dataclass(frozen=True)
class Shape:
    """The arguments and options of a verb, however it declares them."""

    options: tuple[Option, ...] = ()
    arguments: tuple[str, ...] = ()
    """Names of the arguments by position; the last one may be repeated if `repeats`."""
    repeats: bool = False
    parts: tuple[Candidate, ...] = ()
    """Verbs of a group, such as `context`."""

    def option(self, name: str) -> Option | None:
        return next((option for option in self.options if name in option.names), None)


def print_candidates(words: list[str]) -> int:
    """For the completion scripts: one line per candidate, with a tab and its description."""
    for word, said in candidates(words):
        print(f"{word}\t{' '.join(said.split())}")
    return 0


def candidates(words: list[str]) -> list[Candidate]:
    """Candidates for the last word, which may be empty or incomplete."""
    words = words or [""]
    typed = words[-1]
    if len(words) == 1:
        return _begun(typed, _verbs())
    verb, rest = words[0], words[1:-1]
    shape = shape_of(verb)
    if shape.parts:
        if not rest:
            return _begun(typed, shape.parts)
        shape, rest, verb = shape_of(verb, rest[0]), rest[1:], f"{verb} {rest[0]}"
    return _of_verb(verb, shape, rest, typed)


def _of_verb(verb: str, shape: Shape, rest: list[str], typed: str) -> list[Candidate]:
    place, before = dict(pairwise(rest)), _positional(shape, rest)
    last = shape.option(rest[-1]) if rest else None
    if last is not None and last.takes_value:
        return _begun(typed, _values(verb, last.about, place, before))
    name, given, value = typed.partition("=")
    inline = shape.option(name) if given else None
    if inline is not None:
        found = _begun(value, _values(verb, inline.about, place, before))
        return [(f"{name}={word}", said) for word, said in found]
    if typed.startswith("-"):
        used = {name for word in rest if (o := shape.option(word)) for name in o.names}
        long = ((o.names[-1], o.help) for o in shape.options if not used & set(o.names))
        return _begun(typed, long)
    if len(before) >= len(shape.arguments) and not (shape.repeats and shape.arguments):
        return []
    about = shape.arguments[min(len(before), len(shape.arguments) - 1)]
    found = [c for c in _begun(typed, _values(verb, about, place, before)) if c[0] not in before]
    # First the names of settings; once a name is typed, its values.
    return [c for c in found if given or not c[0].partition("=")[2]]


def _positional(shape: Shape, rest: list[str]) -> list[str]:
    """The arguments so far, without options and their values."""
    found, skip = [], False
    for word in rest:
        option = shape.option(word)
        if skip:
            skip = False
        elif option is not None:
            skip = option.takes_value
        elif not word.startswith("-"):
            found.append(word)
    return found


def _begun(typed: str, found: Iterable[Candidate]) -> list[Candidate]:
    return [(word, said) for word, said in found if word.startswith(typed)]


# ---- what verbs declare ----


def _verbs() -> list[Candidate]:
    found = []
    for verb in VERBS:
        said = PLAIN.get(verb)
        if said is None:
            module = module_of(verb)
            said = getattr(module, "HELP", None) or module.command.__doc__ or ""
        found.append((verb, said.strip().partition("\n")[0]))
    return found


def shape_of(verb: str, part: str = "") -> Shape:
    """The declaration of a verb; empty for a verb that does not exist."""
    if verb not in VERBS:
        return Shape()
    return _argparse_shape(verb) if verb in PLAIN else _typer_shape(verb, part)


def _argparse_shape(verb: str) -> Shape:
    import argparse

    from torchloom.cli.jobs import flags

    if verb not in ("run", "submit"):
        return Shape()
    found = [
        Option(tuple(action.option_strings), action.nargs != 0, action.help or "", action.dest)
        for action in flags.parser(verb)._actions
        if action.option_strings and action.help != argparse.SUPPRESS
    ]
    # The script and its arguments are the caller's files: the shell completes those better.
    return Shape(options=tuple(found))


def _typer_shape(verb: str, part: str) -> Shape:
    import typer

    from torchloom.cli.app import build

    command: Any = typer.main.get_command(build((verb,)))
    command = command.commands[verb]
    if hasattr(command, "commands"):
        if not part:
            parts = ((n, c.get_short_help_str(80)) for n, c in command.commands.items())
            return Shape(parts=tuple(parts))
        if part not in command.commands:
            return Shape()
        command = command.commands[part]
    options, arguments, repeats = [], [], False
    for one in command.params:
        if one.param_type_name == "argument":
            arguments.append(str(one.name))
            repeats = repeats or one.nargs == -1
        else:
            names = (*one.opts, *one.secondary_opts)
            shown = sorted(names, key=lambda name: name.startswith("--"))
            options.append(Option(tuple(shown), not one.is_flag, one.help or "", str(one.name)))
    return Shape(tuple(options), tuple(arguments), repeats)


# ---- values ----


def _values(verb: str, about: str, place: dict[str, str], words: list[str]) -> list[Candidate]:
    """Values of an argument or option, by the name of its parameter; `words` are the arguments before it."""
    known = _KNOWN.get((verb, about)) or _KNOWN.get(("", about))
    if known is not None:
        return known()
    asked = ASKED.get((verb, about)) or ASKED.get(("", about))
    if asked is None:
        return []
    from torchloom.cli.options import use_place
    from torchloom.client import Client, Endpoint

    try:
        use_place(place.get("--home"), place.get("--context"))
        with Client(Endpoint.find(), timeout_s=ASK_WITHIN_S) as client:
            return list(asked(client, verb, words))
    except (LoomError, OSError, LookupError, ValueError, TypeError):
        # Also covers an older or newer service with another form of answer.
        return []


def _contexts() -> list[Candidate]:
    from torchloom.cli.access.contexts import LOCAL, Contexts

    try:
        named = Contexts.read().named
    except LoomError:
        return []
    return [(LOCAL, "this host"), *((name, entry["url"]) for name, entry in named.items())]


def _words(*words: str) -> Callable[[], list[Candidate]]:
    return lambda: [(word, "") for word in words]


def _points() -> list[Candidate]:
    from torchloom.cli.jobs.wait import NAMED

    return [(name, "") for name in (*NAMED, "step=", "state=")]


_KNOWN: dict[tuple[str, str], Callable[[], list[Candidate]]] = {
    ("", "context"): _contexts,
    ("context use", "name"): _contexts,
    ("context remove", "name"): _contexts,
    ("", "point"): _points,
    ("", "shell"): _words("bash", "zsh", "fish"),
    ("", "spawn"): _words("warm", "cold"),
    ("restore", "config"): _words("keep", "revert"),
    ("", "nproc_per_node"): _words("auto", "cpu", "gpu"),
}
"""Values that need no service, by verb (or any) and parameter."""
