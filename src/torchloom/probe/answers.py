"""A rank's answers in its black box: the newest whole, older ones as far as there is room."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from torchloom.core.transaction.packing import pack_answers
from torchloom.model.transaction.messages import Answer, Changed
from torchloom.wire.blackbox import ANSWERS, View


def write_answers(view: View, answers: Iterable[Answer], written: bytes) -> bytes:
    """Write them if they differ from what was `written`; returns what is there now."""
    data = pack_answers(answers)
    if len(data) > ANSWERS.capacity:
        data = _fitting(sorted(answers, key=lambda answer: answer.attempt))
    if data != written:
        view.write_blob(ANSWERS, data)
    return data


def _fitting(answers: list[Answer]) -> bytes:
    """Old ones lose what they changed; then the newest is told in fewer words; then old ones go."""
    if not answers:
        return pack_answers(())
    *old, newest = answers
    old = [replace(answer, changed=()) for answer in old]
    for short in (newest, replace(newest, changed=_in_short(newest.changed))):
        data = pack_answers([*old, short])
        if len(data) <= ANSWERS.capacity:
            return data
    newest = replace(newest, changed=())
    while old and len(data := pack_answers([*old, newest])) > ANSWERS.capacity:
        old = old[1:]
    return data if old else pack_answers([newest])


def _in_short(changed: tuple[Changed, ...]) -> tuple[Changed, ...]:
    """One line for all places of a name that went from one value to one other."""
    short: dict[str, Changed] = {}
    for address, before, after in changed:
        name = address.partition(".")[2].partition("@")[0] or address
        short.setdefault(f"{name} {before} {after}", (name, before, after))
    return tuple(short.values())
