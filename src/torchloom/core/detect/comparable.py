"""Who may be compared with whom: ranks of one role, or else of one shape of work. Judges nobody."""

from __future__ import annotations

from collections.abc import Sequence

from torchloom.core.detect.board import WindowBoard
from torchloom.core.detect.own_times import Peers
from torchloom.core.detect.window import RankWindow

_Shape = tuple[tuple[int, float], ...]


def by_role(windows: Sequence[RankWindow]) -> dict[str, Peers]:
    """Ranks that may be compared with each other, by their reported role or else by the shape of their work.

    The shape is which sizes of groups they use and about how often a step: ranks that differ in it cannot be
    doing the same thing. Different middle stages of a pipeline look alike, so a script should report roles.
    """
    whole = isinstance(windows, Peers) and len(windows.board) == len(windows)
    board = windows.board if isinstance(windows, Peers) and whole else WindowBoard.of(windows)
    known: dict[str, Peers] | None = board.notes.get("roles") if whole else None
    if known is not None:
        return known
    rows: dict[str, list[int]] = {}
    shapes: list[tuple[str, _Shape]] = []
    for alike, role in board.kinds():
        if not role:
            shape = _shape(board[alike[0]])
            role = next((name for name, other in shapes if _alike(shape, other)), "")
            if not role:
                role = f"shape {len(shapes) + 1}"
                shapes.append((role, shape))
        rows.setdefault(role, []).extend(alike)
    if len(rows) == 1:
        found = {role: Peers.of(windows) for role in rows}
    else:
        found = {role: Peers.of(board, sorted(some)) for role, some in rows.items()}
    if whole:
        board.notes["roles"] = found  # several rules ask
    return found


def _shape(window: RankWindow) -> _Shape:
    steps = max(1, window.steps_done)
    return tuple(sorted((g.size, g.entered / steps) for g in window.groups))


def _alike(one: _Shape, other: _Shape) -> bool:
    """Counts a step differ a little between ranks that are looked at within a step of each other."""
    return len(one) == len(other) and all(
        a == b and abs(x - y) <= 0.5 + 0.1 * max(x, y) for (a, x), (b, y) in zip(one, other, strict=True)
    )
