"""How often the actions of transaction_world.py are drawn, so that histories get somewhere."""

from __future__ import annotations

WEIGHTS = {
    "advance": 30,
    "advance all": 8,
    "pass time": 14,
    "request": 8,
    "deliver mail": 20,
    "double mail": 3,
    "lose mail": 5,
    "read box": 12,
    "deliver answer": 12,
    "double answer": 3,
    "lose answer": 3,
    "exchange": 14,
    "round": 8,
    "hurry": 14,
    "tick": 6,
    "progress": 2,
    "kill worker": 2,
    "report end": 3,
    "store away": 2,
    "store moody": 3,
    "bus": 2,
    "replace weaver": 3,
}
"""For histories of every kind."""
SHARP = {
    "advance": 24,
    "pass time": 12,
    "deliver mail": 16,
    "lose mail": 3,
    "read box": 3,
    "deliver answer": 3,
    "cancel": 4,
    "kill worker": 1,
    "report end": 2,
    "store moody": 3,
    "replace weaver": 1,
    "make odd": 1,
}
"""For what happens once all are armed: the ranks decide, and everything around them goes wrong."""
MOST = 7 * 5 * 8 * 2 * 12
"""Numbers below this steer every choice that an action has."""
