"""Candidates for completion that only the running service knows: ids, ranks, settings, versions.

Each function serves one verb and gets the arguments that precede the word (most need the job). complete.py
handles errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchloom.client import Client

Candidate = tuple[str, str]
"""A word, and what it is."""

ONLY_LIVING = frozenset({"stop", "scale", "set", "pause", "resume", "checkpoint", "revert", "probe"})
"""Verbs for jobs that have not ended."""

BOOL = "true or false"
"""The service's name for that type."""
MOST_PLACES = 16
"""Most values to list per setting: more would hide the names."""


def _jobs(client: Client, verb: str, words: list[str]) -> Iterable[Candidate]:
    for job in client.jobs(active=True if verb in ONLY_LIVING else None):
        if verb != "delete" or job["ended"]:
            yield job["id"], f"{job['state']}, step {job['step']}"


def _incidents(client: Client, verb: str, words: list[str]) -> Iterable[Candidate]:
    for incident in client.incidents():
        yield incident["id"], incident["verdict"]


def _ranks(client: Client, verb: str, words: list[str]) -> Iterable[Candidate]:
    for worker in client.job(words[0])["workers"]:
        yield f"{worker['rank']}", f"{worker['state']} on {worker['node']}"


def _silent(client: Client, verb: str, words: list[str]) -> Iterable[Candidate]:
    for node in client.nodes():
        if node["state"] not in ("ready", "gone"):
            yield node["id"], node["reason"]


def _settings(client: Client, verb: str, words: list[str]) -> Iterable[Candidate]:
    """`lr=`; also each place of a setting if it has few places, and each value if it has few values."""
    given = {word.partition("=")[0] for word in words[1:]}
    for setting in client.config(words[0])["settings"]:
        names = [setting["name"]]
        if 1 < len(setting["places"]) <= MOST_PLACES:
            names += [place["address"] for place in setting["places"]]
        for name in names:
            if name not in given:
                yield f"{name}=", f"{setting['allowed']}; {setting['description']}".rstrip("; ")
        values = setting["choices"] or (["true", "false"] if setting["type"] == BOOL else [])
        if setting["name"] not in given:
            yield from ((f"{setting['name']}={value}", "") for value in values)


def _operations(client: Client, verb: str, words: list[str]) -> Iterable[Candidate]:
    for one in client.operations(words[0]):
        yield one["id"], f"{one['kind']}, {one['state']}"


def _under_way(client: Client, verb: str, words: list[str]) -> Iterable[Candidate]:
    for one in client.operations(words[0], active=True):
        yield one["id"], f"{one['kind']}, {one['state']}"


def _versions(client: Client, verb: str, words: list[str]) -> Iterable[Candidate]:
    yield "0", "before any change"
    for one in client.config_history(words[0]):
        if one["in_force"]:
            yield f"{one['version']}", f"step {one['step']}, by {one['by']}"


def _steps(client: Client, verb: str, words: list[str]) -> Iterable[Candidate]:
    for one in client.checkpoints(words[0])["checkpoints"]:
        if one["whole"]:
            yield f"{one['step']}", one["name"]


ASKED: dict[tuple[str, str], Callable[[Client, str, list[str]], Iterable[Candidate]]] = {
    ("", "job"): _jobs,
    ("", "jobs"): _jobs,
    ("", "incident"): _incidents,
    ("", "rank"): _ranks,
    ("node gone", "node"): _silent,
    ("set", "settings"): _settings,
    ("revert", "version"): _versions,
    ("restore", "step"): _steps,
    ("operations", "operation"): _operations,
    ("operations", "cancel"): _under_way,
}
"""Values from the service, by verb (or any verb) and parameter."""
