"""Settings that a script declares: types from annotations, values, and what is refused where it stands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, Optional

import pytest

import torchloom as loom
from torchloom.core.config.settings import Type
from torchloom.errors import UsageError
from torchloom.probe.steering.declared import MOST, registry


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    kept = dict(registry.by_name)
    registry.by_name.clear()
    yield
    registry.by_name.clear()
    registry.by_name.update(kept)


class Mode(Enum):
    FAST = 1
    EXACT = 2


@dataclass
class Noise:
    scale: float
    mode: Mode = Mode.FAST
    seed: int | None = None


def declare(annotation: Any, value: Any, **more: Any) -> list[Any]:
    got: list[Any] = []

    def set_it(new: Any) -> None:
        got.append(new)

    set_it.__annotations__["new"] = annotation
    loom.handler("it", value=value, **more)(set_it)
    return got


@pytest.mark.parametrize(
    ("annotation", "value", "kind", "given", "passed"),
    [
        (float, 0.1, Type.FLOAT, 0.5, 0.5),
        (int, 1, Type.INT, 3, 3),
        (bool, False, Type.BOOL, True, True),
        (str, "a", Type.TEXT, "b", "b"),
        (Literal["a", "b"], "a", Type.CHOICE, "b", "b"),
        (Literal[8, 16], 8, Type.CHOICE, "16", 16),
        (Mode, Mode.FAST, Type.CHOICE, "EXACT", Mode.EXACT),
        (Optional[float], None, Type.FLOAT, 0.5, 0.5),  # noqa: UP045 – the old way to say it
        (float | None, 0.5, Type.FLOAT, None, None),
        (tuple[float, float], (0.1, 0.2), Type.NUMBERS, [0.3, 0.4], (0.3, 0.4)),
        (Noise, Noise(1.0), Type.RECORD, {"scale": 2.0, "mode": "EXACT"}, Noise(2.0, Mode.EXACT)),
        (Noise | None, None, Type.RECORD, None, None),
    ],
)
def test_an_annotation_is_a_type(annotation: Any, value: Any, kind: Type, given: Any, passed: Any) -> None:
    got = declare(annotation, value)
    declared = registry.by_name["it"]
    assert declared.setting.type is kind
    declared.set(declared.setting.check(given))
    assert got == [passed]
    assert declared.value == given


def test_the_present_value_is_told_by_default_value_or_getter() -> None:
    @loom.handler(minimum=0, below=1)
    def dropout(p: float = 0.1) -> None:
        """How much is left out."""

    now = [5]
    loom.handler("count", value=lambda: now[0])(_takes_int)
    assert registry.by_name["dropout"].value == 0.1
    assert registry.by_name["dropout"].setting.description == "How much is left out."
    now[0] = 6
    assert registry.by_name["count"].value == 6
    clip = loom.setting("clip", 1.0, type=float | None)
    registry.by_name["clip"].set(None)
    assert clip.value is None


def _takes_int(n: int) -> None: ...


def _takes_anything(n) -> None: ...  # type: ignore[no-untyped-def]


def _takes_two(n: int, m: int) -> None: ...


def _takes_list(n: list[int]) -> None: ...


@pytest.mark.parametrize(
    ("declaration", "said"),
    [
        (lambda: loom.handler("lr", value=1)(_takes_int), "setting of every job"),
        (lambda: loom.handler("max_steps", value=1)(_takes_int), "setting of every job"),
        (lambda: loom.handler("optimizer0", value=1)(_takes_int), "setting of every job"),
        (lambda: loom.handler("a b", value=1)(_takes_int), "no name"),
        (lambda: loom.handler("x" * 65, value=1)(_takes_int), "no name"),
        (lambda: loom.handler("", value=1)(_takes_int), "no name"),
        (lambda: loom.handler("a@1", value=1)(_takes_int), "no name"),
        (lambda: loom.handler("n")(_takes_int), "has no value yet"),
        (lambda: loom.handler("n", value=1)(_takes_anything), "does not say its type"),
        (lambda: loom.handler("n", value=1)(_takes_two), "one argument"),
        (lambda: loom.handler("n", value=[])(_takes_list), "cannot be of type"),
        (lambda: loom.handler("n", value=0, minimum=1)(_takes_int), "not a value for n"),
        (lambda: loom.setting("n", object()), "cannot be of type"),
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused_where_it_stands(
    declaration: Callable[[], object], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        declaration()
    assert not registry.by_name


def test_there_is_an_end_to_them() -> None:
    for n in range(MOST):
        loom.setting(f"s{n}", 1.0)
    loom.setting("s0", 2.0)  # again is not one more
    with pytest.raises(UsageError, match="one too many"):
        loom.setting("more", 1.0)


def test_a_handler_is_the_function_itself() -> None:
    assert loom.handler("n", value=1)(_takes_int) is _takes_int
