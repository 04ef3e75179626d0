"""A request that a spawner cannot do."""

from __future__ import annotations


class Refused(Exception):
    """The sentence goes to the agent."""
