"""The drawing in the docstring of `errors.py` is the tree, and every error is one sentence."""

from __future__ import annotations

import pickle
import re

from torchloom import errors


def drawn() -> dict[str, tuple[str, int]]:
    """Name → (parent, exit code), as the docstring draws it."""
    found: dict[str, tuple[str, int]] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^    ([│├└─ ]*)(\w+)\s+(\d)\s", line)
        if match:
            depth = len(match[1]) // 4
            path[depth:] = [match[2]]
            found[match[2]] = (path[depth - 1] if depth else "Exception", int(match[3]))
    return found


def test_the_drawing_is_the_tree() -> None:
    classes = [item for item in vars(errors).values() if isinstance(item, type)]
    real = {
        c.__name__: (c.__bases__[0].__name__, c.exit_code) for c in classes if c.__module__ == errors.__name__
    }
    assert drawn() == real


def test_the_next_step_is_part_of_the_sentence_and_survives_pickling() -> None:
    error = errors.PortTaken("port 1 is taken", hint="free it")
    copy = pickle.loads(pickle.dumps(error))
    assert str(error) == str(copy) == "port 1 is taken: free it"
    assert (copy.message, copy.hint, copy.exit_code) == ("port 1 is taken", "free it", 5)
    assert str(errors.NotFound("no such job")) == "no such job"
