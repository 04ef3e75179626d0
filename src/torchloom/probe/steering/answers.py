"""A rank's answers in its black box: the newest whole, older ones as far as there is room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchloom.core.transaction.packing import join_answers, pack_answer, pack_answers
from torchloom.model.transaction.messages import Answer, AttemptId, Changed
from torchloom.wire.blackbox import ANSWERS, View


class Answers:
    """The blob of one worker. Of several answers mostly one is new: the others are not packed again."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._packed: dict[AttemptId, tuple[Answer, bytes]] = {}
        self._written = b""

    def write(self, answers: Sequence[Answer]) -> None:
        """Write them if they differ from what is there."""
        self._packed = {answer.attempt: (answer, self._pack(answer)) for answer in answers}
        data = join_answers(packed for _, packed in self._packed.values())
        if len(data) > ANSWERS.capacity:
            data = _fitting(sorted(answers, key=lambda answer: answer.attempt))
        if data != self._written:
            self._view.write_blob(ANSWERS, data)
            self._written = data

    def _pack(self, answer: Answer) -> bytes:
        known = self._packed.get(answer.attempt)
        return known[1] if known is not None and known[0] is answer else pack_answer(answer)


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
