"""`Transforms`: a pipeline of named transforms that can be changed while training, alike on all ranks.

    transforms = loom.Transforms(flip=RandomFlip(), noise=add_noise, crop=Crop(28), active=["crop", "flip"])
    loader = loom.ElasticLoader(dataset, global_batch=256, transforms=transforms, num_workers=4)
    transforms.set(["crop", {"noise": {"std": 0.1}}, "flip"])      # or: loom set JOB transforms='[…]'

A transform is any function of one sample; arguments beyond it may be given by name. What is set from outside
is a list of names, never code. Owns which transforms are known and which are in force, in which order. The
pipeline that makes a batch travels with the question to the data worker, so a change holds from a batch on,
the same for every rank; what was read ahead is the loader's to discard.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torchloom.data import live
from torchloom.data.randomness import draw_for
from torchloom.errors import UsageError

Transform = Callable[..., Any]
MOST_CHARS = 4096
"""A pipeline longer than this, as JSON, is a mistake."""


class TransformStage(NamedTuple):
    """One transform of a pipeline, as plain values: it is compared, and sent to data workers."""

    name: str
    arguments: str = "{}"
    """JSON of what it is given besides the sample."""

    @property
    def value(self) -> str | dict[str, Any]:
        given = json.loads(self.arguments)
        return {self.name: given} if given else self.name


Pipeline = tuple[TransformStage, ...]


class Transforms:
    """Known transforms by name, and those in force, in their order."""

    def __init__(
        self,
        known: Mapping[str, Transform] | None = None,
        *,
        active: Sequence[Any] | None = None,
        **named: Transform,
    ) -> None:
        """All that are known are in force, in the order given, unless `active` names others."""
        self._known: dict[str, Transform] = {**(known or {}), **named}
        for name, function in self._known.items():
            if not isinstance(name, str) or not name.isidentifier() or not callable(function):
                raise UsageError(f"{name!r} is no transform", hint="give functions of a sample by name")
        self._pipeline = self.check(list(self._known) if active is None else active)
        live.offer("transforms", self)

    @property
    def known(self) -> tuple[str, ...]:
        return tuple(self._known)

    @property
    def pipeline(self) -> Pipeline:
        """What is in force now."""
        return self._pipeline

    # -- as a setting ----------------------------------------------------------------------------------

    def get(self) -> list[Any]:
        """What is in force, as JSON knows it: a list of names, or {name: arguments}."""
        return [stage.value for stage in self._pipeline]

    @property
    def text(self) -> str:
        """What is in force, as it is written on a command line: names with commas, or JSON with arguments."""
        plain = all(stage.arguments == "{}" for stage in self._pipeline)
        return ",".join(stage.name for stage in self._pipeline) if plain else json.dumps(self.get())

    def set(self, value: Sequence[Any] | str) -> None:
        """Put these in force from the next batch on. Raises UsageError, and changes nothing, if it cannot."""
        self._pipeline = self.check(value)

    def check(self, value: Any) -> Pipeline:
        """The pipeline that a value, or a text of it, means. Raises UsageError."""
        value = _parsed(value) if isinstance(value, str) else value
        if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Sequence):
            raise UsageError(
                "transforms are a list of names", hint='for example ["crop", {"noise": {"std": 1}}]'
            )
        made: list[TransformStage] = []
        for given in value:
            stage = self._stage(given)
            if any(stage.name == other.name for other in made):
                raise UsageError(f"transform {stage.name} is named twice", hint="name it once")
            made.append(stage)
        if sum(len(stage.name) + len(stage.arguments) for stage in made) > MOST_CHARS:
            raise UsageError("the transforms' arguments are too long")
        return tuple(made)

    def _stage(self, given: Any) -> TransformStage:
        arguments: Any = {}
        name = given
        if isinstance(given, Mapping) and len(given) == 1:
            name, arguments = next(iter(given.items()))
        if not isinstance(name, str) or name not in self._known:
            shown = ", ".join(self._known) or "none"
            raise UsageError(f"there is no transform {str(name)[:60]!r}", hint=f"known are: {shown}")
        if not isinstance(arguments, Mapping):
            raise UsageError(
                f"the arguments of transform {name} are not named", hint='{"noise": {"std": 0.1}}'
            )
        try:
            inspect.signature(self._known[name]).bind(None, **arguments)
        except TypeError as error:
            raise UsageError(f"transform {name} cannot be called so ({error})") from None
        except ValueError:
            pass  # a built-in function has no readable signature
        try:
            return TransformStage(name, json.dumps(dict(arguments), sort_keys=True, allow_nan=False))
        except (TypeError, ValueError):
            raise UsageError(f"the arguments of transform {name} are not plain values") from None

    # -- one at a time ---------------------------------------------------------------------------------

    def add(self, name: str, *, before: str | None = None, **arguments: Any) -> None:
        """Put one more in force: last, or before another. One that is in force is moved and given these."""
        rest = [stage for stage in self._pipeline if stage.name != name]
        place = len(rest) if before is None else self._place(rest, before)
        values = [stage.value for stage in rest]
        self.set([*values[:place], {name: arguments} if arguments else name, *values[place:]])

    def remove(self, name: str) -> None:
        self._place(self._pipeline, name)
        self._pipeline = tuple(stage for stage in self._pipeline if stage.name != name)

    def reorder(self, names: Sequence[str]) -> None:
        """Those in force in another order, with the arguments they have."""
        held = {stage.name: stage for stage in self._pipeline}
        if sorted(names) != sorted(held):
            raise UsageError("another order must name what is in force", hint=", ".join(held) or "nothing is")
        self._pipeline = tuple(held[name] for name in names)

    @staticmethod
    def _place(stages: Sequence[TransformStage], name: str) -> int:
        for place, stage in enumerate(stages):
            if stage.name == name:
                return place
        raise UsageError(f"transform {name} is not in force", hint="see get()")

    # -- at work ---------------------------------------------------------------------------------------

    def __call__(self, sample: Any) -> Any:
        """The sample, through what is in force now."""
        return self.through(self._pipeline, sample)

    def through(self, pipeline: Pipeline, sample: Any, seed: Sequence[int | str] | None = None) -> Any:
        """The sample, through a pipeline. With a seed each transform draws from one of its own, so that
        adding or removing one does not change what the others do to a sample."""
        for stage in pipeline:
            if seed is not None:
                draw_for((*seed, stage.name))
            given = json.loads(stage.arguments) if stage.arguments != "{}" else {}
            sample = self._known[stage.name](sample, **given)
        return sample

    def __iter__(self) -> Iterator[Any]:
        return iter(self.get())

    def __repr__(self) -> str:
        return f"Transforms({self.get()})"

    # -- for a checkpoint ------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return {"active": self.get()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.set(state["active"])


def _parsed(text: str) -> Any:
    if not text.strip().startswith("["):
        return [name.strip() for name in text.split(",") if name.strip()]
    try:
        return json.loads(text)
    except ValueError:
        raise UsageError(
            f"{text[:60]!r} is not JSON", hint='for example ["crop", {"noise": {"std": 1}}]'
        ) from None
