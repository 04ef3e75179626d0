"""How verbs declare their options and arguments: only what was said, so that a verb needs no library for it.

Importing typer takes twice as long as everything else `loom ps` does. parse.py reads command lines that are
right; whatever it does not understand, errors and `--help` go to typer (app.py), which these turn into.
"""

from __future__ import annotations

from typing import Any


class Parameter:
    """An option or an argument of a verb: names as typed, and the keywords of typer's function."""

    def __init__(self, is_option: bool, names: tuple[str, ...], said: dict[str, Any]) -> None:
        self.is_option, self.names, self.said = is_option, names, said


class EndVerb(SystemExit):
    """Ends a verb with this code, without a word."""

    @property
    def exit_code(self) -> int:
        return self.code if isinstance(self.code, int) else 1


def option(*names: str, **said: Any) -> Any:
    return Parameter(True, names, said)


def argument(**said: Any) -> Any:
    return Parameter(False, (), said)
