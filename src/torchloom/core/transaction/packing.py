"""Mail and answers as JSON, for the black box and the bus. Anything else is a ValueError."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from torchloom.model.transaction.messages import Answer, AttemptId, Kind, Mail, Phase, Proposal, Said

T = TypeVar("T")
_TEXT = json.JSONEncoder(separators=(",", ":"))


def pack_mail(mails: Iterable[Mail]) -> bytes:
    return _pack([_mail_out(mail) for mail in mails])


def unpack_mail(data: bytes) -> tuple[Mail, ...]:
    return _unpack(data, _mail_in)


class MailReader:
    """Unpacks the mails of one box again and again; mails that were there before are reused.

    For a worker: its box holds the last few mails of each attempt, and one of them is new.
    """

    def __init__(self) -> None:
        self._known: list[tuple[dict[str, Any], Mail]] = []

    def read(self, data: bytes) -> tuple[Mail, ...]:
        before, self._known = self._known, []
        return _unpack(data, lambda row: self._mail(row, before))

    def _mail(self, row: dict[str, Any], before: list[tuple[dict[str, Any], Mail]]) -> Mail:
        mail = next((mail for known, mail in before if known == row), None) or _mail_in(row)
        self._known.append((row, mail))
        return mail


def pack_answers(answers: Iterable[Answer]) -> bytes:
    return join_answers(pack_answer(answer) for answer in answers)


def pack_answer(answer: Answer) -> bytes:
    """One of those that `join_answers` takes."""
    return _pack(_answer_out(answer))


def join_answers(packed: Iterable[bytes]) -> bytes:
    return b"[" + b",".join(packed) + b"]"


def unpack_answers(data: bytes) -> tuple[Answer, ...]:
    return _unpack(data, _answer_in)


def _pack(rows: object) -> bytes:
    return _TEXT.encode(rows).encode()


def _unpack(data: bytes, read: Callable[[dict[str, Any]], T]) -> tuple[T, ...]:
    """An empty box holds nothing; that is not an error."""
    if not data:
        return ()
    try:
        rows = json.loads(data)
        return tuple(read(row) for row in rows)
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise ValueError(f"this is no mail of a transaction: {error!r}") from error


def _mail_out(mail: Mail) -> dict[str, Any]:
    proposal = mail.proposal
    return {
        "phase": int(mail.phase),
        "at_step": mail.at_step,
        "unconfirmed": mail.unconfirmed,
        "attempt": list(proposal.attempt),
        "kind": str(proposal.kind),
        "values": dict(proposal.values),
        "two_phase": proposal.two_phase,
        "control_timeout_ns": proposal.control_timeout_ns,
        "vote_timeout_ns": proposal.vote_timeout_ns,
    }


def _mail_in(row: dict[str, Any]) -> Mail:
    proposal = Proposal(
        attempt=_attempt_in(row["attempt"]),
        kind=Kind(row["kind"]),
        values=dict(row["values"]),
        two_phase=bool(row["two_phase"]),
        control_timeout_ns=int(row["control_timeout_ns"]),
        vote_timeout_ns=int(row["vote_timeout_ns"]),
    )
    return Mail(Phase(row["phase"]), proposal, int(row["at_step"]), bool(row["unconfirmed"]))


def _answer_out(answer: Answer) -> dict[str, Any]:
    return {
        "attempt": list(answer.attempt),
        "rank": answer.rank,
        "said": str(answer.said),
        "step": answer.step,
        "held": answer.held,
        "step_ns": answer.step_ns,
        "anchor": answer.anchor,
        "why": answer.why,
        "raised": answer.raised,
        "changed": [list(changed) for changed in answer.changed],
        "offset": answer.offset,
    }


def _answer_in(row: dict[str, Any]) -> Answer:
    return Answer(
        attempt=_attempt_in(row["attempt"]),
        rank=int(row["rank"]),
        said=Said(row["said"]),
        step=int(row["step"]),
        held=bool(row["held"]),
        step_ns=int(row["step_ns"]),
        anchor=str(row["anchor"]),
        why=str(row["why"]),
        raised=bool(row.get("raised", False)),
        changed=tuple((str(address), before, after) for address, before, after in row["changed"]),
        offset=None if row.get("offset") is None else int(row["offset"]),
    )


def _attempt_in(numbers: list[Any]) -> AttemptId:
    generation, version, attempt = numbers
    return AttemptId(int(generation), int(version), int(attempt))
