"""What may come next on a command line: verbs, options, ids. For completion in shells and in `loom shell`.

Asks the verbs' own declarations, so an option cannot be forgotten here, and the running service for ids. It
never raises and never waits long: a completion that fails is no completion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


def print_candidates(argv: list[str]) -> int:
    return 0
