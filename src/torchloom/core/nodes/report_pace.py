"""How often agents send telemetry and windows: less often in a very large fleet.

Everything that all agents send is read by one loop, in the weaver that leads. Commands tell each agent how
many nodes there are. Never slower than the limits that stand for silence allow: a heartbeat is missed after 3
s, a window says nothing about now after 2 s.
"""

from __future__ import annotations

PULSE_EVERY_S, WINDOW_EVERY_S = 0.25, 0.5
FULL_PACE_NODES = 1024
SLOWER = 2.0


def pulse_every_s(nodes: int) -> float:
    """Seconds between two pulses in a fleet of so many nodes; 0: nobody has said how many."""
    return PULSE_EVERY_S * (SLOWER if nodes > FULL_PACE_NODES else 1.0)


def window_every_s(nodes: int) -> float:
    return WINDOW_EVERY_S * (SLOWER if nodes > FULL_PACE_NODES else 1.0)
