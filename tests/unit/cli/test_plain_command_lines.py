"""Command lines that are right are read without typer, and mean exactly what typer takes them for."""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import typer

from torchloom.cli.app import declared_to_typer
from torchloom.cli.main import PLAIN, run_plainly
from torchloom.cli.options import with_place
from torchloom.cli.parse import NotPlain, _Slot, read
from torchloom.cli.verbs import LOCAL_VERBS, VERBS, module_of

Command = Callable[..., Any]


def _commands() -> Iterator[tuple[str, Command]]:
    for verb in VERBS:
        if verb in PLAIN:
            continue
        module = module_of(verb)
        parts = getattr(module, "SUBVERBS", None) or {"": module.command}
        for part, command in parts.items():
            placed = with_place(command, verb in LOCAL_VERBS)
            with suppress(NotPlain):  # declared with typer's own: then typer reads all of its lines
                [_Slot(n, p) for n, p in inspect.signature(placed, eval_str=True).parameters.items()]
                yield f"{verb} {part}".strip(), placed


COMMANDS = dict(_commands())


def _by_typer(command: Command, argv: list[str]) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    @functools.wraps(command)
    def record(**given: Any) -> None:
        found.append(given)

    record.__signature__ = inspect.signature(command, eval_str=True)  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False)
    app.command()(declared_to_typer(record))
    app(argv, standalone_mode=False)
    return found[0]


def _any_line(command: Command, chance: random.Random) -> list[str]:
    """Arguments and some of the options, with values of their kinds, in any order."""
    slots = [_Slot(n, p) for n, p in inspect.signature(command, eval_str=True).parameters.items()]
    words: list[list[str]] = []
    for slot in slots:
        if slot.is_option:
            needed = slot.default is inspect.Parameter.empty
            for _ in range(chance.choice((1, 2) if needed else (0, 0, 1, 2))):
                name = chance.choice([n for names in slot.names for n in names.split("/")])
                value = _value(slot, chance)
                joined = chance.random() < 0.3 and name.startswith("--")
                words.append([name] if slot.flag else [f"{name}={value}"] if joined else [name, value])
    chance.shuffle(words)
    for slot in slots:
        if not slot.is_option:
            count = chance.randint(1, 3) if slot.many else 1
            at = chance.randint(0, len(words)) if slot is slots[0] else len(words)
            words.insert(at, [_value(slot, chance) for _ in range(count)])
    return [word for some in words for word in some]


def _value(slot: _Slot, chance: random.Random) -> str:
    if slot.kind in (int, float):
        least = slot.said.get("min", 1)
        if slot.kind is float:
            return f"{chance.uniform(least, slot.said.get('max', least + 50)):.3f}"
        return str(chance.randint(least, int(slot.said.get("max", least + 50))))
    if "callback" in slot.said:  # a span of time, or the id of a job
        return "45s" if slot.is_option else chance.choice(("team", "x1", "a-b"))
    return chance.choice(("team", "lr=0.1", "/a/b c"))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_right_line_means_the_same_with_and_without_typer(name: str) -> None:
    chance = random.Random(name)
    for _ in range(12):
        line = _any_line(COMMANDS[name], chance)
        assert read(COMMANDS[name], line) == _by_typer(COMMANDS[name], line), line


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("wrong", [["--no-such-option"], ["--help"], ["-h"], ["-Z"], ["--home"]])
def test_what_is_not_right_is_left_to_typer(name: str, wrong: list[str]) -> None:
    with pytest.raises(NotPlain):
        read(COMMANDS[name], wrong)


def test_numbers_out_of_range_and_too_many_words_are_left_to_typer() -> None:
    with pytest.raises(NotPlain):
        read(COMMANDS["ps"], ["one", "more"])
    with pytest.raises(NotPlain):
        read(COMMANDS["scale"], ["job", "--workers", "no-number"])


def test_joined_short_options_and_the_end_of_options() -> None:
    given = read(COMMANDS["ps"], ["-aq", "-lteam=vision", "-l", "x"])
    assert (given["everything"], given["quiet"], given["label"]) == (True, True, ["team=vision", "x"])
    assert read(COMMANDS["status"], ["--", "job"])["job"] == "job"


def test_nearly_all_verbs_need_no_typer() -> None:
    assert {"ps", "status", "set", "pause", "resume", "stop", "top", "logs", "device show"} <= COMMANDS.keys()


@pytest.mark.parametrize("argv", [[], ["--help"], ["no-such-verb"], ["device"], ["node", "--help"]])
def test_without_a_verb_typer_answers(argv: list[str]) -> None:
    assert run_plainly(argv) is None
